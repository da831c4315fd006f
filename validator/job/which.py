"""Which model a recipe trains, by all that tells it."""

from __future__ import annotations

from pathlib import Path

from validator.diagnostic import RecipeError
from validator.job.settings import Settings
from validator.read import disk
from validator.tables import models
from validator.tables.models import Model

# First parts of a path that training writes, and no hub account is called.
_FOLDERS = {"checkpoints", "data", "models", "output", "outputs", "saves"}

# What a run is called.
_NAMES = ("run_name", "swanlab_run_name", "hub_model_id")


def model(settings: Settings, name: str, folder: Path | None, recipe: str) -> Model:
    """The model that `name` means in the recipe at the path `recipe`: a folder's config.json, a known name, what the
    header block says it comes from, what its name tells, what a recipe beside this one trains into it, or what the
    recipe or its run are called. Raises RecipeError where none of these tells it, or its config.json cannot be used."""
    if folder and disk.kind(folder / "config.json") == "file":
        return models.model(str(folder))
    if there := models.known(name, *settings.origin):
        return there
    base = settings.header.get("base")
    if isinstance(base, str) and (there := models.known(base)):
        return there._replace(taken="base")
    from validator.tables import taken, unknown  # which no model of the catalogue waits for

    if isinstance(base, str):
        raise RecipeError(unknown.base(base))
    if there := taken.model(name, template := settings.get("template")) or _trained(recipe, name, template):
        return there
    if there := _described(settings, name, recipe):
        return there
    raise RecipeError(unknown.message(name))


def _described(settings: Settings, name: str, recipe: str) -> Model | None:
    """The model that the recipe's own name tells, or that of its run, where the model's speaks for no other."""
    from validator.tables import taken, unknown, wording

    own = name.rstrip("/").rpartition("/")[2]
    if wording.other_shapes(own) or unknown.other_kind(name):
        return None
    texts = {"the recipe's name": Path(recipe).stem} if recipe != "-" else {}
    texts |= {f"`{key}`": value for key in _NAMES if isinstance(value := settings.get(key), str)}
    for how, text in texts.items():
        if there := taken.described(text, settings.get("template")):
            return there._replace(taken="recipe", how=how)
    return None


def _trained(recipe: str, name: str, template: object, depth: int = 3) -> Model | None:
    """The model that a recipe beside this one makes `name` of, with the same template."""
    from validator.job import earlier
    from validator.tables import taken

    run = earlier.run(recipe, name)
    if run is None or run.template != template or not depth:
        return None
    there = models.known(run.model) or taken.model(run.model, template)
    there = there or _trained(recipe, run.model, template, depth - 1)
    return there._replace(taken="run", how=run.recipe.name, template=None, base=False, hub=()) if there else None


def local(name: str) -> bool:
    """Whether a model or adapter name cannot be, or is hardly, one of a hub (`name` or `organization/name`)."""
    if name.startswith((".", "/", "~")) or name.strip("/").count("/") > 1 or any(char in name for char in "\\$ :"):
        return True
    return "/" in name and name.partition("/")[0] in _FOLDERS
