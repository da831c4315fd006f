"""Checks of the accelerators: do they answer, do they match what the run needs, do their device files exist, are they
healthy, and is their memory free?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from validator.doctor.check_result import CheckContext, CheckResult, State, error, ok, result, warning
from validator.knowledge.node_environment import vendor_drivers
from validator.knowledge.tables import yaml_table
from validator.machine import ascend, host, nvidia
from validator.machine.driver import process_owner
from validator.machine.this_machine import read_processes
from validator.physics.estimate import GIB
from validator.run.prediction import predict
from validator.run.settings import RunSettings


def check_device_memory(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield a result if other processes hold device memory that the run needs: an error if the expected need exceeds
    the free memory, a warning if only the high end of the prediction does. The predicted memory is what the driver
    shows for the run, the CUDA context included. Whether the run fits an empty device is a question for `check`, so
    nothing is yielded if no other process is in the way."""
    if run is None or context.allocation is None:
        return
    need = predict(run).device_memory
    readable_devices = [device for device in context.allocation.accelerators if device.free_gib is not None]
    fullest = min(readable_devices, key=lambda device: device.free_gib or 0.0, default=None)
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


def check_driver(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The driver of the devices, and its release, as far as the vendor's tool tells it.

    Nothing is yielded on a machine without devices. Whether the driver is new enough is told with torch's build."""
    if context.machine is None or (run and run.on_cpu):
        return
    vendor = context.machine.vendor
    nvidia_driver = nvidia.read_driver() if vendor == "nvidia" else None
    amd_release = context.root / "sys/module/amdgpu/version"
    release = {
        "nvidia": nvidia_driver.release if nvidia_driver else "",
        "ascend": ascend.read_driver_release() if vendor == "ascend" else "",
        "amd": amd_release.read_text("utf-8").strip() if amd_release.is_file() else "",
    }[vendor]
    yield ok(f"{vendor_drivers()[vendor].tool} shows the devices{f', release {release}' if release else ''}")


_NOT_IN_CATALOGUE = "is not in the catalogue"  # a device that works, and shows no memory of its own


def check_devices(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The devices: whether they answer, match what the run needs, and have enough free memory.

    Yield one result that describes the devices, and further results for faults. A machine without devices, such as a
    login node, is an error only if the run needs devices."""
    recipe_machine = str(context.recipe_machine or "")
    if context.driver_error:
        remedies = yaml_table("device_faults")["tools"].items()
        remedy = next((remedy for words, remedy in remedies if words in context.driver_error), "")
        is_error = _NOT_IN_CATALOGUE not in context.driver_error and (recipe_machine or run is None)
        yield result("error" if is_error else "warning", context.driver_error, recipe_machine, remedy)
    elif context.machine is None:
        yield _no_device(run, context.root, recipe_machine)
    elif context.allocation_error:
        yield error(context.allocation_error, recipe_machine)
    else:
        machine, assumed_machine = context.machine, context.recipe_machine
        is_alike = assumed_machine is None or (
            assumed_machine.device.id == machine.device and assumed_machine.devices <= len(machine.accelerators)
        )
        # A run may do with other devices, and other checks tell how; without a run they should be as named.
        state: State = "ok" if is_alike else "warning" if run else "error"
        yield result(state, str(machine), recipe_machine)
        for line in machine.unreachable:
            yield result("warning" if run else "error", line, "", "the device has left the bus: reboot, or reseat it")
        for note in context.allocation.notes if context.allocation else machine.notes():
            if note.kind == "other":  # the machine itself stands above, and check_processes tells who holds memory
                yield ok(note.text)
        yield from check_device_memory(run, context)


def _no_device(run: RunSettings | None, root: Path, recipe_machine: str) -> CheckResult:
    for driver in vendor_drivers().values():
        if file := next(root.glob(driver.device_files), None):
            found = f"/{file.relative_to(root)} is there, but {driver.tool} is not installed"
            return warning(found, recipe_machine, driver.tool_remedy)
    there = "on a compute node, such as by `srun`" if host.has_slurm() else "on that machine"
    remedy = f"run `lmf-recipes doctor` {there}" if recipe_machine else ""
    if run and not recipe_machine:
        return ok("this machine shows no device, and the run needs none")
    return result("error" if recipe_machine else "note", "this machine shows no device", recipe_machine, remedy)


def shows_no_device(context: CheckContext) -> bool:
    """True if neither a driver's tool nor a device file tells of devices, so that the run must be meant for another
    machine."""
    patterns = (driver.device_files for driver in vendor_drivers().values())
    return (
        context.machine is None
        and not context.driver_error
        and not any(any(context.root.glob(pattern)) for pattern in patterns)
    )


def check_device_files(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Device files that CUDA, ROCm or CANN needs besides those of the devices; containers may lack them.

    Yield an error for each missing file. nvidia-smi works without `/dev/nvidia-uvm`, but CUDA does not ("CUDA unknown
    error"). A container for Ascend must be started with each file by name."""
    for driver in () if run and run.on_cpu else vendor_drivers().values():
        has_maker = driver.maker and (context.root / driver.maker).exists()
        for file in driver.needed_files if any(context.root.glob(driver.device_files)) and not has_maker else ():
            if not (context.root / file).exists():
                yield error(f"no /{file}, and {driver.runtime} cannot start", "", driver.file_remedy.format(file=file))


_MIN_PROCESS_GIB = 1.0  # GiB: a screen holds less


def check_processes(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Processes that hold memory of the devices.

    Yield a warning for each process, the largest first. If device memory is in use but no process is visible from here,
    such as from within a container, yield one warning about that. Whether enough memory is left for the run is tested
    by check_device_memory."""
    if run and run.on_cpu:
        return
    devices = [*context.machine.accelerators, *context.machine.other_accelerators] if context.machine else []
    names = {name: device.visible_ids[0] for device in devices for name in device.visible_ids[1:]}
    processes = [each for each in read_processes() if each.gib is None or each.gib > _MIN_PROCESS_GIB]
    for process in sorted(processes, key=lambda each: -(each.gib or 0.0)):
        owner = process_owner(process.pid, context.root)
        remedy = f"if it is a left-over: `kill {process.pid}`" if owner and owner.is_me else ""
        size = f"{process.gib:.1f} GiB" if process.gib is not None else "memory"
        device = f"device {names.get(process.device, process.device)}" if process.device else "the devices"
        origin = f"of {owner.name}" if owner else "not seen from here"
        holder = f"{Path(process.name).name} (pid {process.pid}, {origin})"
        yield warning(f"{size} of {device} held by {holder}", "", remedy)
    # Processes of other containers do not show.
    if not processes and context.machine and (used := context.machine.memory_use_note()):
        yield warning(f"{used}, none of which is seen from here", "", "look for them on the host")


def check_health(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Faults of devices that answer, as reported by drivers and the kernel's log.

    Yield a result for each fault: from `nvidia-smi -q`, from npu-smi's health, and NVIDIA's errors (Xid) in the
    kernel's log."""
    if run and run.on_cpu:
        return
    faults = yaml_table("device_faults")
    for index, device in enumerate(nvidia.read_devices()):
        for fault, (fact, value) in product(faults["facts"], device.facts.items()):
            if re.fullmatch(fault["fact"], fact) and re.fullmatch(fault["values"], value):
                found, remedy = f"device {index}: {fact}: {value}; {fault['means']}", fault["remedy"]
                line = result(fault["state"], found, "", remedy.format(index=index))
                yield _downgrade_if_unused(line, device.uuid, context)
    for name, word in ascend.read_health().items():
        if word in faults["states"]:
            remedy = f"`npu-smi info -t health -i {name}` says more"
            line = result(faults["states"][word], f"device {name}: {word}", "OK", remedy)
            yield _downgrade_if_unused(line, name, context)
    for bus, code in nvidia.read_xids():
        if meaning := faults["xids"]["errors"].get(code):
            remedy = "unless it was reset since: reboot, and replace it where that comes back"
            yield warning(f"Xid {code} on {bus} since the node was started: {meaning}", "", remedy, what="Xid")


def _downgrade_if_unused(line: CheckResult, name: str, context: CheckContext) -> CheckResult:
    """Return the result unchanged, or as a warning if the run does not use the device `name` (UUID or index)."""
    accelerators = context.allocation.accelerators if context.allocation else ()
    if accelerators and not any(name in device.visible_ids for device in accelerators):
        return line._replace(state="warning")
    return line
