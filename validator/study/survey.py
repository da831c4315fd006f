"""One pass over the rows of a data set: what becomes of each, how long it is, and what is odd about it."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from validator.samples.conversion import Sample, StopsRunError, converter
from validator.samples.fate import KEPT, STOPS, fate
from validator.samples.form import Form
from validator.samples.media import Media, unusable
from validator.study import ceiling, lengths, reading
from validator.study.fingerprint import fingerprint
from validator.study.lengths import Lengths
from validator.study.markup import Markup, Piece
from validator.study.oddity import KINDS, SEPARATOR, oddities
from validator.study.tokens import Counter
from validator.study.values import UnreadableError

BLOCK = 1000  # rows that are counted together, fewer where they are large
_SHAPES, _ROWS = 1000, 50_000
_COLUMNS = ("fates", "answers", "texts", "prompts", "full", "kept", "answer", "lost")
_SEPARATOR = SEPARATOR.encode()
# What Arrow's JSON reader takes for a date, so that a column of nothing else is no text.
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d(:?\d\d(:?\d\d)?)?Z?)?")
Report = Callable[[int], None]  # told how many rows more are done


class Plan(NamedTuple):
    """How rows are meant and counted."""

    form: Form
    stage: str
    markup: Markup
    counter: Counter
    limit: int  # tokens
    packed: bool
    media: Media


@dataclass
class Survey:
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
    odd: dict[str, array[int]] = field(default_factory=lambda: {kind: array("I") for kind in KINDS})
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
            self.undated.update(name for name, value in row.items() if not _dated(value))
        self.numbers.append(number)

    def _learn(self, shape: tuple[Any, ...], index: int) -> None:
        """A shape of rows that was not there before. One of which nothing is new is kept only while shapes are few."""
        cells = set(zip(shape[: len(shape) // 2], shape[len(shape) // 2 :], strict=True))
        if len(self.shapes) < _SHAPES or not cells <= self.cells:
            self.shapes[shape] = index
            self.cells |= cells
            if len(self.cells) > ceiling.COLUMNS and len(names := {name for name, _ in self.cells}) > ceiling.COLUMNS:
                raise ceiling.columns(len(names))

    def extend(self, other: Survey, continues: bool = False) -> None:
        """Append another part, which is thinned as this one is. `continues`: it is a later part of the same file."""
        while self.stride < other.stride:
            self.thin()
        other.thin(-self.read % self.stride // other.stride, self.stride // other.stride)
        start, lines = len(self), self.lines if continues else 0
        self.numbers.extend(array("Q", (n + lines for n in other.numbers)) if lines else other.numbers)
        for name in _COLUMNS:
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
        while len(self) > ceiling.KEPT:
            self.thin()

    def thin(self, first: int = 0, step: int = 2) -> None:
        """Keep each `step`-th row from the first on. A row that stops the run, or is the first of its shape, takes the
        place of the one that is kept before it."""
        if step == 1:
            return
        columns = [getattr(self, name) for name in ("numbers", *_COLUMNS)]
        for at in (*self.shapes.values(), *self.stops):
            into = max(at - (at - first) % step, first)
            for column in columns if into < len(self) else ():
                column[into] = column[at]
        for name, column in zip(("numbers", *_COLUMNS), columns, strict=True):
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


def survey(path: Path, plan: Plan, report: Report, span: tuple[int, int]) -> Survey:
    """A part of a file, in bytes, up to the first row that cannot be read."""
    rows = Survey(files=[] if span[0] else [(0, path)])
    for part in parts(path, plan, report, span):
        rows.extend(part, continues=True)
    return rows


def parts(path: Path, plan: Plan, report: Report, span: tuple[int, int] | None = None) -> Iterator[Survey]:
    """The rows of one file, or of a part of it in bytes, up to the first that cannot be read; in parts, each of which
    counts lines from its beginning."""
    convert, rows, before = converter(plan.form), reading.rows(path, span), 0
    known, ended = Survey(files=[] if span and span[0] else [(0, path)]), False
    while not ended:
        start, samples, held, ended = len(known), list[Sample | None](), 0, True
        try:
            for number, row in islice(rows, BLOCK):
                known.lines = number - before
                sample = _row(known, number - before, row, convert, plan)
                samples.append(sample)
                held += _weight(sample) if sample else 0
                if held > ceiling.HELD:
                    break
            ended = len(samples) < BLOCK and held <= ceiling.HELD
        except UnreadableError as err:
            known.problems.append((path, err.row - before if err.row else 0, str(err)))
        _measure(known, start, samples, plan)
        report(len(samples))
        if ended or len(known) > _ROWS:
            before, known.read = before + known.lines, len(known)
            yield known
            known = Survey()


def _weight(sample: Sample) -> int:
    """Characters of a sample, about."""
    texts = sum(len(content) for _, content in (*sample.prompt, *sample.answers))
    return texts + (ceiling.weight(sample.tools) if sample.tools else 0)


def _row(
    known: Survey, number: int, row: dict[str, Any], convert: Callable[[Any], Sample], plan: Plan
) -> Sample | None:
    """Note a row; the sample where it is trained."""
    index = len(known.fates)
    known.meet(number, row)
    sample: Sample | None = None
    try:
        sample = convert(row)
        code = fate(sample, plan.stage)
        if code == KEPT:
            _note(known, index, sample)
            _seen(plan, row, sample)
    except StopsRunError as err:
        code, known.stops[index] = STOPS, str(err)
    known.fates.append(code)
    known.answers.append(min(len(sample.answers), 2) if sample else 0)
    if code == KEPT:
        return sample
    known.texts.append(0)
    known.prompts.append(0)
    return None


def _dated(value: object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= 20 and bool(_DATE.fullmatch(value)))


def _note(known: Survey, index: int, sample: Sample) -> None:
    """Fingerprints of the text and the prompt, and what is odd about the text. Raises StopsRunError."""
    try:
        asked = SEPARATOR.join([content for _, content in sample.prompt])
        answered = SEPARATOR.join([content for _, content in sample.answers])
    except TypeError:
        raise StopsRunError("a turn holds something other than text") from None
    answers = len(sample.answers)
    turns = len(sample.prompt) + answers
    if sample.system:
        asked, turns = f"{sample.system}{SEPARATOR}{asked}", turns + 1
    prompt, answer = asked.encode("utf-8", "surrogatepass"), answered.encode("utf-8", "surrogatepass")
    first = fingerprint(prompt, 0)
    known.prompts.append(first)
    known.texts.append(fingerprint(answer, first))
    for kind in oddities(asked, answered, prompt + _SEPARATOR + answer if answers else prompt, turns, answers):
        known.odd[kind].append(index)


def _seen(plan: Plan, row: dict[str, Any], sample: Sample) -> None:
    """Raises StopsRunError where the row's pictures, films or sound end the run; pre-training reads none."""
    if plan.stage != "pt" and (why := unusable(plan.form, plan.media, row, sample)):
        raise StopsRunError(why)


def _measure(known: Survey, start: int, samples: list[Sample | None], plan: Plan) -> None:
    """Count the tokens of a block at once: tokenizers work on many texts in parallel."""
    pieces = [_pieces(known, index, sample, plan) if sample else () for index, sample in enumerate(samples, start)]
    counts = iter(plan.counter.count([text for row in pieces for texts, _ in row for text in texts]))
    for sample, row in zip(samples, pieces, strict=True):
        sizes = [sum(islice(counts, len(texts)), more) for texts, more in row]
        full, kept, answer, lost = _lengths(sample, sizes, plan) if sample and sizes else (0, 0, 0, 0)
        known.full.append(full)
        known.kept.append(kept)
        known.answer.append(answer)
        known.lost.append(lost)


def _pieces(known: Survey, index: int, sample: Sample, plan: Plan) -> list[Piece]:
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
    except StopsRunError as err:
        known.fates[index], known.stops[index] = STOPS, str(err)
        return []


def _lengths(sample: Sample, sizes: list[int], plan: Plan) -> Lengths:
    extra = int(plan.markup.efficient_eos)
    if plan.stage == "pt":
        return lengths.of_text(sizes[0], plan.limit, plan.packed)
    if plan.stage == "sft":
        pairs = [(sizes[0], sizes[1])] if len(sizes) == 2 else list(zip(sizes[::2], sizes[1::2], strict=True))
        return lengths.of_turns(pairs, plan.limit, extra, plan.markup.mask_history)
    asked = len(sample.prompt)
    return lengths.of_answers(sum(sizes[:asked]), [size + extra for size in sizes[asked:]], plan.limit)
