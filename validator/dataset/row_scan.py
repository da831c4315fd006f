"""One pass over the rows of a data set: outcome, hashes, token counts and text issues of each row. Large files of JSON
lines are scanned in parts, on all cores."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from validator.dataset import data_files, file_parts, sequence_lengths
from validator.dataset.chat_template import ChatTemplate, TurnTexts
from validator.dataset.sequence_lengths import SampleLengths
from validator.dataset.token_counting import CharacterCounter, TokenCounter
from validator.rows import reading_limits
from validator.rows.converter import FatalRowError, Sample, row_converter
from validator.rows.dataset_attr import DatasetAttr
from validator.rows.media_columns import MediaSupport, media_fault
from validator.rows.outcomes import ENDS_RUN, NON_TEXT_TURN, TRAINED, row_status
from validator.rows.reading_limits import UnreadableError

BLOCK_ROWS = 1000  # rows that are counted together, fewer where they are large
# What is kept of a row. `line` is its number in the file, `outcome` a code of rows/outcomes.py, `answers` 0, 1 or 2 for
# more; `issues` are bits in the order of TEXT_ISSUES. `tokens` are those before `cutoff_len`, `kept_tokens` those
# after. All but line, outcome and answers are 0 for a row that is not trained.
ROW = np.dtype(
    [("line", "u8"), ("outcome", "u1"), ("answers", "u1"), ("sample_hash", "u8"), ("prompt_hash", "u8"),
     ("issues", "u1"), ("tokens", "u4"), ("kept_tokens", "u4"), ("answer_tokens", "u4"), ("cut_answer_tokens", "u4")]
)  # fmt: skip
_MAX_SHAPES = 1000  # combinations of columns and types that are remembered, so that a row like an earlier one is quick
# Issues of the text of one row, and what each means for the training.
TEXT_ISSUES = {
    "empty answers": "answers without text teach the model to stop at once",
    "very short answers": "answers of fewer than 5 characters; right for labels, poor for conversation",
    "control characters": "invisible control characters, which the model learns to write",
    "garbled text": "text that was once read in a wrong encoding",
    "huge rows": "rows of more than a megabyte, most of which is cut off",
}
_EMPTY_ANSWER, _SHORT_ANSWER, _CONTROL_CHARACTERS, _GARBLED_TEXT, _HUGE_ROW = (1 << at for at in range(5))
_TURN_SEPARATOR = "\x1e"  # stands between the turns of a row where these are joined; no text should hold it
_SHORT_ANSWER_CHARACTERS = 5  # an answer of fewer characters is very short
_HUGE_ROW_BYTES = 1_000_000  # a row of more bytes is huge
_BLANK_CHARACTERS = f"{_TURN_SEPARATOR} \t\r\n"
# All bytes but control characters. Tab, line feed and carriage return do no harm.
_PRINTABLE_BYTES = bytes(set(range(256)) - set(range(32)) - {127}) + b"\t\n\r"
# The replacement character, and UTF-8 read as Latin-1, Windows-1252 or GBK.
_WRONG_ENCODING = re.compile("\ufffd|锟斤拷|[ÃÂ][\u0080-\u00bf]|â€")
# What Arrow's JSON reader takes for a date. A column that holds nothing else is not text.
_ARROW_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d(:?\d\d(:?\d\d)?)?Z?)?")
OnRows = Callable[[int], None]  # called with how many more rows are done


class ScanSettings(NamedTuple):
    """How the rows of a data set are converted, judged and counted."""

    attr: DatasetAttr
    stage: str
    template: ChatTemplate
    counter: TokenCounter
    cutoff_len: int  # tokens
    packing: bool
    media: MediaSupport


@dataclass
class ScannedRows:
    """The rows of a data set. Of `read` rows, numbered from 0, every `row_step`-th is kept: row n is at n // row_step.

    `column_types`: for each column, the number of the first row that shows a type. `fatal`: why a row ends the run, by
    its number. Rows that these two name replace the kept row beside them. `not_dates`: columns with other values than
    dates. `files`: each file with the number of its first row. `lines`: the line of the last row in its file.
    `problems`: file, line and message of what cannot be read."""

    read: int = 0
    row_step: int = 1
    lines: int = 0
    column_types: dict[str, dict[type, int]] = field(default_factory=dict)
    not_dates: set[str] = field(default_factory=set)
    fatal: dict[int, str] = field(default_factory=dict)
    files: list[tuple[int, Path]] = field(default_factory=list)
    problems: list[tuple[Path, int, str]] = field(default_factory=list)
    tools_approximated: bool = False
    _blocks: list[NDArray[Any]] = field(default_factory=list)
    _shapes: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def rows(self) -> NDArray[Any]:
        """The rows that are kept, as an array of ROW."""
        if len(self._blocks) != 1:
            self._blocks = [np.concatenate(self._blocks) if self._blocks else np.empty(0, ROW)]
        return self._blocks[0]

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def place(self, number: int) -> str:
        """Return `file:line` of a row by its number."""
        path = next(path for start, path in reversed(self.files) if start <= number)
        return f"{path}:{self.rows[number // self.row_step]['line']}"

    def count_row(self, row: dict[str, Any]) -> None:
        """Count a row, and note its columns and their types. The rest of it follows with `add_rows`."""
        shape = (*row, *map(type, row.values()))
        if shape not in self._shapes:
            if len(self._shapes) < _MAX_SHAPES:
                self._shapes.add(shape)
            for name, value in row.items():
                self._learn_type(name, type(value), self.read)
        if not self.not_dates.issuperset(row):
            self.not_dates.update(name for name, value in row.items() if not _is_date_or_empty(value))
        self.read += 1

    def _learn_type(self, column: str, kind: type, number: int) -> None:
        self.column_types.setdefault(column, {}).setdefault(kind, number)
        if len(self.column_types) > reading_limits.MAX_COLUMNS:
            raise reading_limits.too_many_columns(len(self.column_types))

    def add_rows(self, rows: NDArray[Any]) -> None:
        """Append the rows that were counted since the last call."""
        self._blocks.append(rows)
        self.lines = int(rows["line"][-1])

    def extend(self, other: ScannedRows, lines_before: int = 0) -> None:
        """Append the rows of another part of the data; `lines_before` are the lines of its file in front of the
        part."""
        self.downsample(other.row_step)
        first, step = -self.read % self.row_step // other.row_step, self.row_step // other.row_step
        rows = other.rows
        rows["line"] += lines_before
        self._blocks.append(rows[first::step].copy() if step > 1 else rows)
        keep = list(other.fatal)
        for column, kinds in other.column_types.items():
            known = self.column_types.get(column, {})
            keep += [number for kind, number in kinds.items() if kind not in known]
            for kind, number in kinds.items():
                self._learn_type(column, kind, self.read + number)
        self.not_dates |= other.not_dates
        self.fatal.update((self.read + number, why) for number, why in other.fatal.items())
        if step > 1 and keep:
            kept, last = self.rows, len(self) - 1
            for number in sorted(keep):
                kept[min((self.read + number) // self.row_step, last)] = rows[number // other.row_step]
        self.problems += [(path, line + lines_before if line else 0, why) for path, line, why in other.problems]
        self.tools_approximated |= other.tools_approximated
        self.read += other.read
        self.lines = lines_before + other.lines
        while len(self) > reading_limits.MAX_SCANNED_ROWS:
            self.downsample(2 * self.row_step)

    def downsample(self, row_step: int) -> None:
        """Keep only every `row_step`-th row; `row_step` is a power of two. A row that would end the run, or that shows
        a column type for the first time, replaces the kept row before it, so that it is not lost."""
        while self.row_step < row_step:
            rows = self.rows
            firsts = (number for kinds in self.column_types.values() for number in kinds.values())
            for number in (*firsts, *self.fatal):
                at = min(number // self.row_step, len(rows) - 1)
                rows[at - at % 2] = rows[at]
            self._blocks = [rows[::2].copy()]
            self.row_step *= 2


def _scan_span(path: Path, settings: ScanSettings, span: tuple[int, int]) -> ScannedRows:
    """Return the rows of a part of a file, in bytes, up to the first row that cannot be read. It reports no progress,
    for only the first process has a terminal."""
    rows = ScannedRows()
    for part in _scan_blocks(path, settings, lambda _rows: None, span):
        rows.extend(part)
    return rows


def _scan_blocks(
    path: Path, settings: ScanSettings, report: OnRows, span: tuple[int, int] | None = None
) -> Iterator[ScannedRows]:
    """Yield the rows of one file, or of a part of it in bytes, in blocks, up to the first row that cannot be read."""
    convert, part = row_converter(settings.attr), ScannedRows()

    def scanned() -> Iterator[_ScannedRow]:
        for line, row in data_files.read_rows(path, span):
            yield _scan_row(part, line, row, convert, settings)

    try:
        for block in reading_limits.blocks(scanned(), BLOCK_ROWS, itemgetter(2)):
            part.add_rows(_with_tokens(part, block, settings))
            yield part
            report(len(block))
            part = ScannedRows()
    except UnreadableError as err:
        yield ScannedRows(problems=[(path, err.row, str(err))])


# The fields of ROW before those of tokens, the sample of a row that is trained, and the bytes of its text and tools.
_ScannedRow = tuple[tuple[int, ...], Sample | None, int]


def _scan_row(
    part: ScannedRows, line: int, row: dict[str, Any], convert: Callable[[Any], Sample], settings: ScanSettings
) -> _ScannedRow:
    """Return the figures of a row, its sample and its size. Note in `part` its columns, and why it ends the run if it
    does."""
    number = part.read
    part.count_row(row)
    sample: Sample | None = None
    sample_hash = prompt_hash = issues = size = 0
    try:
        sample = convert(row)
        status = row_status(sample, settings.stage)
        if status == TRAINED:
            sample_hash, prompt_hash, issues, size = _hashes_and_issues(sample)
            size += reading_limits.approximate_size(sample.tools) if sample.tools else 0
            if settings.stage != "pt" and (why := media_fault(settings.attr, settings.media, row, sample)):
                raise FatalRowError(why)
    except FatalRowError as err:
        status, part.fatal[number] = ENDS_RUN, str(err)
    answers = min(len(sample.answers), 2) if sample else 0
    figures = (line, status, answers, sample_hash, prompt_hash, issues)
    return figures, sample if status == TRAINED else None, size


def _is_date_or_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= 20 and bool(_ARROW_DATE.fullmatch(value)))


def _hashes_and_issues(sample: Sample) -> tuple[int, int, int, int]:
    """Return the 64-bit hashes of the whole text and of the prompt, the issues of the text as bits, and its bytes.
    Raises FatalRowError.

    Of 40 million data sets of a million different texts each, one has two texts with the same hash."""
    try:
        asked = _TURN_SEPARATOR.join([content for _, content in sample.prompt])
        answered = _TURN_SEPARATOR.join([content for _, content in sample.answers])
    except TypeError:
        raise FatalRowError(NON_TEXT_TURN) from None
    answers = len(sample.answers)
    turns = len(sample.prompt) + answers
    if sample.system:
        asked, turns = f"{sample.system}{_TURN_SEPARATOR}{asked}", turns + 1
    prompt, answer = asked.encode("utf-8", "surrogatepass"), answered.encode("utf-8", "surrogatepass")
    whole = prompt + _TURN_SEPARATOR.encode() + answer if answers else prompt
    prompt_hash = xxh3_64_intdigest(prompt)
    sample_hash = xxh3_64_intdigest(answer, prompt_hash)
    return sample_hash, prompt_hash, _text_issues(asked, answered, whole, turns, answers), len(whole)


def _text_issues(asked: str, answered: str, data: bytes, turns: int, answers: int) -> int:
    """Return the issues of a row as bits, in the order of TEXT_ISSUES. `data`: prompt and answers in UTF-8, with a
    separator between all turns, so that of `turns` turns fewer than that many control characters are separators."""
    issues = 0
    if len(answered) < 2 * _SHORT_ANSWER_CHARACTERS and answers:
        bare = answered.strip(_BLANK_CHARACTERS)
        if len(bare) < _SHORT_ANSWER_CHARACTERS:
            issues |= _SHORT_ANSWER if bare else _EMPTY_ANSWER
    if len(data.translate(None, _PRINTABLE_BYTES)) >= turns:
        issues |= _CONTROL_CHARACTERS
    if not (asked.isascii() and answered.isascii()) and (_is_garbled(asked) or _is_garbled(answered)):
        issues |= _GARBLED_TEXT
    if len(data) > _HUGE_ROW_BYTES:
        issues |= _HUGE_ROW
    return issues


def _is_garbled(text: str) -> bool:
    """Return True if a text was read in a wrong encoding. The pattern is tried only where one of its beginnings is
    found, which is far quicker."""
    hint = "\ufffd" in text or "Ã" in text or "Â" in text or "â€" in text or "锟斤拷" in text
    return hint and _WRONG_ENCODING.search(text) is not None


def _with_tokens(part: ScannedRows, block: list[_ScannedRow], settings: ScanSettings) -> NDArray[Any]:
    """Return the rows of a block with their tokens, counted at once: tokenizers work on many texts in parallel."""
    texts = [_template_texts(part, at, sample, settings) if sample else [] for at, (_, sample, _) in enumerate(block)]
    counts = iter(settings.counter.count([text for turns in texts for pieces, _ in turns for text in pieces]))
    records = []
    for (figures, sample, _), turns in zip(block, texts, strict=True):
        sizes = [sum(islice(counts, len(pieces)), more) for pieces, more in turns]
        lengths = _sample_lengths(sample, sizes, settings) if sample and sizes else (0, 0, 0, 0)
        records.append((*figures, *lengths))
    rows = np.array(records, ROW)
    rows["outcome"][list(part.fatal)] = ENDS_RUN
    return rows


def _template_texts(part: ScannedRows, number: int, sample: Sample, settings: ScanSettings) -> list[TurnTexts]:
    """Return the texts of a sample that are tokenized, turn by turn; none if the template cannot take the sample, which
    is noted in `part`."""
    if settings.stage == "pt":
        return [([sample.prompt[0][1]], 1)]
    answers = [answer for answer in sample.answers if answer[1]] if settings.stage == "kto" else sample.answers
    turns = [*sample.prompt, *(answers[:1] or sample.answers[:1] or [("assistant", "")])]
    if sample.tools or (len(turns) > 2 and any(role == "function" for role, _ in turns)):
        part.tools_approximated = True
    try:
        given = settings.template.encode(turns, sample.system, sample.tools, settings.stage == "sft")
        if settings.stage in ("dpo", "rm"):
            second = [*sample.prompt, sample.answers[1]]
            given += settings.template.encode(second, sample.system, sample.tools, False)[-1:]
        return given
    except FatalRowError as err:
        part.fatal[number] = str(err)
        return []


def _sample_lengths(sample: Sample, sizes: list[int], settings: ScanSettings) -> SampleLengths:
    """Return the lengths of a sample; `sizes` are the tokens of its turns."""
    extra = int(settings.template.efficient_eos)
    if settings.stage == "pt":  # packed texts are cut into blocks later and lose nothing here
        kept = sizes[0] if settings.packing else min(sizes[0], settings.cutoff_len)
        return sizes[0], kept, sizes[0], sizes[0] - kept
    if settings.stage == "sft":
        pairs = [(sizes[0], sizes[1])] if len(sizes) == 2 else list(zip(sizes[::2], sizes[1::2], strict=True))
        return sequence_lengths.turn_lengths(pairs, settings.cutoff_len, extra, settings.template.mask_history)
    asked = len(sample.prompt)
    answers = [size + extra for size in sizes[asked:]]
    return sequence_lengths.answer_lengths(sum(sizes[:asked]), answers, settings.cutoff_len)


# Objects made between two searches for garbage cycles. Rows have no cycles; with Python's own threshold of 700,
# searches that find nothing take a quarter of the time of tiny rows.
_GC_THRESHOLD = 20_000


def scan_dataset(files: Sequence[Path], settings: ScanSettings, report: OnRows) -> ScannedRows:
    """Return all rows of the files of a data set, up to the first file or row that cannot be read: with one,
    LLaMA-Factory loads nothing."""
    gc.set_threshold(_GC_THRESHOLD)
    rows = ScannedRows()
    for path in files:
        rows.files.append((rows.read, path))
        rows.lines = 0
        for part, is_span in _scan_file(path, settings, report):
            rows.extend(part, rows.lines if is_span else 0)
            if part.problems:
                return rows
    return rows


def _scan_file(path: Path, settings: ScanSettings, report: OnRows) -> Iterator[tuple[ScannedRows, bool]]:
    """Yield the parts of a file, and whether the lines of a part count from its own beginning. A real tokenizer keeps
    all cores busy, so with one the file is read by this process."""
    spans = file_parts.line_spans(path) if isinstance(settings.counter, CharacterCounter) else []
    if len(spans) < 2:
        yield from ((part, False) for part in _scan_blocks(path, settings, report))
        return
    for part in file_parts.results_in_order(_scan_span, [(path, settings, span) for span in spans]):
        report(part.read)
        yield part, True
