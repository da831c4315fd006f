"""The command `copy`: a recipe of the catalogue, or a DeepSpeed file, written as the start of the user's own.

A copy may train on the user's own data. Then its dataset, number of rows and predicted hours are rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from validator import __version__
from validator.catalogue import bundled_recipes
from validator.catalogue.bundled_recipes import DEEPSPEED_FOLDER
from validator.catalogue.install import InstalledRecipe, install_recipe, is_missing, write_if_missing
from validator.errors import RecipeError
from validator.escaping import shell_join
from validator.recipe import safe_read
from validator.recipe.known_folders import catalogue_root
from validator.recipe.recipe_file import RECIPE_SUFFIXES, load_recipe, parse_recipe
from validator.recipe.safe_read import expand_home
from validator.recipe.yaml_writer import format_scalar
from validator.rows.entry_inference import ROW_KINDS, TRAINABLE_STAGES
from validator.run.prediction import Job, resolve
from validator.run.recipe_labels import prediction_line, stated_prediction
from validator.wording import plural

if TYPE_CHECKING:
    from validator.run.user_data import UserData


_HEADER_END = "# ///"
_DATASET_LINE = re.compile(r"(?m)^dataset:.*$")
_OUTPUT_DIR_LINE = re.compile(r"(?m)^output_dir:.*$")
# Lines that speak of the data that the recipe names, in the header block and below it.
_DATA_DESCRIPTION_LINES = re.compile(r"(?m)^# (?:lengths|For): .*\n")
_PREDICTED_LINE = re.compile(r"(?m)^# predicted: .*\n")
_ROWS_LINE = re.compile(r"(?m)^# rows: .*$")
# Public text is streamed for so many steps; a file is read whole, once.
_STREAMING_REPLACEMENTS = {
    r"(?m)^streaming: .*$": "preprocessing_num_workers: 16",
    r"(?m)^max_steps: .*$": "num_train_epochs: 1.0",
    r"(?m)^val_size: 200\b": "val_size: 0.01",
}


def copy_recipe(name: str, dest: str, own: UserData | None = None) -> InstalledRecipe:
    """Write the recipe and what it reads to a file or folder, and the recipe that trains the adapter it starts from.
    `own` is the user's own data in place of the recipe's. A copy of another name saves its results under that name.

    Raises RecipeError rather than overwrite anything, and for data that the recipe's stage does not train."""
    source = bundled_recipes.recipe_file(name)
    target = _target_path(dest, source.name)
    document = load_recipe(str(source))
    text = with_origin(document.text, source.stem)
    if target.stem != source.stem:
        output_dir = f"output_dir: {format_scalar(f'saves/{target.stem}')}"
        text = _OUTPUT_DIR_LINE.sub(lambda _: output_dir, text)
    if own is None:
        return _with_adapter_recipe(install_recipe(target, text, document.values), document.values)
    job = resolve(document)
    _require_trained_stage(own, source.stem, job)
    own.require_media(job)
    placed = install_recipe(target, _text_for_user_data(text, target, own), document.values, own)
    return _with_adapter_recipe(replace(placed, notes=(*_row_count_notes(own, job), *placed.notes)), document.values)


def _text_for_user_data(text: str, target: Path, own: UserData) -> str:
    """The recipe's text for the user's own data: their number of rows, and what is predicted for them."""
    dataset = f"dataset: {format_scalar(own.name)}"
    text = _DATASET_LINE.sub(lambda _: dataset, _DATA_DESCRIPTION_LINES.sub("", text))
    text = _ROWS_LINE.sub(f"# rows: {own.rows}", text)
    for written, instead in _STREAMING_REPLACEMENTS.items():
        text = re.sub(written, instead, text)
    job = resolve(parse_recipe(str(target), text))
    # No registry on the disk has them yet.
    job = replace(job, workspace=replace(job.workspace, registry=own.registry))
    prediction = stated_prediction(job)
    return _PREDICTED_LINE.sub(f"# predicted: {prediction_line(prediction)}\n", text) if prediction else text


def _with_adapter_recipe(placed: InstalledRecipe, values: Mapping[str, object]) -> InstalledRecipe:
    """Write the recipe that trains the adapter which this one starts from beside it, if the catalogue has one."""
    first = Path(str(values.get("adapter_name_or_path"))).name
    beside = placed.recipe.with_name(f"{first}.yaml")
    if first not in bundled_recipes.recipe_names() or safe_read.path_kind(beside):
        return placed
    document = load_recipe(str(bundled_recipes.recipe_file(first)))
    brought = install_recipe(beside, with_origin(document.text, first), document.values)
    note = f"train `{beside.name}` first: this recipe starts from the adapter that it saves"
    return replace(
        placed, files=(*dict.fromkeys((*placed.files, beside, *brought.files)),), notes=(note, *placed.notes)
    )


def _require_trained_stage(own: UserData, name: str, job: Job) -> None:
    """Raise RecipeError where the recipe trains another kind of rows; with the recipe that does, or how to get one."""
    wanted = own.form.stage
    if job.task.stage in TRAINABLE_STAGES[wanted]:
        return
    other = name.removesuffix(f"-{job.task.stage}") + ("" if wanted == "sft" else f"-{wanted}")
    way = f"copy `{other}`"
    if other not in bundled_recipes.recipe_names():
        options = ["--model", job.model_name, "--machine", job.header.get("machine"), "--data", own.path]
        way = f"`{shell_join(['lmf-recipes', 'plan', *map(str, options), '--write', 'FILE.yaml'])}`"
    raise RecipeError(
        f"`{own.path}` holds {ROW_KINDS[wanted]}, which stage {job.task.stage} of `{name}` does not train; {way}"
    )


def _row_count_notes(own: UserData, job: Job) -> Iterator[str]:
    """Yield a note if the user has fewer rows than the header states, and whose number that is."""
    if job.declared.samples and own.rows < job.declared.samples:
        rows = f"{own.rows:,} {plural(own.rows, 'row')}"
        whose = job.guidance.whose(job.declared.samples) if job.guidance else None
        yield f"`{own}` holds {rows}, the recipe is made for {job.declared.samples:,}{f', {whose}' if whose else ''}"


def with_origin(text: str, name: str) -> str:
    """The recipe's text, with its origin and version in the header block."""
    lines = [line for line in text.splitlines() if not line.startswith("# origin:")]
    lines.insert(lines.index(_HEADER_END), f"# origin: {name} of llamafactory-recipes {__version__}")
    return "\n".join(lines) + "\n"


def _target_path(dest: str, name: str) -> Path:
    path = expand_home(dest)
    if safe_read.path_kind(path) == "folder" or path.suffix not in RECIPE_SUFFIXES:
        return path / name
    return path


@dataclass(frozen=True)
class CopiedFile:
    """A DeepSpeed file in a folder, whether it was written just now, and what recipes started from there call it."""

    path: Path
    written: bool
    folder: Path
    name: str


def copy_deepspeed_file(name: str, dest: str) -> CopiedFile:
    """Write the file into the folder's deepspeed/, unless it is there. Raises RecipeError where another one is, or for
    the name of a file."""
    folder = expand_home(dest)
    if folder.suffix == ".json":
        raise RecipeError(
            f"`{dest}`: give the folder that recipes are started from; the file goes to its {DEEPSPEED_FOLDER}/"
        )
    if folder.name == DEEPSPEED_FOLDER:
        folder = folder.parent
    value = f"{DEEPSPEED_FOLDER}/{name}"
    content = (catalogue_root() / value).read_bytes()
    missing = is_missing(folder, value, content) and write_if_missing(folder, value, content)
    return CopiedFile(folder / value, missing, folder, value)
