"""Selects the devices of this machine that a run gets, and reports how this machine differs from the machine that the
recipe assumes."""

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
    """The devices of this machine that a run gets. `machine` (such as `4xa100-80g`) and `host_ram_gib` replace the
    recipe's own machine when the recipe is checked; None keeps the recipe's values. `accelerators` are the selected
    devices, and `device_env` holds the environment variables that hide all other devices from the run. `notes` explain
    the selection to the user. `this_machine` is this machine with all its devices; None if they are not known or not
    asked for. `refusal` is why a run would be refused here, if a dry run goes on nevertheless."""

    machine: str | None = None
    host_ram_gib: float | None = None
    accelerators: Sequence[Accelerator] = ()
    device_env: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    this_machine: ThisMachine | None = None
    refusal: str = ""


def allocate_devices(run: RunSettings, *, dry: bool) -> DeviceAllocation:
    """Select the devices of this machine for a run that is resolved for the recipe's own machine. Raises RecipeError if
    a driver's tool is installed but shows no usable device, or if NPROC_PER_NODE asks for more devices than this
    machine has. With `dry`, a tool without devices only leads to a note, because people try recipes on machines without
    devices."""
    if run.on_cpu or run.machine_problem:
        return DeviceAllocation()
    try:
        machine = this_machine.detect_machine()
    except RecipeError as err:
        if not dry:
            raise
        return DeviceAllocation(notes=[Note(f"{err}; {_judged_for(run)}")], refusal=str(err))
    if machine is None:
        unknown = f"the devices of this machine are not known: {this_machine.NO_DRIVER_TOOL}"
        return DeviceAllocation(notes=[Note(f"{unknown}; {_judged_for(run)}")])
    return _allocate_here(machine, run, dry)


def allocate_for_machine(name: str, run: RunSettings) -> DeviceAllocation:
    """Select the devices of this machine for a run that is resolved for the machine that the user names with
    `--machine`. Raises RecipeError if this machine has fewer devices than the named machine. An error of a driver's
    tool only leads to a note, because the user has named the machine."""
    if run.on_cpu or run.machine is None:
        return DeviceAllocation(name)
    try:
        machine = this_machine.detect_machine()
    except RecipeError as err:
        return DeviceAllocation(name, notes=[Note(str(err))])
    if machine is None:
        return DeviceAllocation(name)
    count = run.machine.devices
    _require_devices(count, machine.max_devices, f"`--machine {name}` has {_count_devices(count)}")
    selected, variables = machine.select_devices(count) if count <= len(machine.accelerators) else ((), {})
    return DeviceAllocation(name, None, selected, variables, [*machine.notes()], machine)


def _judged_for(run: RunSettings) -> str:
    return f"judged for {run.machine}" if run.machine else "memory is not judged"


def _allocate_here(machine: ThisMachine, run: RunSettings, dry: bool) -> DeviceAllocation:
    """Select as many devices as the recipe assumes, or all devices if this machine has fewer. NPROC_PER_NODE, if set,
    is the number instead. Raises RecipeError if NPROC_PER_NODE is larger than the number of devices."""
    available = len(machine.accelerators)
    assumed = run.machine.devices if run.machine else available
    requested = os.environ.get("NPROC_PER_NODE", "")
    count = (int(requested) if requested.isdecimal() else 0) or min(assumed, available)
    _require_devices(count, available, f"NPROC_PER_NODE={count}")
    selected, variables = machine.select_devices(count)
    nodes = f"{run.machine.nodes}x" if run.machine and run.machine.nodes > 1 else ""
    notes = [_compare_machines(machine, run, dry), *machine.notes()]
    if count != assumed:
        before, samples = run.batch.effective_batch, run.batch.micro_batch * (run.batch.world_size // assumed) * count
        keep = f"; gradient_accumulation_steps={before // samples} keeps it" if before % samples == 0 else ""
        steps = f"{samples * run.batch.accumulation} samples a step instead of {before}{keep}"
        notes.append(Note(f"runs on {_count_devices(count)} instead of {assumed}: {steps}"))
    if count < available:
        names = ", ".join(device.visible_ids[0] for device in selected)
        notes.append(
            Note(f"runs on {count} of the {available} devices ({names}); NPROC_PER_NODE={available} takes all")
        )
    return DeviceAllocation(
        f"{nodes}{count}x{machine.device}", machine.host_ram_gib, selected, variables, notes, machine
    )


def _require_devices(count: int, available: int, what: str) -> None:
    """Raise RecipeError if the run needs more devices (`count`) than this machine has. Otherwise a process without a
    device would stop the other processes only after they have loaded the model. `what` begins the message."""
    if count > available:
        raise RecipeError(f"{what}, {_count_devices(available)} here")


def _count_devices(count: int) -> str:
    return f"{count} {plural(count, 'device')}"


def _compare_machines(machine: ThisMachine, run: RunSettings, dry: bool) -> Note:
    """Return a note that describes this machine. The note also names the machine that the recipe assumes, if that
    machine has another device, more devices or more main memory. With `dry`, the note adds the option `--machine` that
    judges the recipe by that machine."""
    if (assumed := run.machine) is None:
        return Note(f"this machine: {machine}", "machine")
    ram = assumed.host_ram_gib
    has_less_ram = ram and machine.host_ram_gib and machine.host_ram_gib < ram * _SIMILAR_RAM_SHARE
    is_alike = assumed.device.id == machine.device and assumed.devices <= len(machine.accelerators) and not has_less_ram
    size = f" with {ram:.0f} GiB of RAM" if ram else ""
    hint = f" (`--machine {assumed}` judges by that)" if dry else ""
    return Note(
        f"this machine: {machine}{'' if is_alike else f'; the recipe assumes {assumed}{size}{hint}'}", "machine"
    )
