"""One pass over the rows of a data set: outcome, hashes, token counts and text issues of each row. Large files of
JSON lines are scanned in parts, on all cores."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from validator.dataset import json_rows, readers, row_workers, sequence_lengths
from validator.dataset.chat_template import ChatTemplate, TurnTexts
from validator.dataset.data_files import open_raw
from validator.dataset.row_text import TEXT_ISSUES, TURN_SEPARATOR, text_issues
from validator.dataset.sequence_lengths import SampleLengths
from validator.dataset.token_counting import CharacterCounter, TokenCounter
from validator.rows import reading_limits
from validator.rows.converter import FatalRowError, Sample, row_converter
from validator.rows.dataset_attr import DatasetAttr
from validator.rows.media_columns import MediaSupport, media_fault
from validator.rows.outcomes import ENDS_RUN, TRAINED, row_status
from validator.rows.reading_limits import UnreadableError

BLOCK_ROWS = 1000  # rows that are counted together, fewer where they are large
_MAX_SHAPES, _PART_ROWS = 1000, 50_000
_FIGURE_COLUMNS = ("fates", "answers", "texts", "prompts", "full", "kept", "answer", "lost")
_SEPARATOR_BYTES = TURN_SEPARATOR.encode()
# What Arrow's JSON reader takes for a date, so that a column of nothing else is no text.
_ARROW_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d(:?\d\d(:?\d\d)?)?Z?)?")
OnRows = Callable[[int], None]  # told how many rows more are done


class ScanSettings(NamedTuple):
    """How rows are meant and counted."""

    form: DatasetAttr
    stage: str
    markup: ChatTemplate
    counter: TokenCounter
    limit: int  # tokens
    packed: bool
    media: MediaSupport


@dataclass
class ScannedRows:
    """What is known of each row, in the order of the data; tokens of rows that are not trained are 0. Of `read` rows in
    all, each `stride`-th is kept."""

    numbers: array[int] = field(default_factory=lambda: array("Q"))
    fates: bytearray = field(default_factory=bytearray)
    answers: bytearray = field(default_factory=bytearray)
    texts: array[int] = field(default_factory=lambda: array("Q"))
    prompts: array[int] = field(default_factory=lambda: array("Q"))
    full: array[int] = field(default_factory=lambda: array("I"))
    kept: array[int] = field(default_factory=lambda: array("I"))
    answer: array[int] = field(default_factory=lambda: array("I"))
    lost: array[int] = field(default_factory=lambda: array("I"))
    odd: dict[str, array[int]] = field(default_factory=lambda: {kind: array("I") for kind in TEXT_ISSUES})
    stops: dict[int, str] = field(default_factory=dict)
    shapes: dict[tuple[Any, ...], int] = field(default_factory=dict)
    cells: set[tuple[str, type]] = field(default_factory=set)
    undated: set[str] = field(default_factory=set)
    files: list[tuple[int, Path]] = field(default_factory=list)
    problems: list[tuple[Path, int, str]] = field(default_factory=list)
    lines: int = 0
    approximate: bool = False
    read: int = 0
    stride: int = 1

    def __len__(self) -> int:
        return len(self.fates)

    def place(self, index: int) -> str:
        """`file:row` of a row."""
        path = next(path for start, path in reversed(self.files) if start <= index)
        return f"{path}:{self.numbers[index]}"

    def meet(self, number: int, row: dict[str, Any]) -> None:
        """Note the number and the columns of the next row."""
        shape = (*row, *map(type, row.values()))
        if shape not in self.shapes:
            self._learn(shape, len(self.fates))
        if not self.undated.issuperset(row):
            self.undated.update(name for name, value in row.items() if not _is_date_or_empty(value))
        self.numbers.append(number)

    def _learn(self, shape: tuple[Any, ...], index: int) -> None:
        """A shape of rows that was not there before. One of which nothing is new is kept only while shapes are few."""
        cells = set(zip(shape[: len(shape) // 2], shape[len(shape) // 2 :], strict=True))
        if len(self.shapes) < _MAX_SHAPES or not cells <= self.cells:
            self.shapes[shape] = index
            self.cells |= cells
            if (
                len(self.cells) > reading_limits.MAX_COLUMNS
                and len(names := {name for name, _ in self.cells}) > reading_limits.MAX_COLUMNS
            ):
                raise reading_limits.too_many_columns(len(names))

    def extend(self, other: ScannedRows, continues: bool = False) -> None:
        """Append another part, which is thinned as this one is. `continues`: it is a later part of the same file."""
        while self.stride < other.stride:
            self.thin()
        other.thin(-self.read % self.stride // other.stride, self.stride // other.stride)
        start, lines = len(self), self.lines if continues else 0
        self.numbers.extend(array("Q", (n + lines for n in other.numbers)) if lines else other.numbers)
        for name in _FIGURE_COLUMNS:
            getattr(self, name).extend(getattr(other, name))
        for kind, indices in other.odd.items():
            self.odd[kind].extend(start + index for index in indices)
        self.stops.update((start + index, why) for index, why in other.stops.items())
        for shape, index in other.shapes.items():
            if shape not in self.shapes:
                self._learn(shape, start + index)
        self.undated |= other.undated
        self.files += [] if continues else [(start + at, path) for at, path in other.files]
        self.problems += [(path, row + lines if row else 0, why) for path, row, why in other.problems]
        self.lines = lines + other.lines
        self.approximate |= other.approximate
        self.read += other.read
        while len(self) > reading_limits.MAX_SCANNED_ROWS:
            self.thin()

    def thin(self, first: int = 0, step: int = 2) -> None:
        """Keep each `step`-th row from the first on. A row that stops the run, or is the first of its shape, takes the
        place of the one that is kept before it."""
        if step == 1:
            return
        columns = [getattr(self, name) for name in ("numbers", *_FIGURE_COLUMNS)]
        for at in (*self.shapes.values(), *self.stops):
            into = max(at - (at - first) % step, first)
            for column in columns if into < len(self) else ():
                column[into] = column[at]
        for name, column in zip(("numbers", *_FIGURE_COLUMNS), columns, strict=True):
            setattr(self, name, column[first::step])
        self.stops = {
            max(at - first, 0) // step: why for at, why in self.stops.items() if at - first < len(self) * step
        }
        self.shapes = {shape: max(at - first, 0) // step for shape, at in self.shapes.items()}
        for kind, held in self.odd.items():
            self.odd[kind] = array(
                "I", ((at - first) // step for at in held if at >= first and not (at - first) % step)
            )
        self.files = [(-(min(first - at, 0) // step), path) for at, path in self.files]
        self.stride *= step


def scan_span(path: Path, plan: ScanSettings, report: OnRows, span: tuple[int, int]) -> ScannedRows:
    """A part of a file, in bytes, up to the first row that cannot be read."""
    rows = ScannedRows(files=[] if span[0] else [(0, path)])
    for part in scan_blocks(path, plan, report, span):
        rows.extend(part, continues=True)
    return rows


def scan_blocks(
    path: Path, plan: ScanSettings, report: OnRows, span: tuple[int, int] | None = None
) -> Iterator[ScannedRows]:
    """The rows of one file, or of a part of it in bytes, up to the first that cannot be read; in parts, each of which
    counts lines from its beginning."""
    convert, rows, before = row_converter(plan.form), readers.read_rows(path, span), 0
    known, ended = ScannedRows(files=[] if span and span[0] else [(0, path)]), False
    while not ended:
        start, samples, held, ended = len(known), list[Sample | None](), 0, True
        try:
            for number, row in islice(rows, BLOCK_ROWS):
                known.lines = number - before
                sample = _scan_row(known, number - before, row, convert, plan)
                samples.append(sample)
                held += _sample_size(sample) if sample else 0
                if held > reading_limits.MAX_BLOCK_BYTES:
                    break
            ended = len(samples) < BLOCK_ROWS and held <= reading_limits.MAX_BLOCK_BYTES
        except UnreadableError as err:
            known.problems.append((path, err.row - before if err.row else 0, str(err)))
        _count_block_tokens(known, start, samples, plan)
        report(len(samples))
        if ended or len(known) > _PART_ROWS:
            before, known.read = before + known.lines, len(known)
            yield known
            known = ScannedRows()


def _sample_size(sample: Sample) -> int:
    """Characters of a sample, about."""
    texts = sum(len(content) for _, content in (*sample.prompt, *sample.answers))
    return texts + (reading_limits.approximate_size(sample.tools) if sample.tools else 0)


def _scan_row(
    known: ScannedRows, number: int, row: dict[str, Any], convert: Callable[[Any], Sample], plan: ScanSettings
) -> Sample | None:
    """Note a row; the sample where it is trained."""
    index = len(known.fates)
    known.meet(number, row)
    sample: Sample | None = None
    try:
        sample = convert(row)
        code = row_status(sample, plan.stage)
        if code == TRAINED:
            _note_text(known, index, sample)
            _require_usable_media(plan, row, sample)
    except FatalRowError as err:
        code, known.stops[index] = ENDS_RUN, str(err)
    known.fates.append(code)
    known.answers.append(min(len(sample.answers), 2) if sample else 0)
    if code == TRAINED:
        return sample
    known.texts.append(0)
    known.prompts.append(0)
    return None


def _is_date_or_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= 20 and bool(_ARROW_DATE.fullmatch(value)))


def _note_text(known: ScannedRows, index: int, sample: Sample) -> None:
    """Fingerprints of the text and the prompt, and what is odd about the text. Raises StopsRunError."""
    try:
        asked = TURN_SEPARATOR.join([content for _, content in sample.prompt])
        answered = TURN_SEPARATOR.join([content for _, content in sample.answers])
    except TypeError:
        raise FatalRowError("a turn holds something other than text") from None
    answers = len(sample.answers)
    turns = len(sample.prompt) + answers
    if sample.system:
        asked, turns = f"{sample.system}{TURN_SEPARATOR}{asked}", turns + 1
    prompt, answer = asked.encode("utf-8", "surrogatepass"), answered.encode("utf-8", "surrogatepass")
    first = xxh3_64_intdigest(prompt)  # two of a million texts collide in one of 40 million data sets
    known.prompts.append(first)
    known.texts.append(xxh3_64_intdigest(answer, first))
    for kind in text_issues(asked, answered, prompt + _SEPARATOR_BYTES + answer if answers else prompt, turns, answers):
        known.odd[kind].append(index)


def _require_usable_media(plan: ScanSettings, row: dict[str, Any], sample: Sample) -> None:
    """Raises StopsRunError where the row's pictures, films or sound end the run; pre-training reads none."""
    if plan.stage != "pt" and (why := media_fault(plan.form, plan.media, row, sample)):
        raise FatalRowError(why)


def _count_block_tokens(known: ScannedRows, start: int, samples: list[Sample | None], plan: ScanSettings) -> None:
    """Count the tokens of a block at once: tokenizers work on many texts in parallel."""
    pieces = [
        _template_texts(known, index, sample, plan) if sample else () for index, sample in enumerate(samples, start)
    ]
    counts = iter(plan.counter.count([text for row in pieces for texts, _ in row for text in texts]))
    for sample, row in zip(samples, pieces, strict=True):
        sizes = [sum(islice(counts, len(texts)), more) for texts, more in row]
        full, kept, answer, lost = _sample_lengths(sample, sizes, plan) if sample and sizes else (0, 0, 0, 0)
        known.full.append(full)
        known.kept.append(kept)
        known.answer.append(answer)
        known.lost.append(lost)


def _template_texts(known: ScannedRows, index: int, sample: Sample, plan: ScanSettings) -> list[TurnTexts]:
    if plan.stage == "pt":
        return [([sample.prompt[0][1]], 1)]
    answers = [answer for answer in sample.answers if answer[1]] if plan.stage == "kto" else sample.answers
    turns = [*sample.prompt, *(answers[:1] or sample.answers[:1] or [("assistant", "")])]
    if sample.tools or (len(turns) > 2 and any(role == "function" for role, _ in turns)):
        known.approximate = True
    try:
        given = plan.markup.pieces(turns, sample.system, sample.tools, plan.stage == "sft")
        if plan.stage in ("dpo", "rm"):
            second = [*sample.prompt, sample.answers[1]]
            given += plan.markup.pieces(second, sample.system, sample.tools, False)[-1:]
        return given
    except FatalRowError as err:
        known.fates[index], known.stops[index] = ENDS_RUN, str(err)
        return []


def _sample_lengths(sample: Sample, sizes: list[int], plan: ScanSettings) -> SampleLengths:
    extra = int(plan.markup.efficient_eos)
    if plan.stage == "pt":
        return sequence_lengths.text_lengths(sizes[0], plan.limit, plan.packed)
    if plan.stage == "sft":
        pairs = [(sizes[0], sizes[1])] if len(sizes) == 2 else list(zip(sizes[::2], sizes[1::2], strict=True))
        return sequence_lengths.turn_lengths(pairs, plan.limit, extra, plan.markup.mask_history)
    asked = len(sample.prompt)
    return sequence_lengths.answer_lengths(sum(sizes[:asked]), [size + extra for size in sizes[asked:]], plan.limit)


# Smaller parts cost more to hand over than they save.
_SPAN_BYTES = 16 << 20


def scan_dataset(files: Sequence[Path], plan: ScanSettings, report: OnRows) -> ScannedRows:
    """All rows of the files of a data set. It ends with the first problem: LLaMA-Factory then loads nothing."""
    rows = ScannedRows()
    for path in files:
        for part, continues in _scan_file(path, plan, report):
            rows.extend(part, continues)
            if part.problems:
                return rows
    return rows


def _scan_file(path: Path, plan: ScanSettings, report: OnRows) -> Iterator[tuple[ScannedRows, bool]]:
    # A real tokenizer keeps all cores busy by itself.
    spread = line_spans(path) if isinstance(plan.counter, CharacterCounter) else []
    if len(spread) < 2:
        yield from ((part, index > 0) for index, part in enumerate(scan_blocks(path, plan, report)))
        return
    for index, part in enumerate(
        row_workers.results_in_order(scan_span, [(path, plan, _no_report, span) for span in spread])
    ):
        report(len(part))
        yield part, index > 0


def _no_report(_rows: int) -> None:
    """Only the first process has a terminal."""


def line_spans(path: Path) -> list[tuple[int, int]]:
    """Parts of a file of JSON lines, in bytes, that end with a line; none where it is small or of another kind."""
    size = path.stat().st_size if path.is_file() else 0  # a pipe has none, and is told of where it is opened
    if size <= _SPAN_BYTES or path.suffix not in (".json", ".jsonl") or not json_rows.is_json_lines(path):
        return []
    ends: list[tuple[int, int]] = []
    with open_raw(path) as stream:
        while (start := ends[-1][1] if ends else 0) < size:
            stream.seek(min(start + _SPAN_BYTES, size))
            stream.readline(reading_limits.MAX_ROW_BYTES + 1)
            ends.append((start, stream.tell()))
    return ends
