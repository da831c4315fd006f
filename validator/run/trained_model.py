"""The model that a recipe trains. Every hint is used: a folder, a known name, the header block, words in the name, and
another recipe in the same folder that writes the model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import model_names, models, unknown_models
from validator.knowledge.models import Model
from validator.recipe import safe_read
from validator.recipe.recipe_file import load_recipe
from validator.run.recipe_arguments import Arguments

_MAX_FILES = 1000  # so many files are looked into
# LLaMA-Factory's own examples have a folder for each way to train and one for exports.
_SIBLING_FOLDER = re.compile(r"(?:train|merge|extras)(?:_|$)")
_WRITTEN_FOLDER = re.compile(r"(?m)^(?:output|export)_dir: *[\"']?([^\s\"'#]+)")


class EarlierRun(NamedTuple):
    """A recipe that writes a model, the model that it starts from, and its template."""

    recipe: Path
    model: str
    template: object


def find_earlier_run(recipe: str, name: str) -> EarlierRun | None:
    """Return the run that writes the model folder `name`: one of the recipes beside the recipe at the path `recipe` or,
    if the folders are laid out as in LLaMA-Factory's examples, in the sibling folders. None if no recipe writes the
    model, or if several recipes write it from different models."""
    if recipe == "-":
        return None
    files = _recipes_by_output(Path(recipe).absolute().parent).get(os.path.normpath(name), ())
    runs = [run for file in files if (run := _run_that_writes(file, name))]
    return runs[0] if len({run[1:] for run in runs}) == 1 else None


def find_earlier_adapter(recipe: str, name: str) -> Path | None:
    """Return the path of the recipe that trains the adapter in the folder `name`. The recipes in the folder of the
    recipe at the path `recipe`, and in similar sibling folders, are searched. None if no recipe trains the adapter."""
    if recipe == "-":
        return None
    for file in _recipes_by_output(Path(recipe).absolute().parent).get(os.path.normpath(name), ()):
        values = load_recipe(str(file)).values
        written = values.get("output_dir")
        if isinstance(written, str) and os.path.normpath(written) == os.path.normpath(name) and _saves_adapter(values):
            return file
    return None


def _saves_adapter(values: Mapping[str, Any]) -> bool:
    """True if a recipe with these values saves an adapter and no whole model."""
    return bool(values.get("do_train")) and values.get("finetuning_type", "lora") in ("lora", "oft")


@lru_cache(maxsize=_MAX_FILES)
def _run_that_writes(file: Path, name: str) -> EarlierRun | None:
    """Return the run of the recipe `file` if it writes a whole model to the folder `name`; otherwise None. A LoRA run
    does not, because it saves only an adapter. A quantized export is not counted either."""
    values = load_recipe(str(file)).values
    written = values.get("output_dir" if values.get("do_train") else "export_dir")
    model = values.get("model_name_or_path")
    writes_whole_model = not values.get("export_quantization_bit") and not _saves_adapter(values)
    if not isinstance(written, str) or not isinstance(model, str) or not writes_whole_model:
        return None
    return (
        EarlierRun(file, model, values.get("template"))
        if os.path.normpath(written) == os.path.normpath(name) != os.path.normpath(model)
        else None
    )


@lru_cache(maxsize=64)
def _recipes_by_output(folder: Path) -> dict[str, list[Path]]:
    """Return the recipes in and around a folder, by their `output_dir` or `export_dir`. The keys are found by a text
    search, without parsing the recipes."""
    writers: dict[str, list[Path]] = {}
    for file in _recipes_around(folder):
        try:
            text = safe_read.read_text(str(file))
        except RecipeError:
            continue
        for written in _WRITTEN_FOLDER.findall(text):
            writers.setdefault(os.path.normpath(written), []).append(file)
    return writers


def _recipes_around(folder: Path) -> Iterator[Path]:
    """Yield the recipes in a folder. If the folder is named as in LLaMA-Factory's examples (train_…, merge_…, extras),
    also the recipes in its sibling folders with such names."""
    sibling_folders = sorted(safe_read.glob_folder(folder.parent, "*/")) if _SIBLING_FOLDER.match(folder.name) else []
    folders = [
        folder,
        *(sibling for sibling in sibling_folders if _SIBLING_FOLDER.match(sibling.name) and sibling != folder),
    ]
    files = (file for each in folders for file in sorted(safe_read.glob_folder(each, "*.y*ml")))
    return (file for file, _ in zip(files, range(_MAX_FILES), strict=False))


# First parts of a path that training writes, and no hub account is called.
_TRAINING_FOLDERS = {"checkpoints", "data", "models", "output", "outputs", "saves"}

# What a run is called.
_RUN_NAME_KEYS = ("run_name", "swanlab_run_name", "hub_model_id")


def resolve_model(
    args: Arguments, hub_source: tuple[str, str | None], base: object, name: str, folder: Path | None, recipe: str
) -> Model:
    """Return the model that `name` means in the recipe at the path `recipe`. Hints are tried in this order: config.json
    in `folder`, a known name, the header block's `base`, words in the name, a recipe in the same folder that writes the
    model, the name of the recipe or of its run. Raises RecipeError if no hint identifies the model, or if its
    config.json cannot be used."""
    if folder and safe_read.path_kind(folder / "config.json") == "file":
        return models.find_model(str(folder))
    if model := models.find_known_model(name, *hub_source):
        return model
    if isinstance(base, str) and (model := models.find_known_model(base)):
        return model._replace(identified_by="base")
    if isinstance(base, str):
        raise RecipeError(unknown_models.unknown_base_message(base))
    if model := model_names.guess_model(name, template := args.get("template")) or _model_of_earlier_run(
        recipe, name, template
    ):
        return model
    if model := _model_of_run_name(args, name, recipe):
        return model
    raise RecipeError(unknown_models.unknown_model_message(name))


def _model_of_run_name(args: Arguments, name: str, recipe: str) -> Model | None:
    """Return the model that is named in the file name of the recipe or in its run name (`run_name` and similar keys).
    None if neither names a model, or if the model's own name suggests another one."""
    own_name = name.rstrip("/").rpartition("/")[2]
    if model_names.suggests_other_shapes(own_name) or unknown_models.not_a_model_message(name):
        return None
    texts = {"the recipe's name": Path(recipe).stem} if recipe != "-" else {}
    texts |= {f"`{key}`": value for key in _RUN_NAME_KEYS if isinstance(value := args.get(key), str)}
    for how, text in texts.items():
        if model := model_names.guess_model_of_run(text, args.get("template")):
            return model._replace(identified_by="recipe", identified_from=how)
    return None


def _model_of_earlier_run(recipe: str, name: str, template: object, depth: int = 3) -> Model | None:
    """Return the model from which another recipe in the same folder trains the model folder `name`; None if there is no
    such recipe, or if its template is not `template`. That recipe may itself start from a trained model, which is
    traced in the same way, up to `depth` times."""
    run = find_earlier_run(recipe, name)
    if run is None or run.template != template or not depth:
        return None
    model = models.find_known_model(run.model) or model_names.guess_model(run.model, template)
    model = model or _model_of_earlier_run(recipe, run.model, template, depth - 1)
    return (
        model._replace(identified_by="run", identified_from=run.recipe.name, template=None, base=False, hub=())
        if model
        else None
    )


def is_local_name(name: str) -> bool:
    """True if the name of a model or adapter is a path and not a hub name (`name` or `organization/name`), judged by
    its form alone."""
    if name.startswith((".", "/", "~")) or name.strip("/").count("/") > 1 or any(char in name for char in "\\$ :"):
        return True
    return "/" in name and name.partition("/")[0] in _TRAINING_FOLDERS
