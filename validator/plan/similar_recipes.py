"""Catalogue recipes that are like a new recipe: the nearest, and one that does the same."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from functools import cache

from validator.catalogue import bundled_recipes
from validator.knowledge import devices
from validator.plan.new_recipe import NewRecipe
from validator.recipe.recipe_file import load_recipe
from validator.run import recipe_labels

# What follows the method in a file name where the stage is not sft.
_STAGE_PATTERN = "pt|rm|ppo|dpo|kto"


@cache
def _device_label_pattern() -> str:
    """Return a pattern of the device labels in catalogue file names."""
    return "|".join(re.escape(recipe_labels.device_label(device)) for device in devices.device_ids())


def nearest_recipe(draft: NewRecipe) -> str | None:
    """Return the catalogue recipe for the same model, method and stage that shares most with the draft: first the
    device, then the number of devices, then the variant. None if there is none: another method, or another checkpoint
    with the same short name, would mislead."""
    method = re.escape(recipe_labels.method_name(draft.run))
    form = re.compile(
        rf"{re.escape(str(draft.model.short))}-({_device_label_pattern()})(x\d+)?-{method}(?!-(?:{_STAGE_PATTERN}))(-.+)?"
    )
    wanted = form.fullmatch(draft.name)
    own = wanted.groups() if wanted else ()  # a device known by its memory alone is no label of a recipe
    alike = (match for name in bundled_recipes.recipe_names() if (match := form.fullmatch(name)))
    closest = sorted(alike, key=lambda match: [*map(operator.eq, own, match.groups())], reverse=True)
    names = (match.group() for match in closest)
    return next((name for name in names if _read_settings(name).get("model_name_or_path") == draft.model.name), None)


def matching_recipe(draft: NewRecipe) -> str | None:
    """Return the catalogue recipe that does what the draft does: same machine, model and sample length; None if there
    is none."""
    name = nearest_recipe(draft)
    return name if name == draft.name and _read_settings(name).get("cutoff_len") == draft.length else None


@cache
def _read_settings(name: str) -> Mapping[str, object]:
    return load_recipe(str(bundled_recipes.recipe_path(name))).values
