"""What a run gets on this machine, beside what its recipe assumes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from validator.diagnostic import RecipeError, plural
from validator.here import machine
from validator.here.accelerator import Accelerator
from validator.here.machine import Here
from validator.job.job import Job

# Less main memory than this share of what is assumed is told; firmware and kernel keep some of a server's 1,024 GiB.
_ALIKE = 0.95


@dataclass(frozen=True)
class Target:
    """What a recipe is judged by: `machine` and `host_ram_gib` as `check` takes them, None where the recipe's own hold.
    `accelerators` are those that the run takes, `variables` leave it no others; `lines` say so. `here` is this machine
    with all that it has, None where it shows no device."""

    machine: str | None = None
    host_ram_gib: float | None = None
    accelerators: Sequence[Accelerator] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    lines: Sequence[str] = ()
    here: Here | None = None


def target(job: Job, *, dry: bool) -> Target:
    """What `job`, resolved for the machine that it assumes, gets here. Raises RecipeError where a driver's program is
    there and shows no device; where `dry`, that is only told, as people try recipes on other machines."""
    if job.on_cpu or job.machine_problem:
        return Target()
    try:
        here = machine.look()
    except RecipeError as err:
        if not dry:
            raise
        return Target(lines=[f"{err}; {_judged(job)}; a run here would be refused"])
    if here is None:
        return Target(lines=[f"the devices of this machine are not known: {machine.NONE}; {_judged(job)}"])
    return _on(here, job, dry)


def named(name: str, job: Job) -> Target:
    """What `job`, resolved for the machine of this name, gets of the devices here to run on; it is judged by the name.
    Raises RecipeError where there are fewer. A driver's fault is only told, as the user knows the machine."""
    if job.on_cpu or job.machine is None:
        return Target(name)
    try:
        here = machine.look()
    except RecipeError as err:
        return Target(name, lines=[str(err)])
    if here is None:
        return Target(name)
    count = job.machine.devices
    _enough(count, here.most, f"`--machine {name}` has {_devices(count)}")
    taken, variables = here.only(count) if count <= len(here.accelerators) else ((), {})
    return Target(name, None, taken, variables, [*here.notes()], here)


def _judged(job: Job) -> str:
    return f"judged for {job.machine}" if job.machine else "memory is not judged"


def _on(here: Here, job: Job, dry: bool) -> Target:
    """As many devices as the recipe assumes, or as there are; the user's own number wins."""
    there = len(here.accelerators)
    assumed = job.machine.devices if job.machine else there
    count = _processes() or min(assumed, there)
    _enough(count, there, f"NPROC_PER_NODE={count}")
    taken, variables = here.only(count)
    nodes = f"{job.machine.nodes}x" if job.machine and job.machine.nodes > 1 else ""
    lines = [*_compared(here, job, dry), *here.notes(), *_number(job, assumed, count), *_spared(here, taken)]
    return Target(f"{nodes}{count}x{here.device}", here.host_ram_gib, taken, variables, lines, here)


def _processes() -> int | None:
    """The number of processes that the user sets for the launcher; None where it is no number."""
    text = os.environ.get("NPROC_PER_NODE", "")
    return int(text) or None if text.isdecimal() else None


def _enough(count: int, there: int, what: str) -> None:
    """A process without a device stops the others after they have loaded the model."""
    if count > there:
        raise RecipeError(f"{what}, {_devices(there)} here")


def _devices(count: int) -> str:
    return f"{count} {plural(count, 'device')}"


def _compared(here: Here, job: Job, dry: bool) -> Iterator[str]:
    """What this machine is, and what the recipe assumes where that is another or more."""
    assumed = job.machine
    if assumed is None:
        yield f"this machine: {here}"
        return
    ram = assumed.host_ram_gib
    less = ram and here.host_ram_gib and here.host_ram_gib < ram * _ALIKE
    alike = assumed.device.id == here.device and assumed.devices <= len(here.accelerators) and not less
    size = f" with {ram:.0f} GiB of RAM" if ram else ""
    hint = f" (`--machine {assumed}` judges by that)" if dry else ""
    other = f"; the recipe assumes {assumed}{size}{hint}"
    yield f"this machine: {here}{'' if alike else other}"


def _number(job: Job, assumed: int, count: int) -> Iterator[str]:
    """What another number of devices means for a step of training."""
    if count == assumed:
        return
    before, samples = job.effective_batch, job.micro_batch * (job.world // assumed) * count
    keep = f"; gradient_accumulation_steps={before // samples} keeps it" if before % samples == 0 else ""
    batch = samples * job.accumulation
    yield f"runs on {_devices(count)} instead of {assumed}: {batch} samples a step instead of {before}{keep}"


def _spared(here: Here, taken: Sequence[Accelerator]) -> Iterator[str]:
    there = len(here.accelerators)
    if len(taken) < there:
        names = ", ".join(device.names[0] for device in taken)
        yield f"runs on {len(taken)} of the {there} devices ({names}); NPROC_PER_NODE={there} takes all"
