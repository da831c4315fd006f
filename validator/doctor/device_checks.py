"""Do the accelerators answer, are they those that the run wants, are their device files there, are they healthy, and
is their memory free?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result, warning
from validator.knowledge.node_environment import vendor_drivers
from validator.knowledge.tables import yaml_table
from validator.machine import ascend, nvidia
from validator.machine.driver import process_owner
from validator.machine.this_machine import read_processes
from validator.physics.estimate import GIB
from validator.run.prediction import predict
from validator.run.settings import RunSettings


def check_device_memory(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield a line if other processes hold device memory that the run needs. The prediction is what the driver shows
    for the run, context included; whether it fits into what is usable of a device is a question of `check`."""
    if run is None or context.allocation is None:
        return
    need = predict(run).device_memory
    known = [device for device in context.allocation.accelerators if device.free_gib is not None]
    fullest = min(known, key=lambda device: device.free_gib or 0.0, default=None)
    if need is None or fullest is None or (free := fullest.free_gib) is None or need.high / GIB < free:
        return
    if run.machine and free >= (run.machine.device.usable_gib or free + 1):
        return
    short = need.expected / GIB >= free
    found = f"device {fullest.visible_ids[0]} has {free:.1f} GiB free of {fullest.memory_gib:.1f}"
    band = f"{need.expected / GIB:.1f} ({need.low / GIB:.1f} to {need.high / GIB:.1f})"
    needs = f"the run {'needs' if short else 'may need'} {band}: end other processes, or choose other devices"
    text = f"{found}, {fullest.used_gib:.1f} are in use; {needs}"
    yield result("error" if short else "warning", text, what="device memory")


_NOT_IN_CATALOGUE = "is not in the catalogue"  # a device that works, and shows no memory of its own


def check_devices(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The devices: whether they answer, are those that the run wants, and have memory left for it.

    A machine without devices, such as a login node, is an error only for a run that wants some.
    """
    wanted = str(context.recipe_machine or "")
    if context.driver_error:
        remedies = yaml_table("device_faults")["tools"].items()
        remedy = next((remedy for words, remedy in remedies if words in context.driver_error), "")
        known = _NOT_IN_CATALOGUE not in context.driver_error and (wanted or run is None)
        yield result("error" if known else "warning", context.driver_error, wanted, remedy)
    elif context.machine is None:
        yield _no_device(context.root, wanted)
    elif context.allocation_error:
        yield error(context.allocation_error, wanted)
    else:
        here, assumed = context.machine, context.recipe_machine
        alike = assumed is None or (assumed.device.id == here.device and assumed.devices <= len(here.accelerators))
        # A run may do with other devices, and other checks tell how; without a run they should be as named.
        state: State = "ok" if alike else "warning" if run else "error"
        yield result(state, str(here), wanted)
        for line in here.unreachable:
            yield result("warning" if run else "error", line, "", "the device has left the bus: reboot, or reseat it")
        for note in context.allocation.notes if context.allocation else here.notes():
            if note.kind == "other":  # the machine itself stands above, and check_processes tells who holds memory
                yield ok(note.text)
        yield from check_device_memory(run, context)


def _no_device(root: Path, wanted: str) -> CheckResult:
    for driver in vendor_drivers().values():
        if file := next(root.glob(driver.device_files), None):
            found = f"/{file.relative_to(root)} is there, but {driver.tool} is not installed"
            return warning(found, wanted, driver.tool_remedy)
    compute = "run it on a compute node, such as by `srun`" if wanted else ""
    return result("error" if wanted else "ok", "this machine shows no device", wanted, compute)


def check_device_files(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Device files that CUDA, ROCm or CANN needs beside those of the devices; containers may lack them.

    nvidia-smi works without the file for memory, and CUDA does not ("CUDA unknown error"). Ascend's containers are
    given each file by name."""
    for driver in () if run and run.on_cpu else vendor_drivers().values():
        made = driver.maker and (context.root / driver.maker).exists()
        for file in driver.needed_files if any(context.root.glob(driver.device_files)) and not made else ():
            if not (context.root / file).exists():
                yield error(f"no /{file}, and {driver.runtime} cannot start", "", driver.file_remedy.format(file=file))


_MIN_PROCESS_GIB = 1.0  # GiB: a screen holds less


def check_processes(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Processes that hold memory of the devices.

    The largest first, or that some are not seen from here. Whether enough is left for the run, check_device_memory
    tells."""
    if run and run.on_cpu:
        return
    devices = [*context.machine.accelerators, *context.machine.other_accelerators] if context.machine else []
    names = {name: device.visible_ids[0] for device in devices for name in device.visible_ids[1:]}
    there = [each for each in read_processes() if each.gib is None or each.gib > _MIN_PROCESS_GIB]
    for process in sorted(there, key=lambda each: -(each.gib or 0.0)):
        owner = process_owner(process.pid, context.root)
        remedy = f"if it is a left-over: `kill {process.pid}`" if owner and owner.is_me else ""
        size = f"{process.gib:.1f} GiB" if process.gib is not None else "memory"
        device = f"device {names.get(process.device, process.device)}" if process.device else "the devices"
        origin = f"of {owner.name}" if owner else "not seen from here"
        holder = f"{Path(process.name).name} (pid {process.pid}, {origin})"
        yield warning(f"{size} of {device} held by {holder}", "", remedy)
    # Processes of other containers do not show.
    if not there and context.machine and (used := context.machine.memory_use_note()):
        yield warning(f"{used}, none of which is seen from here", "", "look for them on the host")


def check_health(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Faults that drivers and the kernel's log know of devices that answer.

    One line for each fault.
    """
    if run and run.on_cpu:
        return
    known = yaml_table("device_faults")
    for index, device in enumerate(nvidia.read_devices()):
        for fault, (fact, value) in product(known["facts"], device.facts.items()):
            if re.fullmatch(fault["fact"], fact) and re.fullmatch(fault["values"], value):
                found, remedy = f"device {index}: {fact}: {value}; {fault['means']}", fault["remedy"]
                line = result(fault["state"], found, "", remedy.format(index=index))
                yield _downgrade_if_unused(line, device.uuid, context)
    for name, word in ascend.read_health().items():
        if word in known["states"]:
            remedy = f"`npu-smi info -t health -i {name}` says more"
            line = result(known["states"][word], f"device {name}: {word}", "OK", remedy)
            yield _downgrade_if_unused(line, name, context)
    for bus, code in nvidia.read_xids():
        if meaning := known["xids"]["errors"].get(code):
            remedy = "unless it was reset since: reboot, and replace it where that comes back"
            yield warning(f"Xid {code} on {bus} since the node was started: {meaning}", "", remedy, what="Xid")


def _downgrade_if_unused(line: CheckResult, name: str, context: CheckContext) -> CheckResult:
    """Return the line, as a warning if the run does not take the device."""
    taken = context.allocation.accelerators if context.allocation else ()
    if taken and not any(name in device.visible_ids for device in taken):
        return line._replace(state="warning")
    return line
