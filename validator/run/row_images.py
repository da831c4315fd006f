"""Images of the first rows of local data sets: the tokens that they become, by the sizes in their files' headers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from validator.rows.image_header import ImageSize
from validator.rows.media_columns import media_dir_of_rows
from validator.rows.media_files import row_media_files
from validator.run.dataset_registry import Dataset
from validator.run.image_tokens import ImageTokens, image_counter
from validator.run.settings import RunSettings

# Rows whose images are looked at, of each data set: so many files are opened in some hundredths of a second.
_MAX_ROWS = 200


class RowImages(NamedTuple):
    """A row of a data set, the tokens of all its images together, and its largest image (None: it has none)."""

    row: Mapping[str, Any]
    tokens: ImageTokens
    largest: ImageSize | None


def first_row_images(run: RunSettings) -> list[RowImages]:
    """Return some of the first rows of the run's data sets with the tokens of their images. Empty if a data set has no
    rows on this machine, if an image's size is not known, or if the rows also hold videos or sound."""
    if first_row_images not in run.derived:
        run.derived[first_row_images] = _read_first_rows(run)
    found: list[RowImages] = run.derived[first_row_images]
    return found


def usual_tower_tokens(run: RunSettings) -> int | None:
    """Return the tokens of the vision tower for the images of a usual row; None if the first rows do not tell."""
    rows = first_row_images(run)
    return math.ceil(sum(each.tokens.tower for each in rows) / len(rows)) if rows else None


def largest_image(run: RunSettings) -> ImageSize | None:
    """Return the size of the largest image of the first rows, before it is resized; None if the first rows do not
    tell, or have no image."""
    return max(filter(None, (each.largest for each in first_row_images(run))), key=math.prod, default=None)


def _read_first_rows(run: RunSettings) -> list[RowImages]:
    counter, _ = image_counter(run)
    if counter is None or run.data.local_rows is None:
        return []
    read: list[RowImages] = []
    for dataset in run.data.datasets:
        head = dataset.rows.head if dataset.rows else ()
        folder = _media_folder(run, dataset, head)
        for row in head[:: -(-len(head) // _MAX_ROWS) or 1]:
            if any(row.get(dataset.attr.columns.get(kind) or "") for kind in ("videos", "audios")):
                return []
            value = row.get(dataset.attr.columns.get("images") or "")
            files = list(row_media_files(value, folder)) if value else []
            sizes = [file.size for file in files if file.size]
            tokens = [each for each in map(counter.count, sizes) if each]
            if len(tokens) < len(files):
                return []
            summed = ImageTokens(sum(each.sequence for each in tokens), sum(each.tower for each in tokens))
            read.append(RowImages(row, summed, max(sizes, key=math.prod, default=None)))
    return read


def _media_folder(run: RunSettings, dataset: Dataset, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the folder to which the paths in a data set's rows are relative. If the images are not there, the folder
    in which they are found, which `media_dir` should name."""
    place = run.data.media_folder(dataset)
    data = dataset.files[0] if dataset.files else dataset.path
    return str(media_dir_of_rows(dataset.attr, rows[:1], data, Path(place)) or place)
