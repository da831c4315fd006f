"""The two questions that `plan` answers: how to train this model on this machine, and which model to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validator.diagnostic import RecipeError
from validator.plan import choice, draft, planned, upgrade, writing
from validator.plan import search as plan
from validator.plan.draft import Draft
from validator.plan.search import METHODS, Plan
from validator.recipes.place import Placed, place
from validator.tables import machines, models
from validator.tables.machines import Machine
from validator.tables.models import Model


@dataclass(frozen=True)
class Answer:
    """The structure to print, and the best plan; None where nothing fits."""

    found: Mapping[str, Any]
    best: Plan | None


def answer(
    model: str | None,
    machine: str,
    samples: int | None = None,
    host_ram_gib: float | None = None,
    length: int | None = None,
    method: str | None = None,
    stage: str = "sft",
    fsdp: bool = False,
) -> Answer:
    """Plans for the model, or models for the machine. Raises RecipeError for what is not known."""
    target = _machine(machine, host_ram_gib)
    methods = (method,) if method else METHODS
    if model is None:
        choices = choice.choose(target, samples or 0, length) if samples else []
        best = choices[0].plan if choices else None
        return Answer(planned.result(None, target, samples, [], choices=choices), best)
    wanted = models.model_by_any_name(model)
    if fsdp:
        _require_sharding(wanted, target)
    plans = plan.search(wanted, target, samples, length, methods, stage, fsdp)
    if plans:
        return Answer(planned.result(wanted, target, samples, plans), plans[0])
    engine = "fsdp" if fsdp else None
    start = Draft(wanted, target, methods[0], engine, length=length or plan.LENGTHS[0], samples=samples, stage=stage)
    reasons = _reasons([plan.obstacles(replace(start, method=each)) for each in methods])
    upgrades = [] if reasons else upgrade.nearest(start, methods)
    return Answer(planned.result(wanted, target, samples, [], upgrades, reasons=reasons), None)


def _reasons(against: Sequence[Sequence[str]]) -> list[str]:
    """What stands against all methods alike; else what stands against each; nothing where one has no obstacle."""
    if not all(against):
        return []
    alike = [message for message in against[0] if all(message in each for each in against)]
    return alike or [*dict.fromkeys(message for each in against for message in each)]


def _require_sharding(model: Model, target: Machine) -> None:
    if target.world == 1:
        raise RecipeError(f"FSDP shards over several devices, and {target} has one")
    if not draft.can_wrap(model):
        raise RecipeError(
            f"FSDP wraps a model by its layer class, which is not known for {model.kind}; leave out --fsdp"
        )


def write(best: Plan | None, file: str) -> Placed:
    """The best plan as a recipe file, with what it reads. Raises RecipeError where there is none or the file exists."""
    if best is None:
        raise RecipeError(f"nothing fits, so `{file}` is not written")
    path = Path(file).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        raise RecipeError(f"`{file}`: a recipe's name ends with .yaml")
    return place(path, writing.text(best.draft), best.draft.job.values)


def _machine(text: str, host_ram_gib: float | None) -> Machine:
    found = machines.machine(text, host_ram_gib)
    if found.device.usable_gib is None:
        raise RecipeError(
            f"machine `{text}`: no device memory is known for {found.device.id}, so nothing can be planned"
        )
    return found if host_ram_gib else found._replace(host_ram_gib=upgrade.usual_ram(found))
