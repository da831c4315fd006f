"""The two questions that `plan` answers: how to train this model on this machine, and which model to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator import catalog, choice, placing, plan, planned, upgrade, writing
from validator.catalog import Machine
from validator.diagnostic import RecipeError
from validator.placing import Placed
from validator.plan import METHODS, Plan


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
    wanted = catalog.model(model)
    plans = plan.search(wanted, target, samples, length, methods, stage, fsdp)
    upgrades = [] if plans else upgrade.nearest(wanted, target, methods, length)
    return Answer(planned.result(wanted, target, samples, plans, upgrades), plans[0] if plans else None)


def write(best: Plan | None, file: str) -> Placed:
    """The best plan as a recipe file, with what it reads. Raises RecipeError where there is none or the file exists."""
    if best is None:
        raise RecipeError(f"nothing fits, so `{file}` is not written")
    path = Path(file).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        raise RecipeError(f"`{file}`: a recipe's name ends with .yaml")
    return placing.place(path, writing.text(best.draft), best.draft.job.values)


def _machine(text: str, host_ram_gib: float | None) -> Machine:
    found = catalog.machine(text, host_ram_gib)
    if found.device.usable_gib is None:
        raise RecipeError(
            f"machine `{text}`: no device memory is known for {found.device.id}, so nothing can be planned"
        )
    return found if host_ram_gib else found._replace(host_ram_gib=upgrade.usual_ram(found))
