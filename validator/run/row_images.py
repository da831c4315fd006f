"""Images of the first rows of local data sets: the tokens that they become, by the sizes in their files' headers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from validator.rows.media_files import row_media_files
from validator.run.dataset_registry import Dataset
from validator.run.image_tokens import ImageTokens, image_counter
from validator.run.settings import RunSettings

# Rows whose images are looked at, of each data set: so many files are opened in some hundredths of a second.
_MAX_ROWS = 200

# A row of a data set, and the tokens of all its images together.
RowImages = tuple[Mapping[str, Any], ImageTokens]


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
    return math.ceil(sum(tokens.tower for _, tokens in rows) / len(rows)) if rows else None


def _read_first_rows(run: RunSettings) -> list[RowImages]:
    counter, _ = image_counter(run)
    if counter is None or run.data.local_rows is None:
        return []
    read: list[RowImages] = []
    for dataset in run.data.datasets:
        head = dataset.rows.head if dataset.rows else ()
        for row in head[:: -(-len(head) // _MAX_ROWS) or 1]:
            if any(row.get(dataset.attr.columns.get(kind) or "") for kind in ("videos", "audios")):
                return []
            value = row.get(dataset.attr.columns.get("images") or "")
            files = row_media_files(value, _media_folder(run, dataset)) if value else ()
            counted = [file.size and counter.count(file.size) for file in files]
            if not all(counted):
                return []
            tokens = [each for each in counted if each]
            read.append((row, ImageTokens(*(sum(each) for each in zip(*tokens, strict=True)) if tokens else (0, 0))))
    return read


def _media_folder(run: RunSettings, dataset: Dataset) -> str:
    """Return the folder to which the paths in a data set's rows are relative (hparams/data_args.py)."""
    folder = str(run.args.get("media_dir") or dataset.folder)
    found = run.workspace.find(folder)
    return str(found[0]) if found else folder
