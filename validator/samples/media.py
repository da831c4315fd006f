"""Pictures, films and sound of a row, for each of which its text needs one mark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from validator.samples.conversion import Sample, converter
from validator.samples.form import form
from validator.samples.outcome import Entry, Row, judge

MARKS = {"images": "<image>", "videos": "<video>", "audios": "<audio>"}


def miscounted(entry: Entry, stage: str, rows: Sequence[Row], part: str) -> str:
    """The first row that is trained and has not as many marks as files; empty where there is none. Plain text is read
    without media. Source: llamafactory/data/mm_plugin.py:MMPluginMixin._validate_messages."""
    meant, mark = form(entry), MARKS[part]
    convert: Callable[[Any], Sample] = converter(meant)
    judged, column = judge(meant, stage), meant.columns.get(part)
    for number, row in enumerate(rows if stage != "pt" else (), 1):
        files = _files(row.get(column)) if column else 0
        if (column or mark in str(row)) and not any(judged(row)):
            marks = next((count for count in _marks(convert(row), mark) if count != files), files)
            if marks != files:
                return f"row {number} has {files:,} {part} and {marks:,} {mark} in its turns; write one for each"
    return ""


def _files(value: object) -> int:
    """How many files a column names: a list of them, one, or none."""
    return len(value) if isinstance(value, list) else int(value is not None)


def _marks(sample: Sample, mark: str) -> list[int]:
    """Marks in the turns up to each answer, with that answer; of a labelled pair the empty one is none."""
    answers: list[Any] = [text for _, text in sample.answers if text] or [""]
    asked = sum(text.count(mark) for _, text in sample.prompt)
    return [asked + text.count(mark) for text in answers]
