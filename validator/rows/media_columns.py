"""Checks of the image, video and audio files that a row names, and of the placeholders for them in the row's text, one
per file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from validator.recipe import safe_read
from validator.rows.converter import Row, Sample
from validator.rows.dataset_attr import MODALITIES, DatasetAttr
from validator.rows.outcomes import row_checker

PLACEHOLDERS = {"images": "<image>", "videos": "<video>", "audios": "<audio>"}


class MediaSupport(NamedTuple):
    """What a recipe accepts as media. `kinds`: the media that its template accepts (image, video, audio); None if not
    known. `folder`: the folder to which paths in the data are relative. `template`: the template's name."""

    kinds: frozenset[str] | None
    folder: str
    template: str = ""


class MediaFault(NamedTuple):
    """Why LLaMA-Factory stops at the media of a row, as text for a message. `missing`: the path of the file that it
    does not find; empty for another reason."""

    message: str
    missing: str = ""


def media_fault(attr: DatasetAttr, media: MediaSupport, row: Row, sample: Sample) -> MediaFault | None:
    """Return why LLaMA-Factory stops at the media of a row; None if it does not stop. Source:
    llamafactory/data/mm_plugin.py, MMPluginMixin._validate_input and _validate_messages; data/converter.py,
    DatasetConverter._find_medias."""
    if media.kinds is None or not (media.kinds or attr.has_media):
        return None
    for part, mark in PLACEHOLDERS.items():
        column = attr.columns.get(part)
        value = row.get(column) if column else None
        if value and MODALITIES[part] not in media.kinds:
            return MediaFault(f"it holds {part}, which template {media.template} does not take")
        if not media.kinds:  # placeholders are then plain text
            continue
        if why := _placeholder_mismatch(sample, part, mark, _file_count(value)):
            return MediaFault(f"it has {why}")
        if lost := next(missing_media_files(value, media.folder), ""):
            return MediaFault(f"`{lost}` is not in `{_shortest(Path(media.folder))}`", lost)
    return None


def missing_media_files(value: object, folder: str) -> Iterator[str]:
    """Yield the paths of files that exist neither in `folder` nor in the working directory. `value`: a row's value in a
    column of images, videos or audios."""
    return (path for path in media_paths(value) if not _is_file(Path(folder, path)) and not _is_file(Path(path)))


_MAX_FOLDERS = 300  # that are searched for a missing file
_MAX_ENTRIES = 10_000  # of one folder that are looked at
_MAX_TRIED = 100  # missing files that are looked for in a folder that has the first


def missing_media_remedy(missing: Sequence[str], total: int, near: Sequence[Path]) -> str:
    """Return what to do about missing files, as text for a message: another `media_dir` if most of the `total` files
    are missing, else the files themselves. `near`: folders that are searched, with the folder above each, and those up
    to two levels below."""
    if 2 * len(missing) <= total:
        return "add the file, or remove the row" if len(missing) == 1 else "add the files, or remove the rows"
    path, sample = missing[0], missing[:_MAX_TRIED]
    it = "it" if len(missing) == 1 else "them"
    unknown = f"add {it} there, or set `media_dir` to the folder that holds {it}"
    if Path(path).is_absolute():
        return "write paths relative to a folder, and set `media_dir` to that folder"
    if found := media_dir_with(path, near):
        finds_most = 2 * sum(_is_file(found / each) for each in sample) > len(sample)
        return f"set `media_dir: {_shortest(found)}`" if finds_most else unknown
    name = Path(path).name
    if found := next((place for place in _folders_around(near) if _is_file(place / name)), None):
        where = _shortest(found)
        return f"`{where}` holds a file of this name: write `{name}` in the data, and set `media_dir: {where}`"
    return unknown


def media_dir_with(path: str, near: Sequence[Path]) -> Path | None:
    """Return the folder among and around `near` with which a file would be found; None if there is none. An absolute
    path needs no folder."""
    places = () if Path(path).is_absolute() else _folders_around(near)
    return next((place for place in places if _is_file(place / path)), None)


def media_dir_of_rows(attr: DatasetAttr, rows: Sequence[Row], data: Path, folder: Path | None = None) -> Path | None:
    """Return the folder with which the first image, video or sound of the rows is found, which may be the working
    directory; None if it is found in `folder`, or nowhere. `data`: the file or folder of the rows."""
    columns = [attr.columns.get(part) or "" for part in PLACEHOLDERS]
    path = next((path for row in rows for column in columns for path in media_paths(row.get(column))), "")
    if not path or (folder and _is_file(folder / path)):
        return None
    return media_dir_with(path, (data.parent, Path()))


def _folders_around(near: Sequence[Path]) -> Iterator[Path]:
    """Yield these folders, the folder above each, and those up to two levels below."""
    folders = dict.fromkeys(safe_read.real_path(one) for one in near)
    yield from folders
    yield from (one.parent for one in folders)
    yield from islice(_with_subfolders(folders), len(folders), _MAX_FOLDERS)


def _with_subfolders(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders, then those below them, then those below these."""
    for _ in range(3):
        level = list(islice(folders, _MAX_FOLDERS))
        yield from level
        folders = (below for folder in level for below in _subfolders(folder))


def _subfolders(folder: Path) -> list[Path]:
    """Return the folders directly below a folder; none if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(one.path) for one in islice(entries, _MAX_ENTRIES) if one.is_dir())
    except OSError:
        return []


def _shortest(folder: Path) -> Path:
    """Return a folder's path from the working directory if the folder lies below it, else its whole path."""
    whole, here = safe_read.real_path(folder), Path.cwd()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or is none
        return False


def media_paths(value: object) -> Iterator[str]:
    """Yield the file paths in a row's value in a column of images, videos or audios. The value is a file, a list of
    files, or the frames of a video."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (path for one in value for path in media_paths(one))


def first_media_fault(attr: DatasetAttr, stage: str, rows: Sequence[Row], part: str) -> str:
    """Return, as text for a message, the first row whose number of placeholders differs from its number of files; an
    empty string if there is none. Rows that LLaMA-Factory drops do not count. `part`: images, videos or audios. Stage
    pt reads no media. Source: llamafactory/data/mm_plugin.py:MMPluginMixin._validate_messages."""
    check, column, mark = row_checker(attr, stage), attr.columns.get(part), PLACEHOLDERS[part]
    for number, row in enumerate(rows if stage != "pt" else (), 1):
        sample = check(row).sample if column or mark in str(row) else None
        files = _file_count(row.get(column)) if column else 0
        if sample and (why := _placeholder_mismatch(sample, part, mark, files)):
            return f"row {number} has {why}"
    return ""


def _placeholder_mismatch(sample: Sample, part: str, mark: str, files: int) -> str:
    """Return the numbers of files and of placeholders, as text for a message, if they differ; else an empty string.
    `part`: images, videos or audios. `mark`: the placeholder, such as <image>. Placeholders in the prompt and in one
    answer are counted together, for each answer in turn; the empty answer of KTO data is left out."""
    answers: list[Any] = [text for _, text in sample.answers if text] or [""]
    prompt_marks = sum(text.count(mark) for _, text in sample.prompt)
    for answer in answers:
        if (marks := prompt_marks + answer.count(mark)) != files:
            return f"{files:,} {part} and {marks:,} {mark} in its turns; write one for each"
    return ""


def _file_count(value: object) -> int:
    """Return the number of files in the value of a media column: the length of a list, 1 for any other value, 0 for
    null."""
    return len(value) if isinstance(value, list) else int(value is not None)
