"""PTH121 and PTH124: the images, videos and sound that the first rows of a data set name: whether the run takes them,
whether their files are there, and whether images can be opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from validator.knowledge.chat_templates import known_templates
from validator.rows.dataset_attr import FORMATTINGS, MODALITIES, entry_faults
from validator.rows.media_columns import first_media_fault, media_paths, missing_media_files, missing_media_remedy
from validator.rows.media_files import MediaFile, row_media_files
from validator.rules import subjects
from validator.rules.dataset_columns import rows_surely_read
from validator.rules.rule import ERROR, WARNING, Findings, rule
from validator.rules.subjects import PlaceIn
from validator.rules.template_choice import own_template
from validator.run.dataset_registry import Dataset
from validator.run.settings import RunSettings

_MAX_OPENED = 1000  # images of a data set of which the beginning is read


@rule("PTH121", ERROR, about=subjects.datasets)
def media_refused(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The samples hold pictures, films or sound that the run cannot use.

    Why: "This model does not support image input", or a file that is not there or holds no image, while the data is
    tokenized, on every rank; or "The number of images does not match the number of <image> tokens". Looked at are the
    first rows of a local file.
    Source: llamafactory/data/mm_plugin.py:MMPluginMixin._validate_input,
    llamafactory/data/mm_plugin.py:MMPluginMixin._validate_messages,
    llamafactory/data/mm_plugin.py:MMPluginMixin._regularize_images,
    llamafactory/data/converter.py:DatasetConverter._find_medias
    Fix: a template for images and a model that goes with it; `media_dir` is the folder that the paths count from
    (default: `dataset_dir`); in the turns one `<image>` for each picture.
    """
    media = run.template_media
    for part, kind in MODALITIES.items() if run.template and run.task.stage != "pt" else ():
        if kind not in media and _has_media(dataset, part):
            found = f"data set `{dataset.name}` holds {part}, and template {run.args.get('template')} takes none"
            yield at("columns", part, conflicts_with=("template",)), f"{found}; {_template_remedy(run, part)}"
            continue
        if missing := _missing_files(run, dataset, part):
            yield at("columns", part), f"data set `{dataset.name}`: {missing}"
        if media and (why := _row_with_wrong_media_count(run, dataset, part)):
            yield at("columns", part), f"data set `{dataset.name}`: {why}"
    for path, number, file in _opened_images(run, dataset):
        if file.no_image:
            found = f"data set `{dataset.name}`: `{path}` of row {number} {file.no_image}"
            yield at("columns", "images"), f"{found}; replace the file, or remove the row"
            return


@rule("PTH124", WARNING, about=subjects.datasets)
def image_cut(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """An image file is cut off: it ends before the size of the image, or, in JPEG and PNG, without the mark of its end.

    Why: "cannot identify image file" or "image file is truncated" of Pillow, while the data is tokenized, on every
    rank; a download that broke off leaves such files. Looked at are the first rows of a local file.
    Source: llamafactory/data/mm_plugin.py:MMPluginMixin._regularize_images
    Fix: fetch the file again, or remove the row.
    """
    cut: dict[str, int] = {}
    for path, number, file in _opened_images(run, dataset):
        if file.is_cut:
            cut.setdefault(path, number)
    for path, number in islice(cut.items(), 1):
        others = f" ({len(cut):,} such files)" if len(cut) > 1 else ""
        found = f"data set `{dataset.name}`: `{path}` of row {number} is cut off{others}"
        yield at("columns", "images"), f"{found}, so Pillow may not read it; fetch it again, or remove the row"


_OpenedImage = tuple[str, int, MediaFile]


def _opened_images(run: RunSettings, dataset: Dataset) -> Sequence[_OpenedImage]:
    """Return the path of each image file of the first rows that is there, the number of its row, and what its beginning
    tells. Empty if the run reads no images."""
    key = (_opened_images, dataset)
    if key not in run.derived:
        run.derived[key] = (*_open_images(run, dataset),)
    opened: tuple[_OpenedImage, ...] = run.derived[key]
    return opened


def _open_images(run: RunSettings, dataset: Dataset) -> Iterator[_OpenedImage]:
    column = dataset.attr.columns.get("images") or ""
    if not column or run.task.stage == "pt" or "image" not in run.template_media:
        return
    place = run.data.media_folder(dataset)
    rows = enumerate(rows_surely_read(run, dataset), 1)
    paths = ((path, number) for number, row in rows for path in media_paths(row.get(column)))
    for path, number in islice(paths, _MAX_OPENED):
        for file in row_media_files(path, place):
            yield path, number, file


def _template_remedy(run: RunSettings, part: str) -> str:
    """Return what to do if the template takes no images, videos or sound (`part`), as text for a message: the model's
    own template if that takes them."""
    own = own_template(run)
    if own and MODALITIES[part] in known_templates().get(own, {}).get("media", ()):
        return f"set `template: {own}`, the template of the model"
    return f"train a model that takes {part}, with its template"


def _row_with_wrong_media_count(run: RunSettings, dataset: Dataset, part: str) -> str:
    """Return, as text for a message, the first row whose number of placeholders differs from its number of media files;
    an empty string if there is none, or if the data set's entry cannot be used. `part`: images, videos or audios."""
    if dataset.entry.get("formatting", "alpaca") not in FORMATTINGS or any(entry_faults(dataset.entry)):
        return ""
    return first_media_fault(dataset.attr, run.task.stage, rows_surely_read(run, dataset), part)


def _has_media(dataset: Dataset, part: str) -> bool:
    """True if one of the data set's first rows has a file in the column for `part` (images, videos or audios)."""
    column, rows = dataset.attr.columns.get(part) or "", dataset.rows
    return bool(column and rows and any(row.get(column) for row in rows.head))


def _missing_files(run: RunSettings, dataset: Dataset, part: str) -> str:
    """Return, as text for a message, which files of the first rows LLaMA-Factory finds neither in `media_dir` nor in
    the working directory, and what to do; empty if none is missing. `part`: images, videos or audios."""
    column = dataset.attr.columns.get(part) or ""
    folder = str(run.args.get("media_dir") or dataset.folder)
    missing: dict[str, int] = {}
    looked_at: set[str] = set()
    for number, row in enumerate(rows_surely_read(run, dataset) if column else (), 1):
        looked_at.update(media_paths(row.get(column)))
        for path in missing_media_files(row.get(column), folder):
            if not run.workspace.find(f"{folder}/{path}") and not run.workspace.may_be_elsewhere(Path(folder, path)):
                missing.setdefault(path, number)
    if not missing:
        return ""
    path, row_number = next(iter(missing.items()))
    found = f"`{path}` of row {row_number} is not in `{folder}`"
    if len(looked_at) > 1:
        counted = f"{len(missing):,} of {len(looked_at):,} files looked at"
        found += f" ({counted} {'is' if len(missing) == 1 else 'are'} missing)"
    return f"{found}; {missing_media_remedy([*missing], len(looked_at), run.data.folders_near(dataset))}"
