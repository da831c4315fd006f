"""The recipes that come with the package, as rows: what `list` and the README table show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from validator.diagnostic import RecipeError
from validator.job import job
from validator.job.job import GIB, Job
from validator.job.naming import full_name, method_name, name
from validator.read import loader
from validator.tables import machines, models
from validator.tables.checkout import home
from validator.tables.machines import Machine

_COLUMNS = ("name", "model", "machine", "method", "device_gib", "host_gib", "samples", "verdict")


def jobs() -> Iterator[Job]:
    """Every recipe of the catalogue as a job, by name."""
    for path in sorted((home() / "recipes").glob("*.yaml"), key=lambda path: path.stem):
        yield job.resolve(loader.load(str(path)))


def rows(machine: str | None = None, model: str | None = None, method: str | None = None) -> list[dict[str, Any]]:
    """One row for each recipe that passes the filters. Raises RecipeError for an unknown machine or model."""
    target = machines.machine(machine) if machine else None
    wanted = models.model_by_any_name(model) if model else None
    return [
        _row(found)
        for found in jobs()
        if (target is None or _runs_on(found, target))
        and (wanted is None or (found.model is not None and found.model.arch == wanted.arch))
        and (method is None or method == method_name(found) or method in _variants(found))
    ]


def _variants(found: Job) -> list[str]:
    """What is special about a recipe, as its name says it: dpo, fsdp, offload, 32k, an optimizer."""
    stage = method_name(found).split("-")[1:]
    return stage + (full_name(found) or "").removeprefix(name(found) or "").split("-")[1:]


def _runs_on(found: Job, target: Machine) -> bool:
    """A recipe for the same device, for no more of them."""
    here = found.machine
    return (
        here is not None
        and here.device.id == target.device.id
        and here.nodes <= target.nodes
        and here.devices <= target.devices
    )


def _row(found: Job) -> dict[str, Any]:
    device, host = found.device_memory, found.host_memory
    return {
        "name": Path(found.path).stem,
        "summary": found.header.get("summary"),
        "model": found.model_name,
        "machine": str(found.machine) if found.machine else None,
        "method": method_name(found),
        "device_gib": round(device.expected / GIB, 1) if device else None,
        "host_gib": round(host.expected / GIB, 1) if host else None,
        "samples": found.samples,
        "verdict": found.verdict,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as aligned text."""
    if not rows:
        raise RecipeError("no recipe matches; `lmf-recipes list` shows all")
    cells = [_COLUMNS, *(tuple("-" if row[c] is None else str(row[c]) for c in _COLUMNS) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells) + "\n"
