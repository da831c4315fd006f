"""Where every GiB of a job goes, as the fixed JSON structure of `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from validator.advise import changes
from validator.diagnostic import RecipeError
from validator.job.job import GIB, Job
from validator.memory import Estimate, trainable_parameters
from validator.train import handoff


def explain(job: Job, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The structure that `explain --format json` prints. Sizes in GiB (2^30 bytes), rounded to 0.01. Raises RecipeError
    where model or machine is not known."""
    _require_known(job)
    return {
        "path": job.path,
        "machine": _machine(job),
        "model": _model(job),
        "verdict": job.verdict,
        "device_gib": _device(job),
        "host_gib": _band(job.host_memory),
        "disk_gib": _disk(job),
        "samples": {"recommended": job.samples, "found": _found(job)},
        "changes": [
            {
                "set": dict(change.set),
                "device_gib": round(change.device_gib, 2),
                "host_gib": round(change.host_gib, 2),
                "verdict": change.verdict,
                "note": change.note,
            }
            for change in changes.nearest(job)
        ],
        "command": handoff.commands(job, job.path, overrides),
    }


def _require_known(job: Job) -> None:
    missing = None if job.model else "names no model; set `model_name_or_path`"
    problem = job.model_problem or job.machine_problem or missing
    if problem:
        raise RecipeError(f"{job.path}: {problem}")


def _machine(job: Job) -> dict[str, Any] | None:
    if job.machine is None:
        return None
    device = job.machine.device
    return {
        "nodes": job.machine.nodes,
        "devices": job.machine.devices,
        "device": device.id,
        "device_gib": device.memory_gib,
        "usable_gib": device.usable_gib,
        "host_ram_gib": job.machine.host_ram_gib,
    }


def _model(job: Job) -> dict[str, Any] | None:
    if job.model is None or job.workload is None:
        return None
    return {
        "name": job.model_name,
        "parameters": job.model.parameters + job.model.vision_parameters,
        "trainable_parameters": trainable_parameters(job.model.arch, job.workload),
    }


def _found(job: Job) -> int | None:
    """Rows of the local data sets that the recipe names; None where one of them is elsewhere or cannot be read."""
    counted = [dataset.rows for dataset in job.datasets]
    if not counted or len(counted) < len(set(job.words("dataset"))):
        return None
    if any(rows is None or rows.problem for rows in counted):
        return None
    return sum(rows.count for rows in counted if rows)


def _device(job: Job) -> dict[str, Any] | None:
    found = _band(job.device_memory)
    if found is None or job.device_memory is None:
        return None
    gaps = list(job.device_memory.gaps)
    return {"allocated": round(job.device_memory.allocated / GIB, 2), **found, "few_measurements_of": gaps}


def _band(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {
        "low": round(estimate.low / GIB, 2),
        "expected": round(estimate.expected / GIB, 2),
        "high": round(estimate.high / GIB, 2),
        "terms": _terms(estimate.terms),
    }


def _terms(terms: Mapping[str, float]) -> dict[str, float]:
    return {name: round(size / GIB, 2) for name, size in sorted(terms.items(), key=lambda pair: -pair[1])}


def _disk(job: Job) -> dict[str, float] | None:
    if job.disk is None:
        return None
    return {"checkpoint": round(job.checkpoint / GIB, 2), "total": round(sum(job.disk.values()) / GIB, 2)}
