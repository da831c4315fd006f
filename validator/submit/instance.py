"""What a task of SkyPilot asks of the instances that it runs on, and what of them outlasts it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from validator.diagnostic import RecipeError
from validator.submit.manifest import Said, Value
from validator.submit.site import SkyPilot
from validator.submit.work import Work
from validator.tables.data import listing

# Where a run starts, and where relative mounts lead to (sky/skylet/constants.py, SKY_REMOTE_WORKDIR).
FOLDER = "~/sky_workdir"
# GiB: what a task gets that asks for nothing (sky/resources.py), and what system and packages take of it.
_DISK, _SYSTEM = 256, 60
_MEMORY = "GiB: the high end of the prediction, with headroom. SkyPilot makes /dev/shm a share of main memory."
_RECOVERY = "A run that ends with an error is started once more, and goes on from its last checkpoint."


def lasting(own: SkyPilot) -> list[str]:
    """Where buckets and volumes of the site are seen."""
    return [*own.mounts, *own.volumes]


def lasts(work: Work, own: SkyPilot) -> bool:
    """Whether the results are in one of them, and not on disks that go with the nodes."""
    output = PurePosixPath(work.output)
    return any(output.is_relative_to(mount.removeprefix(f"{FOLDER}/")) for mount in lasting(own))


def resources(work: Work, own: SkyPilot) -> Mapping[str, Value]:
    """What to ask for of each node; the site's keys win. Raises RecipeError where SkyPilot knows no such device."""
    disk = _SYSTEM + (work.disk_gib or 0)
    ours: dict[str, Value] = {} if "accelerators" in own.resources else _accelerators(work, own)
    ours["cpus"] = f"{work.cpus}+"
    if work.memory_gib:
        ours["memory"] = Said(f"{work.memory_gib}+", f"{_MEMORY} {work.relief}")
    if disk > _DISK:
        ours["disk_size"] = Said(disk, "GiB: the model, the checkpoints that lie there at once, and packages.")
    if own.managed and lasts(work, own):
        ours["job_recovery"] = Said({"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 1}, _RECOVERY)
    return {**ours, **own.resources}


def _accelerators(work: Work, own: SkyPilot) -> dict[str, Value]:
    """Any of the names will do."""
    if work.device.vendor == "cpu":
        return {}
    names = [own.accelerator] if own.accelerator else listing("engines").get(work.device.id, {}).get("skypilot")
    if not names:
        raise RecipeError(
            f"SkyPilot knows no {work.device.name}; submit it `--to slurm` or `--to kubernetes`, or name under "
            "`skypilot: accelerator:` of the site file what your own pool calls it"
        )
    return {"accelerators": dict.fromkeys(names, work.devices)}
