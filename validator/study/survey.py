"""One pass over the rows of a data set: what becomes of each, how long it is, and what is odd about it."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from validator.samples.conversion import Sample, StopsRunError, converter
from validator.samples.fate import KEPT, STOPS, fate
from validator.samples.form import Form
from validator.samples.media import Media, unusable
from validator.study import lengths, reading
from validator.study.fingerprint import fingerprint
from validator.study.lengths import Lengths
from validator.study.markup import Markup, Piece
from validator.study.oddity import KINDS, SEPARATOR, oddities
from validator.study.tokens import Counter
from validator.study.values import UnreadableError

_BLOCK = 1000
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
    """What is known of each row, in the order of the data; tokens of rows that are not trained are 0."""

    numbers: array[int] = field(default_factory=lambda: array("I"))
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
    undated: set[str] = field(default_factory=set)
    files: list[tuple[int, Path]] = field(default_factory=list)
    problems: list[tuple[Path, int, str]] = field(default_factory=list)
    lines: int = 0
    approximate: bool = False

    def __len__(self) -> int:
        return len(self.fates)

    def place(self, index: int) -> str:
        """`file:row` of a row."""
        path = next(path for start, path in reversed(self.files) if start <= index)
        return f"{path}:{self.numbers[index]}"

    def meet(self, number: int, row: dict[str, Any]) -> None:
        """Note the number and the columns of the next row."""
        self.shapes.setdefault((*row, *map(type, row.values())), len(self.fates))
        if not self.undated.issuperset(row):
            self.undated.update(name for name, value in row.items() if not _dated(value))
        self.numbers.append(number)

    def extend(self, other: Survey, continues: bool = False) -> None:
        """Append another part. `continues`: it is a later part of the same file."""
        start, lines = len(self), self.lines if continues else 0
        self.numbers.extend(other.numbers if not lines else array("I", (n + lines for n in other.numbers)))
        for name in ("fates", "answers", "texts", "prompts", "full", "kept", "answer", "lost"):
            getattr(self, name).extend(getattr(other, name))
        for kind, indices in other.odd.items():
            self.odd[kind].extend(start + index for index in indices)
        self.stops.update((start + index, why) for index, why in other.stops.items())
        for shape, index in other.shapes.items():
            self.shapes.setdefault(shape, start + index)
        self.undated |= other.undated
        self.files += [] if continues else [(start + at, path) for at, path in other.files]
        self.problems += [(path, row + lines if row else 0, why) for path, row, why in other.problems]
        self.lines = lines + other.lines
        self.approximate |= other.approximate


def survey(path: Path, plan: Plan, report: Report, span: tuple[int, int] | None = None) -> Survey:
    """The rows of one file, or of a part of it in bytes, up to the first that cannot be read."""
    known = Survey(files=[(0, path)] if not span or not span[0] else [])
    convert, rows = converter(plan.form), reading.rows(path, span)
    while True:
        start, samples = len(known), []
        try:
            for number, row in islice(rows, _BLOCK):
                known.lines = number
                samples.append(_row(known, number, row, convert, plan))
        except UnreadableError as err:
            known.problems.append((path, err.row, str(err)))
        _measure(known, start, samples, plan)
        report(len(samples))
        if len(samples) < _BLOCK:
            return known


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
