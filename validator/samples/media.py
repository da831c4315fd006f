"""Pictures, films and sound of a row, for each of which its text needs one mark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from validator.samples.conversion import Sample, converter
from validator.samples.form import Form, form
from validator.samples.outcome import Entry, Row, judge

MARKS = {"images": "<image>", "videos": "<video>", "audios": "<audio>"}
KINDS = {"images": "image", "videos": "video", "audios": "audio"}  # column -> what a template says it reads


class Media(NamedTuple):
    """What a template reads beside text, and the folder that paths in the data count from."""

    kinds: frozenset[str]
    folder: str


def unusable(meant: Form, media: Media, row: Row, sample: Sample) -> str:
    """Why the media of a row end the run; empty where they do not. Source: llamafactory/data/mm_plugin.py,
    MMPluginMixin._validate_messages, and llamafactory/data/converter.py, DatasetConverter._find_medias."""
    for part, mark in MARKS.items() if media.kinds else ():
        column = meant.columns.get(part)
        value = row.get(column) if column else None
        if why := _uneven(sample, part, mark, _files(value)):
            return f"it has {why}"
        if lost := next(lost_files(value, media.folder), ""):
            return f"`{lost}` is not in `{media.folder}`; set `media_dir`"
    return ""


def lost_files(value: object, folder: str) -> Iterator[str]:
    """Paths in a column of media that are neither in the folder nor in the working directory."""
    return (path for path in paths(value) if not _there(Path(folder, path)) and not _there(Path(path)))


def _there(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or is none
        return False


def paths(value: object) -> Iterator[str]:
    """Paths in a column of media: of files, or of the frames of films."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (path for one in value for path in paths(one))


def miscounted(entry: Entry, stage: str, rows: Sequence[Row], part: str) -> str:
    """The first row that is trained and has not as many marks as files; empty where there is none. Plain text is read
    without media. Source: llamafactory/data/mm_plugin.py:MMPluginMixin._validate_messages."""
    meant, mark = form(entry), MARKS[part]
    convert: Callable[[Any], Sample] = converter(meant)
    judged, column = judge(meant, stage), meant.columns.get(part)
    for number, row in enumerate(rows if stage != "pt" else (), 1):
        files = _files(row.get(column)) if column else 0
        if (column or mark in str(row)) and not any(judged(row)) and (why := _uneven(convert(row), part, mark, files)):
            return f"row {number} has {why}"
    return ""


def _uneven(sample: Sample, part: str, mark: str, files: int) -> str:
    """Files and marks, where they differ in number."""
    marks = next((count for count in _marks(sample, mark) if count != files), files)
    return f"{files:,} {part} and {marks:,} {mark} in its turns; write one for each" if marks != files else ""


def _files(value: object) -> int:
    """How many files a column names: a list of them, one, or none."""
    return len(value) if isinstance(value, list) else int(value is not None)


def _marks(sample: Sample, mark: str) -> list[int]:
    """Marks in the turns up to each answer, with that answer; of a labelled pair the empty one is none."""
    answers: list[Any] = [text for _, text in sample.answers if text] or [""]
    asked = sum(text.count(mark) for _, text in sample.prompt)
    return [asked + text.count(mark) for text in answers]
