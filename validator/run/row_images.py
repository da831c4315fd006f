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


class RowImages(NamedTuple):
    """The tokens of each image of a row, and its largest image (None: it has none)."""

    tokens: tuple[ImageTokens, ...]
    largest: ImageSize | None


def first_row_images(run: RunSettings) -> list[RowImages]:
    """Return the images of each of the rows `run.data.sampled_rows`. Empty if a data set has no rows on this machine,
    if an image's size is not known, or if the rows also hold videos or sound."""
    if first_row_images not in run.derived:
        run.derived[first_row_images] = _read_first_rows(run)
    found: list[RowImages] = run.derived[first_row_images]
    return found


def are_all_known(run: RunSettings) -> bool:
    """True if the first rows are all rows of the run, and the sizes of their images are known."""
    return len(first_row_images(run)) >= (run.data.local_rows or 1)


def usual_tower_tokens(run: RunSettings) -> int | None:
    """Return the tokens of the vision tower for the images of a usual row; None if the first rows do not tell."""
    rows = first_row_images(run)
    return math.ceil(sum(image.tower for each in rows for image in each.tokens) / len(rows)) if rows else None


def largest_image(run: RunSettings) -> ImageSize | None:
    """Return the size of the largest image of the first rows, before it is resized; None if the first rows do not
    tell, or have no image."""
    return max(filter(None, (each.largest for each in first_row_images(run))), key=math.prod, default=None)


def _read_first_rows(run: RunSettings) -> list[RowImages]:
    counter, _ = image_counter(run)
    if counter is None or run.data.local_rows is None:
        return []
    read, folders = list[RowImages](), dict[Dataset, str]()
    for dataset, row in run.data.sampled_rows:
        if any(row.get(dataset.attr.columns.get(kind) or "") for kind in ("videos", "audios")):
            return []
        if dataset not in folders:
            folders[dataset] = _media_folder(run, dataset, [row])
        value = row.get(dataset.attr.columns.get("images") or "")
        files = list(row_media_files(value, folders[dataset])) if value else []
        sizes = [file.size for file in files if file.size]
        tokens = tuple(filter(None, map(counter.count, sizes)))
        if len(tokens) < len(files):
            return []
        read.append(RowImages(tokens, max(sizes, key=math.prod, default=None)))
    return read


def _media_folder(run: RunSettings, dataset: Dataset, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the folder to which the paths in a data set's rows are relative. If the images are not there, the folder
    in which they are found, which `media_dir` should name."""
    place = run.data.media_folder(dataset)
    data = dataset.files[0] if dataset.files else dataset.path
    return str(media_dir_of_rows(dataset.attr, rows, data, Path(place)) or place)
