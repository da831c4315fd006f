"""Scans the rows of a data set in one pass, and records for each row its outcome, hashes, token counts and text issues.
Large files of JSON lines are scanned in parts on all CPU cores."""

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

from validator.dataset import data_files, file_parts
from validator.dataset.row_media import NO_MEDIA, RowMedia, read_row_media
from validator.dataset.token_counting import CharacterCounter, TokenCounter
from validator.rows import reading_limits
from validator.rows.converter import FatalRowError, Sample, row_converter
from validator.rows.dataset_attr import DatasetAttr
from validator.rows.media_columns import MediaSupport, media_fault
from validator.rows.outcomes import ENDS_RUN, NON_TEXT_TURN, TRAINED, row_status
from validator.rows.reading_limits import UnreadableError
from validator.run.chat_template import ChatTemplate, TurnTexts, sample_lengths, sample_texts
from validator.run.image_tokens import ImageCounter, ImageTokens

BLOCK_ROWS = 1000  # rows that are counted together, fewer where they are large
# What is kept of a row. `number` is its number in the data set, from 0, `line` the line of its file at which it begins
# (0 in a table), `outcome` a code of rows/outcomes.py, `answers` 0, 1 or 2 for
# more; `issues` are bits in the order of TEXT_ISSUES. `media_hash` identifies its images, videos and sounds. `tokens`
# are those before `cutoff_len`, `kept_tokens` those after. `image_tokens` are those of its images, `tower_tokens` those
# that the vision tower reads. All but number, line, outcome and answers are 0 for a row that is not trained.
ROW = np.dtype(
    [("number", "u4"), ("line", "u4"), ("outcome", "u1"), ("answers", "u1"), ("sample_hash", "u8"),
     ("prompt_hash", "u8"), ("issues", "u1"), ("media_hash", "u8"), ("images", "u2"), ("image_tokens", "u4"),
     ("tower_tokens", "u4"), ("tokens", "u4"), ("kept_tokens", "u4"), ("answer_tokens", "u4"),
     ("cut_answer_tokens", "u4")]
)  # fmt: skip
_MAX_SHAPES = 1000  # combinations of columns and types that are remembered, so that a row like an earlier one is quick
# Issues of the text of one row, and what each means for the training.
TEXT_ISSUES = {
    "empty answers": "answers without text teach the model to stop at once",
    "very short answers": "answers of fewer than 5 characters; right for labels, poor for conversation",
    "control characters": "invisible control characters, which the model learns to write",
    "garbled text": "text that was once read in a wrong encoding",
    "huge rows": "rows of more than a megabyte, most of which is cut off",
    "empty prompts": "rows without a question, whose answers are trained behind an empty prompt",
}
_EMPTY_ANSWER, _SHORT_ANSWER, _CONTROL_CHARACTERS, _GARBLED_TEXT, _HUGE_ROW, _EMPTY_PROMPT = (
    1 << at for at in range(6)
)
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
    """Settings for scanning the rows of a data set. `attr` says how rows are converted (their entry in
    dataset_info.json), `template` how conversations become texts, and `counter` how tokens are counted. `media` says
    which images, videos and audio a row may have. `images` counts the tokens of images; None if they cannot be
    counted."""

    attr: DatasetAttr
    stage: str
    template: ChatTemplate
    counter: TokenCounter
    cutoff_len: int  # tokens
    packing: bool
    media: MediaSupport
    images: ImageCounter | None = None


@dataclass
class ScannedRows:
    """The scanned rows of a data set. `read` rows were read, numbered from 0. Only every `row_step`-th row is kept: row
    n is at index n // row_step. `column_types` holds for each column and type the number of the first row with that
    type. `fatal` holds by row number the reason why a row ends the run. A row that `column_types` or `fatal` names
    takes the place of the nearest kept row, so that it is not lost. `not_dates` are columns with values that are not
    dates. `files` holds each file with the number of its first row. `lines` is the line of the last row in its file.
    `missing` holds by row number the path of a media file that the row names and that is not there. `problems` holds
    file, line and message for files and rows that cannot be read. `uncounted` names the kinds of media
    (images, videos, audios) in the rows whose tokens are not counted. `image_faults` holds for
    images whose size is not known (unread) and that are cut off (cut) their number and the first row that has one."""

    read: int = 0
    row_step: int = 1
    lines: int = 0
    column_types: dict[str, dict[type, int]] = field(default_factory=dict)
    not_dates: set[str] = field(default_factory=set)
    fatal: dict[int, str] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    files: list[tuple[int, Path]] = field(default_factory=list)
    problems: list[tuple[Path, int, str]] = field(default_factory=list)
    tools_approximated: bool = False
    uncounted: set[str] = field(default_factory=set)
    image_faults: dict[str, tuple[int, int]] = field(default_factory=dict)
    _blocks: list[NDArray[Any]] = field(default_factory=list)
    _shapes: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def rows(self) -> NDArray[Any]:
        """The kept rows as a numpy array of the type `ROW`."""
        if len(self._blocks) != 1:
            self._blocks = [np.concatenate(self._blocks) if self._blocks else np.empty(0, ROW)]
        return self._blocks[0]

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def place(self, number: int) -> str:
        """Return `file:line` of the row with this number; `row 12 of file` for a table, or for several rows on a
        line."""
        at = number // self.row_step
        row, near = self.rows[at], self.rows["line"][max(at - 1, 0) : at + 2]
        start, path = next((start, path) for start, path in reversed(self.files) if start <= row["number"])
        if row["line"] and np.count_nonzero(near == row["line"]) == 1:
            return f"{path}:{row['line']}"
        return f"row {row['number'] - start + 1:,} of {path}"

    def count_row(self, row: dict[str, Any]) -> None:
        """Count a row that was read, and record its columns and their types. The caller passes the remaining figures of
        the row to `add_rows` later."""
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

    def record_media(self, number: int, media: RowMedia) -> None:
        """Record the media of row `number` whose tokens are not counted, and the images with a fault."""
        self.uncounted |= media.uncounted
        self._add_image_faults("unread", media.unread, number)
        self._add_image_faults("cut", media.cut, number)

    def _add_image_faults(self, fault: str, images: int, number: int) -> None:
        if images:
            before, first = self.image_faults.get(fault, (0, number))
            self.image_faults[fault] = (before + images, first)

    def add_rows(self, rows: NDArray[Any]) -> None:
        """Append the figures of all rows that `count_row` has counted since the last call of this method."""
        self._blocks.append(rows)
        self.lines = int(rows["line"][-1])

    def extend(self, part: ScannedRows, lines_before: int = 0) -> None:
        """Append the rows of another part of the data set. `lines_before` is the number of lines in the same file that
        precede the part."""
        self.downsample(part.row_step)
        first, step = -self.read % self.row_step // part.row_step, self.row_step // part.row_step
        rows = part.rows
        rows["number"] += self.read
        rows["line"] += lines_before
        self._blocks.append(rows[first::step].copy() if step > 1 else rows)
        keep = list(part.fatal)
        for column, kinds in part.column_types.items():
            kinds_before = self.column_types.get(column, {})
            keep += [number for kind, number in kinds.items() if kind not in kinds_before]
            for kind, number in kinds.items():
                self._learn_type(column, kind, self.read + number)
        self.not_dates |= part.not_dates
        self.fatal.update((self.read + number, why) for number, why in part.fatal.items())
        self.missing.update((self.read + number, path) for number, path in part.missing.items())
        if step > 1 and keep:
            kept, last = self.rows, len(self) - 1
            for number in sorted(keep):
                kept[min((self.read + number) // self.row_step, last)] = rows[number // part.row_step]
        self.problems += [(path, line + lines_before if line else 0, why) for path, line, why in part.problems]
        self.tools_approximated |= part.tools_approximated
        self.uncounted |= part.uncounted
        for fault, (images, number) in part.image_faults.items():
            self._add_image_faults(fault, images, self.read + number)
        self.read += part.read
        self.lines = lines_before + part.lines
        while len(self) > reading_limits.MAX_SCANNED_ROWS:
            self.downsample(2 * self.row_step)

    def downsample(self, row_step: int) -> None:
        """Keep only every `row_step`-th row; `row_step` is a power of two. A row that would end the run, or is the
        first with a column type, replaces the kept row before it, so that it is not lost."""
        while self.row_step < row_step:
            rows = self.rows
            firsts = (number for kinds in self.column_types.values() for number in kinds.values())
            for number in (*firsts, *self.fatal):
                at = min(number // self.row_step, len(rows) - 1)
                rows[at - at % 2] = rows[at]
            self._blocks = [rows[::2].copy()]
            self.row_step *= 2


def _scan_span(path: Path, settings: ScanSettings, span: tuple[int, int]) -> ScannedRows:
    """Return the scanned rows of a part of a file, up to the first row that cannot be read. `span` is the start and end
    of the part in bytes. No progress is reported, because a worker process has no terminal."""
    rows = ScannedRows()
    for part in _scan_blocks(path, settings, lambda _rows: None, span):
        rows.extend(part)
    return rows


def _scan_blocks(
    path: Path, settings: ScanSettings, report: OnRows, span: tuple[int, int] | None = None
) -> Iterator[ScannedRows]:
    """Yield the scanned rows of a file in blocks, up to the first row that cannot be read. `span` restricts the scan to
    a part of the file, as start and end in bytes."""
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
        yield ScannedRows(problems=[(path, err.line, f"{err.where} {err}".lstrip())])


# The fields of ROW before those of tokens, the sample of a row that is trained, the bytes of its text and tools, and
# its media.
_ScannedRow = tuple[tuple[int, ...], Sample | None, int, RowMedia]


def _scan_row(
    part: ScannedRows, line: int, row: dict[str, Any], convert: Callable[[Any], Sample], settings: ScanSettings
) -> _ScannedRow:
    """Return the figures of a row, its converted sample (None if the row is not trained on), and the size of its text
    in bytes. `line` is the row's line in its file. Record in `part` the row's columns and, if the row ends the run, the
    reason."""
    number = part.read
    part.count_row(row)
    sample: Sample | None = None
    sample_hash = prompt_hash = issues = size = 0
    media = NO_MEDIA
    try:
        sample = convert(row)
        status = row_status(sample, settings.stage)
        if status == TRAINED:
            sample_hash, prompt_hash, issues, size = _hashes_and_issues(sample)
            size += reading_limits.approximate_size(sample.tools) if sample.tools else 0
            if settings.stage != "pt" and (fault := media_fault(settings.attr, settings.media, row, sample)):
                if fault.missing:
                    part.missing[number] = fault.missing
                raise FatalRowError(fault.message)
            if settings.attr.has_media and settings.stage != "pt":
                media = read_row_media(settings.attr, settings.media.folder, row, settings.images)
                sample_hash, prompt_hash = sample_hash ^ media.hash, prompt_hash ^ media.hash
                part.record_media(number, media)
    except FatalRowError as err:
        status, part.fatal[number] = ENDS_RUN, str(err)
    answers = min(len(sample.answers), 2) if sample else 0
    tokens = [sum(each) for each in zip(*media.images, strict=True)] or [0, 0]
    figures = (number, line, status, answers, sample_hash, prompt_hash, issues, media.hash, len(media.images), *tokens)
    return figures, sample if status == TRAINED else None, size, media


def _is_date_or_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= 20 and bool(_ARROW_DATE.fullmatch(value)))


def _hashes_and_issues(sample: Sample) -> tuple[int, int, int, int]:
    """Return the 64-bit hash of the whole text, the 64-bit hash of the prompt, the issues of the text as bits, and the
    size of the text in bytes. Raises FatalRowError if a turn is not text.

    Collisions are negligible: among 40 million data sets of a million different texts each, one data set has two texts
    with the same hash."""
    try:
        question = _TURN_SEPARATOR.join([content for _, content in sample.prompt])
        answer_text = _TURN_SEPARATOR.join([content for _, content in sample.answers])
    except TypeError:
        raise FatalRowError(NON_TEXT_TURN) from None
    answers = len(sample.answers)
    turns = len(sample.prompt) + answers
    no_prompt = _EMPTY_PROMPT if answers and not question.strip(_BLANK_CHARACTERS) else 0
    if sample.system:
        question, turns = f"{sample.system}{_TURN_SEPARATOR}{question}", turns + 1
    prompt, answer = question.encode("utf-8", "surrogatepass"), answer_text.encode("utf-8", "surrogatepass")
    data = prompt + _TURN_SEPARATOR.encode() + answer if answers else prompt
    prompt_hash = xxh3_64_intdigest(prompt)
    sample_hash = xxh3_64_intdigest(answer, prompt_hash)
    issues = no_prompt | _text_issues(question, answer_text, data, turns, answers)
    return sample_hash, prompt_hash, issues, len(data)


def _text_issues(question: str, answer_text: str, data: bytes, turns: int, answers: int) -> int:
    """Return the issues of a row as bits, in the order of TEXT_ISSUES. `data` is prompt and answers in UTF-8, with a
    control character as separator between turns. A row with `turns` turns therefore has `turns` - 1 control characters
    that are no issue. `answers` is the number of answers."""
    issues = 0
    if len(answer_text) < 2 * _SHORT_ANSWER_CHARACTERS and answers:
        bare = answer_text.strip(_BLANK_CHARACTERS)
        if len(bare) < _SHORT_ANSWER_CHARACTERS:
            issues |= _SHORT_ANSWER if bare else _EMPTY_ANSWER
    if len(data.translate(None, _PRINTABLE_BYTES)) >= turns:
        issues |= _CONTROL_CHARACTERS
    if not (question.isascii() and answer_text.isascii()) and (_is_garbled(question) or _is_garbled(answer_text)):
        issues |= _GARBLED_TEXT
    if len(data) > _HUGE_ROW_BYTES:
        issues |= _HUGE_ROW
    return issues


def _is_garbled(text: str) -> bool:
    """Return True if the text was decoded with a wrong encoding. The regular expression runs only if one of its
    beginnings is found in the text, which is much faster."""
    hint = "\ufffd" in text or "Ã" in text or "Â" in text or "â€" in text or "锟斤拷" in text
    return hint and _WRONG_ENCODING.search(text) is not None


def _with_tokens(part: ScannedRows, block: list[_ScannedRow], settings: ScanSettings) -> NDArray[Any]:
    """Return the figures of a block of rows with their token counts added. All texts of the block are counted together,
    because tokenizers process many texts in parallel."""
    texts = [
        _template_texts(part, at, sample, settings, media.images) if sample else []
        for at, (_, sample, _, media) in enumerate(block)
    ]
    counts = iter(settings.counter.count([text for turns in texts for pieces, _ in turns for text in pieces]))
    records = []
    for (figures, sample, *_), turns in zip(block, texts, strict=True):
        sizes = [sum(islice(counts, len(pieces)), added_tokens) for pieces, added_tokens in turns]
        lengths = (0, 0, 0, 0)
        if sample and sizes:
            limit = settings.cutoff_len
            lengths = sample_lengths(settings.template, sample, sizes, settings.stage, settings.packing, limit)
        records.append((*figures, *lengths))
    rows = np.array(records, ROW)
    rows["outcome"][list(part.fatal)] = ENDS_RUN
    return rows


def _template_texts(
    part: ScannedRows, number: int, sample: Sample, settings: ScanSettings, images: Sequence[ImageTokens]
) -> list[TurnTexts]:
    """Return for each turn of a sample the texts to tokenize. Return an empty list if the template cannot encode the
    sample; `part` then records the reason for the row with this `number`."""
    turns = [*sample.prompt, *sample.answers[:1]]
    if settings.stage != "pt" and (sample.tools or (len(turns) > 2 and any(role == "function" for role, _ in turns))):
        part.tools_approximated = True
    front = settings.images is not None and settings.images.in_front
    try:
        return sample_texts(settings.template, sample, settings.stage, images, front)
    except FatalRowError as err:
        part.fatal[number] = str(err)
        return []


# Objects made between two searches for garbage cycles. Rows have no cycles; with Python's own threshold of 700,
# searches that find nothing take a quarter of the time of tiny rows.
_GC_THRESHOLD = 20_000


def scan_dataset(files: Sequence[Path], settings: ScanSettings, report: OnRows) -> ScannedRows:
    """Scan all files of a data set and return their rows. The scan stops at the first file or row that cannot be read,
    because LLaMA-Factory then loads nothing. `report` is called with the number of rows read since the last call."""
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
    """Yield the scanned parts of a file, each with a truth value: True if the line numbers in the part count from the
    start of the part, False if they count from the start of the file. Several processes read the parts of a large file.
    With a real tokenizer, which keeps all CPU cores busy by itself, this process reads the whole file."""
    spans = file_parts.line_spans(path) if isinstance(settings.counter, CharacterCounter) else []
    if len(spans) < 2:
        yield from ((part, False) for part in _scan_blocks(path, settings, report))
        return
    for part in file_parts.results_in_order(_scan_span, [(path, settings, span) for span in spans]):
        report(part.read)
        yield part, True
