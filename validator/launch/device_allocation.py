"""How many and which of this machine's devices a run gets, and what that changes against the machine that its recipe
assumes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from validator.errors import RecipeError
from validator.machine import this_machine
from validator.machine.driver import Accelerator
from validator.machine.this_machine import Note, ThisMachine
from validator.run.settings import RunSettings
from validator.wording import plural

# Less main memory than this share of what is assumed is told; firmware and kernel keep some of a server's 1,024 GiB.
_SIMILAR_RAM_SHARE = 0.95


@dataclass(frozen=True)
class DeviceAllocation:
    """The devices of this machine that a run gets. The recipe is judged by `machine` and `host_ram_gib`, as `check`
    takes them; None: by its own. The run takes `accelerators`, `device_env` hides all others from it, and `notes` say
    so. `this_machine` has all devices; None if it shows none."""

    machine: str | None = None
    host_ram_gib: float | None = None
    accelerators: Sequence[Accelerator] = ()
    device_env: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    this_machine: ThisMachine | None = None


def allocate_devices(run: RunSettings, *, dry: bool) -> DeviceAllocation:
    """Allocate the devices here to a run that is resolved for its recipe's machine. Raises RecipeError if a driver's
    tool is installed and shows no device; a `dry` run only notes that, as people try recipes on other machines."""
    if run.on_cpu or run.machine_problem:
        return DeviceAllocation()
    try:
        here = this_machine.detect_machine()
    except RecipeError as err:
        if not dry:
            raise
        return DeviceAllocation(notes=[Note(f"{err}; {_judged_for(run)}; a run here would be refused")])
    if here is None:
        unknown = f"the devices of this machine are not known: {this_machine.NO_DRIVER_TOOL}"
        return DeviceAllocation(notes=[Note(f"{unknown}; {_judged_for(run)}")])
    return _allocate_here(here, run, dry)


def allocate_for_machine(name: str, run: RunSettings) -> DeviceAllocation:
    """Allocate the devices here to a run that is resolved for, and judged by, the machine that the user names. Raises
    RecipeError if there are fewer. A driver's error is only noted, as the user knows the machine."""
    if run.on_cpu or run.machine is None:
        return DeviceAllocation(name)
    try:
        here = this_machine.detect_machine()
    except RecipeError as err:
        return DeviceAllocation(name, notes=[Note(str(err))])
    if here is None:
        return DeviceAllocation(name)
    count = run.machine.devices
    _require_devices(count, here.max_devices, f"`--machine {name}` has {_count_devices(count)}")
    taken, variables = here.select_devices(count) if count <= len(here.accelerators) else ((), {})
    return DeviceAllocation(name, None, taken, variables, [*here.notes()], here)


def _judged_for(run: RunSettings) -> str:
    return f"judged for {run.machine}" if run.machine else "memory is not judged"


def _allocate_here(here: ThisMachine, run: RunSettings, dry: bool) -> DeviceAllocation:
    """Allocate as many devices as the recipe assumes, or as there are; NPROC_PER_NODE overrides both."""
    there = len(here.accelerators)
    assumed = run.machine.devices if run.machine else there
    requested = os.environ.get("NPROC_PER_NODE", "")
    count = (int(requested) if requested.isdecimal() else 0) or min(assumed, there)
    _require_devices(count, there, f"NPROC_PER_NODE={count}")
    taken, variables = here.select_devices(count)
    nodes = f"{run.machine.nodes}x" if run.machine and run.machine.nodes > 1 else ""
    notes = [_compare_machines(here, run, dry), *here.notes()]
    if count != assumed:
        before, samples = run.batch.effective_batch, run.batch.micro_batch * (run.batch.world_size // assumed) * count
        keep = f"; gradient_accumulation_steps={before // samples} keeps it" if before % samples == 0 else ""
        steps = f"{samples * run.batch.accumulation} samples a step instead of {before}{keep}"
        notes.append(Note(f"runs on {_count_devices(count)} instead of {assumed}: {steps}"))
    if count < there:
        names = ", ".join(device.visible_ids[0] for device in taken)
        notes.append(Note(f"runs on {count} of the {there} devices ({names}); NPROC_PER_NODE={there} takes all"))
    return DeviceAllocation(f"{nodes}{count}x{here.device}", here.host_ram_gib, taken, variables, notes, here)


def _require_devices(count: int, there: int, what: str) -> None:
    """Raise RecipeError if devices are missing: a process without one stops the others after they load the model."""
    if count > there:
        raise RecipeError(f"{what}, {_count_devices(there)} here")


def _count_devices(count: int) -> str:
    return f"{count} {plural(count, 'device')}"


def _compare_machines(here: ThisMachine, run: RunSettings, dry: bool) -> Note:
    """Return what this machine is, and what the recipe assumes if that is another machine or more."""
    if (assumed := run.machine) is None:
        return Note(f"this machine: {here}", "machine")
    ram = assumed.host_ram_gib
    less = ram and here.host_ram_gib and here.host_ram_gib < ram * _SIMILAR_RAM_SHARE
    alike = assumed.device.id == here.device and assumed.devices <= len(here.accelerators) and not less
    size = f" with {ram:.0f} GiB of RAM" if ram else ""
    hint = f" (`--machine {assumed}` judges by that)" if dry else ""
    return Note(f"this machine: {here}{'' if alike else f'; the recipe assumes {assumed}{size}{hint}'}", "machine")
