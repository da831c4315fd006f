"""The command `diff`: compares two recipes, setting by setting, and shows the memory that each of them needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from validator.catalogue.bundled_recipes import RECIPES_FOLDER, find_recipe_name, locate_recipe
from validator.finding import Verdict
from validator.physics.estimate import GIB
from validator.recipe.known_folders import catalogue_root
from validator.recipe.recipe_file import load_valid_recipe
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve

_HEADER_FIELDS = ("machine", "host_ram_gib", "samples")
# Settings as YAML or JSON gives them.
SettingValues = dict[str, object]


@dataclass(frozen=True)
class MemorySummary:
    """Memory verdict of a recipe, with the expected memory of a device and of a node in GiB (2^30 bytes). The sizes are
    None if the memory cannot be predicted."""

    verdict: Verdict
    device_gib: float | None
    host_gib: float | None


@dataclass(frozen=True)
class Comparison:
    """The settings that the second recipe changes, adds and removes, and the memory of each recipe. The fields are the
    keys of `diff --format json`."""

    recipe: str
    path: str
    changed: dict[str, tuple[object, object]]
    added: SettingValues
    removed: SettingValues
    before: MemorySummary
    after: MemorySummary


def compare_recipes(name: str, path: str) -> Comparison:
    """Return the differences between two recipes, each given as a file or as a name of the catalogue. Raises
    RecipeError if a recipe does not exist or cannot be read."""
    before, after = _resolve_as_written(name), _resolve_as_written(path)
    same_file = before.args.get("deepspeed") == after.args.get("deepspeed")
    old, new = _setting_values(before, same_file), _setting_values(after, same_file)
    if _output_dir_is_recipe_name(before) and _output_dir_is_recipe_name(after):
        old, new = ({key: value for key, value in each.items() if key != "output_dir"} for each in (old, new))
    return Comparison(
        recipe=find_recipe_name(name) or name.removesuffix(".yaml"),
        path=after.workspace.recipe,
        changed={key: (old[key], new[key]) for key in old if key in new and old[key] != new[key]},
        added={key: new[key] for key in new if key not in old},
        removed={key: old[key] for key in old if key not in new},
        before=_memory_summary(before),
        after=_memory_summary(after),
    )


def _resolve_as_written(recipe: str) -> RunSettings:
    """Return the run of a recipe, without making its paths absolute. A recipe of the catalogue reads the catalogue's
    DeepSpeed file."""
    resolved = resolve(load_valid_recipe(locate_recipe(recipe).path))
    if Path(resolved.workspace.recipe).absolute().parent == catalogue_root() / RECIPES_FOLDER:
        return replace(resolved, workspace=replace(resolved.workspace, folders=(catalogue_root(),)))
    return resolved


def _output_dir_is_recipe_name(recipe: RunSettings) -> bool:
    """True if the recipe's `output_dir` is saves/ followed by the recipe's own name, as in the catalogue."""
    return bool(recipe.args.get("output_dir") == f"saves/{Path(recipe.workspace.recipe).stem}")


def _setting_values(recipe: RunSettings, engine_too: bool) -> SettingValues:
    """Return the values to compare: the recipe's keys, the header fields that affect its verdict and, if `engine_too`,
    the values in its DeepSpeed file."""
    header = {f"(header) {field}": recipe.header[field] for field in _HEADER_FIELDS if field in recipe.header}
    deepspeed_values = _flatten(recipe.deepspeed.config) if recipe.deepspeed and engine_too else ()
    return {**header, **recipe.args.values, **{f"(deepspeed file) {key}": value for key, value in deepspeed_values}}


def _flatten(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _memory_summary(recipe: RunSettings) -> MemorySummary:
    prediction = predict(recipe)
    device, host = prediction.device_memory, prediction.host_memory
    return MemorySummary(
        prediction.verdict,
        round(device.expected / GIB, 1) if device else None,
        round(host.expected / GIB, 1) if host else None,
    )
