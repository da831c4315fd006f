"""`diff`: what a copy changed against the catalogue, and what that does to memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from validator.diagnostic import Verdict
from validator.job import job
from validator.job.job import GIB, Job
from validator.read.recipe import readable
from validator.recipes.named import named
from validator.tables.checkout import home

_FIELDS = ("machine", "host_ram_gib", "samples")
# Settings as YAML or JSON gives them.
Settings = dict[str, object]


@dataclass(frozen=True)
class Need:
    """What is expected of a device and of a node's main memory, in GiB (2^30 bytes); None: not known."""

    verdict: Verdict
    device_gib: float | None
    host_gib: float | None


@dataclass(frozen=True)
class Comparison:
    """Settings of which the copy has another value, more, and fewer; the fields are the keys of the JSON."""

    recipe: str
    path: str
    changed: dict[str, tuple[object, object]]
    added: Settings
    removed: Settings
    before: Need
    after: Need


def compare(name: str, path: str) -> Comparison:
    """A recipe beside another, each a file or a name of the catalogue. Raises RecipeError for bad input."""
    before, after = _job(name), _job(path)
    same_file = before.get("deepspeed") == after.get("deepspeed")
    old, new = _settings(before, same_file), _settings(after, same_file)
    if _saves_by_name(before) and _saves_by_name(after):
        old, new = ({key: value for key, value in each.items() if key != "output_dir"} for each in (old, new))
    return Comparison(
        recipe=name.removesuffix(".yaml"),
        path=after.path,
        changed={key: (old[key], new[key]) for key in old if key in new and old[key] != new[key]},
        added={key: new[key] for key in new if key not in old},
        removed={key: old[key] for key in old if key not in new},
        before=_need(before),
        after=_need(after),
    )


def _job(recipe: str) -> Job:
    """The recipe as it is written; one of the catalogue reads the catalogue's DeepSpeed file."""
    resolved = job.resolve(readable(named(recipe).path))
    if Path(resolved.path).absolute().parent == home() / "recipes":
        resolved.folders = (home(),)
    return resolved


def _saves_by_name(recipe: Job) -> bool:
    """True if the folder of the results is called as the recipe is."""
    return bool(recipe.get("output_dir") == f"saves/{Path(recipe.path).stem}")


def _settings(recipe: Job, engine_too: bool) -> Settings:
    """The recipe's keys, the header fields that decide its verdict, and what the DeepSpeed file says."""
    header = {f"(header) {field}": recipe.header[field] for field in _FIELDS if field in recipe.header}
    inside = _flat(recipe.zero.config) if recipe.zero and engine_too else ()
    return {**header, **recipe.values, **{f"(deepspeed file) {key}": value for key, value in inside}}


def _flat(config: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _need(recipe: Job) -> Need:
    device, host = recipe.device_memory, recipe.host_memory
    return Need(
        recipe.verdict,
        round(device.expected / GIB, 1) if device else None,
        round(host.expected / GIB, 1) if host else None,
    )
