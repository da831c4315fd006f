"""The recipes that come with the package: their names, files and jobs, and the rows of `list`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from validator.diagnostic import RecipeError, Verdict
from validator.job import job
from validator.job.job import GIB, Job
from validator.job.naming import method_name, name
from validator.job.values import quantity
from validator.read.recipe import load
from validator.recipes import engine
from validator.tables import machines, models
from validator.tables.checkout import home
from validator.tables.machines import Machine
from validator.tables.suggestion import suggest


class Hours(NamedTuple):
    """A 90 % band."""

    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One recipe; the fields are the keys of `list --format json`. GiB (2^30 bytes) are what is expected, hours are
    those that its header block states for its samples."""

    name: str
    summary: str | None
    model: str
    machine: str | None
    method: str
    device_gib: float | None
    host_gib: float | None
    samples: int | None
    verdict: Verdict
    hours: Hours | None


def names() -> list[str]:
    """Every recipe by name, sorted."""
    with os.scandir(home() / "recipes") as entries:
        return sorted(each.name.removesuffix(".yaml") for each in entries if each.name.endswith(".yaml"))


def file(name: str) -> Path:
    """The file of a recipe. Raises RecipeError with the nearest name where there is none."""
    wanted = name.removesuffix(".yaml")
    if wanted not in names():
        near = _of_model(wanted) or suggest(wanted, [*names(), *engine.names()]) or "; `lmf-recipes list` shows all"
        raise RecipeError(f"no recipe `{wanted}` in the catalogue{near}")
    return home() / "recipes" / f"{wanted}.yaml"


def _of_model(name: str) -> str:
    """How to see the recipes of a model, where that is what the name is; else an empty text."""
    try:
        model = models.model_by_any_name(name)
    except RecipeError:
        return ""
    return f"; it is a model: see `lmf-recipes list --model {name}`" if model.id else ""


def jobs(host_ram_gib: float | None = None) -> Iterator[Job]:
    """Every recipe as a job, by name, on its own machine; the main memory of a node may be another."""
    for each in names():
        yield job.resolve(load(str(home() / "recipes" / f"{each}.yaml")), host_ram_gib=host_ram_gib)


def rows(
    machine: str | None = None,
    model: str | None = None,
    method: str | None = None,
    host_ram_gib: float | None = None,
) -> list[Row]:
    """One row for each recipe that passes the filters, judged for this main memory where one is given. Raises
    RecipeError for an unknown machine or model."""
    target = machines.machine(machine) if machine else None
    wanted = models.model_by_any_name(model) if model else None
    return [
        _row(each)
        for each in jobs(host_ram_gib)
        if (target is None or _runs_on(each, target))
        and (wanted is None or (each.model is not None and each.model.arch == wanted.arch))
        and (method is None or method == method_name(each) or method in _variants(each))
    ]


def _variants(recipe: Job) -> list[str]:
    """Words of a recipe's name behind its method: dpo, fsdp, offload, 32k, an optimizer, tools."""
    stage = method_name(recipe).split("-")[1:]
    return stage + Path(recipe.path).stem.removeprefix(name(recipe) or "").split("-")[1:]


def _runs_on(recipe: Job, target: Machine) -> bool:
    """A recipe for the same device, for no more of them."""
    here = recipe.machine
    return (
        here is not None
        and here.device.id == target.device.id
        and here.nodes <= target.nodes
        and here.devices <= target.devices
    )


def _row(recipe: Job) -> Row:
    device, host = recipe.device_memory, recipe.host_memory
    return Row(
        name=Path(recipe.path).stem,
        summary=recipe.header.get("summary"),
        model=recipe.model_name,
        machine=str(recipe.machine) if recipe.machine else None,
        method=method_name(recipe),
        device_gib=round(device.expected / GIB, 1) if device else None,
        host_gib=round(host.expected / GIB, 1) if host else None,
        samples=recipe.samples,
        verdict=recipe.verdict,
        hours=_hours(recipe),
    )


def _hours(recipe: Job) -> Hours | None:
    told = recipe.header.get("predicted")
    band = told.get("hours") if isinstance(told, dict) else None
    low, high, *_ = map(quantity, [*band, None, None] if isinstance(band, list) else [None, None])
    return Hours(low, high) if low is not None and high is not None else None
