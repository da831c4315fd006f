"""The recipe of the catalogue that is nearest to a new recipe, and the one that does the same."""

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
    """Devices as file names say them, as a pattern."""
    return "|".join(re.escape(recipe_labels.device_label(device)) for device in devices.device_ids())


def nearest_recipe(draft: NewRecipe) -> str | None:
    """The recipe of the catalogue for the same model, method and stage that shares most with the draft: before all its
    device, then their number, then its variant. None: there is none; one of another method or of another tuning, which
    goes by the same short name, would mislead."""
    method = re.escape(recipe_labels.method_name(draft.job))
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
    """The recipe of the catalogue that does what the draft does: on its machine, for its model and samples as long."""
    name = nearest_recipe(draft)
    return name if name == draft.name and _read_settings(name).get("cutoff_len") == draft.length else None


@cache
def _read_settings(name: str) -> Mapping[str, object]:
    return load_recipe(str(bundled_recipes.recipe_file(name))).values
