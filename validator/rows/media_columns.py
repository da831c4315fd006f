"""Checks of the image, video and audio files of a row, and of the placeholders in its text, one for each file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from validator.rows.converter import Row, Sample
from validator.rows.dataset_attr import MODALITIES, DatasetAttr
from validator.rows.outcomes import row_checker

PLACEHOLDERS = {"images": "<image>", "videos": "<video>", "audios": "<audio>"}


class MediaSupport(NamedTuple):
    """The kinds of media that a template reads (None: not known), the folder that paths in the data count from, and the
    name of the template."""

    kinds: frozenset[str] | None
    folder: str
    template: str = ""


def media_fault(attr: DatasetAttr, media: MediaSupport, row: Row, sample: Sample) -> str:
    """Return why the media of a row end the run; empty if they do not. Source: llamafactory/data/mm_plugin.py,
    MMPluginMixin._validate_input and _validate_messages; data/converter.py, DatasetConverter._find_medias."""
    if media.kinds is None or not (media.kinds or attr.has_media):
        return ""
    for part, mark in PLACEHOLDERS.items():
        column = attr.columns.get(part)
        value = row.get(column) if column else None
        if value and MODALITIES[part] not in media.kinds:
            return f"it holds {part}, which template {media.template} does not take"
        if not media.kinds:  # placeholders are then plain text
            continue
        if why := _placeholder_mismatch(sample, part, mark, _file_count(value)):
            return f"it has {why}"
        if lost := next(missing_media_files(value, media.folder), ""):
            return f"`{lost}` is not in `{media.folder}`; set `media_dir`"
    return ""


def missing_media_files(value: object, folder: str) -> Iterator[str]:
    """Yield the paths in a column of media that are neither in the folder nor in the working directory."""
    return (path for path in media_paths(value) if not _is_file(Path(folder, path)) and not _is_file(Path(path)))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or is none
        return False


def media_paths(value: object) -> Iterator[str]:
    """Yield the paths in a column of media, of files or of the frames of a video."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (path for one in value for path in media_paths(one))


def first_media_fault(attr: DatasetAttr, stage: str, rows: Sequence[Row], part: str) -> str:
    """Return the first row that is trained and has another number of placeholders than of files; empty if there is
    none. Pre-training reads no media. Source: llamafactory/data/mm_plugin.py:MMPluginMixin._validate_messages."""
    check, column, mark = row_checker(attr, stage), attr.columns.get(part), PLACEHOLDERS[part]
    for number, row in enumerate(rows if stage != "pt" else (), 1):
        sample = check(row).sample if column or mark in str(row) else None
        files = _file_count(row.get(column)) if column else 0
        if sample and (why := _placeholder_mismatch(sample, part, mark, files)):
            return f"row {number} has {why}"
    return ""


def _placeholder_mismatch(sample: Sample, part: str, mark: str, files: int) -> str:
    """Return the numbers of files and of placeholders; empty if they agree for each answer with the turns before it.
    The empty answer of a labelled pair is left out."""
    answers: list[Any] = [text for _, text in sample.answers if text] or [""]
    asked = sum(text.count(mark) for _, text in sample.prompt)
    for answer in answers:
        if (marks := asked + answer.count(mark)) != files:
            return f"{files:,} {part} and {marks:,} {mark} in its turns; write one for each"
    return ""


def _file_count(value: object) -> int:
    """Return the number of files that a column names: a list of them, one, or none."""
    return len(value) if isinstance(value, list) else int(value is not None)
