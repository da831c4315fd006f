"""Do the accelerators answer, are they those that the run wants, are their device files there, are they healthy, and
is their memory free?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from validator.doctor.check_result import CheckContext, CheckResult, State
from validator.knowledge.tables import yaml_table
from validator.machine import amd, ascend, driver
from validator.machine.driver import DeviceProcess, is_own_process, process_owner
from validator.machine.nvidia import NvidiaDevice, read_devices
from validator.physics.estimate import GIB
from validator.run.prediction import Job


def check_device_memory(job: Job | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield a line if other processes hold device memory that the run needs. The prediction is what the driver shows
    for the run, context included; whether it fits into what is usable of a device is a question of `check`."""
    if job is None or context.allocation is None:
        return
    need, known = (
        job.device_memory,
        [device for device in context.allocation.accelerators if device.free_gib is not None],
    )
    fullest = min(known, key=lambda device: device.free_gib or 0.0, default=None)
    if need is None or fullest is None or (free := fullest.free_gib) is None or need.high / GIB < free:
        return
    if job.machine and free >= (job.machine.device.usable_gib or free + 1):
        return
    short = need.expected / GIB >= free
    found = f"device {fullest.visible_ids[0]} has {free:.1f} GiB free of {fullest.memory_gib:.1f}"
    band = f"{need.expected / GIB:.1f} ({need.low / GIB:.1f} to {need.high / GIB:.1f})"
    needs = f"the run {'needs' if short else 'may need'} {band}: end what takes them, or choose other devices"
    text = f"{found}, {fullest.used_gib:.1f} are taken; {needs}"
    yield CheckResult("error" if short else "warning", "device memory", text)


_DEVICES = "devices"
# What a driver's program says, and what to do about it.
_DRIVER_REMEDIES = {
    "Driver/library version mismatch": "the driver was updated while it was at work: reboot",
    "couldn't communicate with the NVIDIA driver": "its kernel module is not loaded: `sudo modprobe nvidia`; after an "
    "update of the kernel install the driver anew",
    "Failed to initialize NVML: Unknown Error": "the container lost its devices: start it again",
    "the device is used": "another container holds the devices: end it",
    "does not answer": "the driver hangs: reboot",
}
_NOT_IN_CATALOGUE = "is not in the catalogue"  # a device that works, and shows no memory of its own
# Files of a driver whose program is missing, as in a container that gets the devices alone.
_DRIVER_FILES = {
    "dev/nvidia0": ("nvidia-smi", "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    "dev/davinci0": ("npu-smi", "mount /usr/local/bin/npu-smi and /usr/local/Ascend/driver into the container"),
    "dev/kfd": ("rocm-smi", "`apt install rocm-smi-lib`"),
}


def check_devices(job: Job | None, context: CheckContext) -> Iterator[CheckResult]:
    """The devices: whether they answer, are those that the run wants, and have memory left for it.

    A machine without devices, such as a login node, is an error only for a run that wants some.
    """
    wanted = str(context.recipe_machine or "")
    if context.driver_error:
        remedy = next((remedy for words, remedy in _DRIVER_REMEDIES.items() if words in context.driver_error), "")
        known = _NOT_IN_CATALOGUE not in context.driver_error and (wanted or job is None)
        yield CheckResult("error" if known else "warning", _DEVICES, context.driver_error, wanted, remedy)
    elif context.machine is None:
        yield _no_device(context.root, wanted)
    elif context.allocation_error:
        yield CheckResult("error", _DEVICES, context.allocation_error, wanted)
    else:
        here, assumed = context.machine, context.recipe_machine
        alike = assumed is None or (assumed.device.id == here.device and assumed.devices <= len(here.accelerators))
        # A run may do with other devices, and other checks tell how; without a run they should be as named.
        state: State = "ok" if alike else "warning" if job else "error"
        yield CheckResult(state, _DEVICES, str(here), wanted)
        for line in here.unreachable:
            remedy = "the device has left the bus: reboot, or reseat it"
            yield CheckResult("warning" if job else "error", _DEVICES, line, "", remedy)
        for note in context.allocation.notes if context.allocation else here.notes():
            if note.kind == "other":  # the machine itself stands above, and check_processes tells who holds memory
                yield CheckResult("ok", _DEVICES, note.text)
        yield from check_device_memory(job, context)


def _no_device(root: Path, wanted: str) -> CheckResult:
    for file, (program, remedy) in _DRIVER_FILES.items():
        if (root / file).exists():
            return CheckResult("warning", _DEVICES, f"/{file} is there, and {program} is not", wanted, remedy)
    compute = "run it on a compute node, such as by `srun`" if wanted else ""
    return CheckResult("error" if wanted else "ok", _DEVICES, "this machine shows no device", wanted, compute)


_DEVICE_FILES = "device files"


class _RequiredFiles(NamedTuple):
    """Files that a driver needs beside the one that matches `shown`. Without them `who` cannot start; the program
    `maker` makes them when they are asked for."""

    shown: str
    files: tuple[str, ...]
    who: str
    remedy: str
    maker: str = ""


_REQUIRED_FILES = (
    _RequiredFiles("dev/nvidiactl", ("dev/nvidia-uvm",), "CUDA", "`sudo nvidia-modprobe -u -c=0` on the host",
            "usr/bin/nvidia-modprobe"),
    _RequiredFiles("dev/kfd", ("dev/dri",), "ROCm", "`docker run --device /{file} …`"),
)  # fmt: skip


def check_device_files(job: Job | None, context: CheckContext) -> Iterator[CheckResult]:
    """Device files that CUDA, ROCm or CANN needs beside those of the devices; containers may lack them.

    nvidia-smi works without the file for memory, and CUDA does not ("CUDA unknown error"). Ascend's containers are
    given each file by name."""
    first, *others = (file.removeprefix("/") for file in yaml_table("nodes")["ascend"]["container"]["devices"])
    ascend_files = _RequiredFiles(first.format("[0-9]*"), tuple(others), "CANN", "`docker run --device /{file} …`")
    for needed in () if job and job.on_cpu else (*_REQUIRED_FILES, ascend_files):
        made = needed.maker and (context.root / needed.maker).exists()
        for file in needed.files if any(context.root.glob(needed.shown)) and not made else ():
            if not (context.root / file).exists():
                remedy = needed.remedy.format(file=file)
                yield CheckResult("error", _DEVICE_FILES, f"no /{file}, and {needed.who} cannot start", "", remedy)


_MIN_PROCESS_GIB = 1.0  # GiB: a screen holds less


def check_processes(job: Job | None, context: CheckContext) -> Iterator[CheckResult]:
    """Processes that hold memory of the devices.

    The largest first, or that some are not seen from here. Whether enough is left for the run, check_device_memory
    tells."""
    if job and job.on_cpu:
        return
    devices = [*context.machine.accelerators, *context.machine.other_accelerators] if context.machine else []
    names = {name: device.visible_ids[0] for device in devices for name in device.visible_ids[1:]}
    nvidia = [process for device in read_devices() for process in device.processes]
    found = nvidia or ascend.read_processes() or amd.read_processes()
    there = [each for each in found if each.gib is None or each.gib > _MIN_PROCESS_GIB]
    for process in sorted(there, key=lambda each: -(each.gib or 0.0)):
        remedy = f"if it is a left-over: `kill {process.pid}`" if is_own_process(process.pid, context.root) else ""
        yield CheckResult("warning", "processes", _describe_process(process, names, context.root), "", remedy)
    # Processes of other containers do not show.
    if not there and context.machine and (used := context.machine.memory_use_note()):
        found_by_memory = f"{used}, none of which is seen from here"
        yield CheckResult("warning", "processes", found_by_memory, "", "look for them on the host")


def _describe_process(process: DeviceProcess, names: dict[str, str], root: Path) -> str:
    owner = process_owner(process.pid, root)
    size = f"{process.gib:.1f} GiB" if process.gib is not None else "memory"
    device = f"device {names.get(process.device, process.device)}" if process.device else "the devices"
    origin = f"of {owner}" if owner else "not seen from here"
    return f"{size} of {device} held by {Path(process.name).name} (pid {process.pid}, {origin})"


_RESET_REMEDY = "once nothing runs on it: `sudo nvidia-smi --gpu-reset -i {index}`, else reboot"


class _Fault(NamedTuple):
    """A fact of `nvidia-smi -q` and the values of it that mean a fault; `means` says what the fault does."""

    fact: str
    values: str
    state: State
    means: str
    remedy: str


# Names of facts as drivers from 450 to 610 write them.
_FAULTS = (
    _Fault("Fabric / State", "In Progress|Not Started", "error", "CUDA is not initialized without it (error 802)",
           "start the fabric manager of the driver's release: `sudo systemctl start nvidia-fabricmanager`"),
    _Fault("GPU Reset Status / Reset Required", "Yes", "error", "no process can start on it", _RESET_REMEDY),
    _Fault("GPU Recovery Action", "(?!Drain).*(Reset|Reboot).*", "error", "no process can start on it", _RESET_REMEDY),
    _Fault("GPU Recovery Action", "Drain.*", "warning", "it has to be reset soon", _RESET_REMEDY),
    _Fault("Compute Mode", "Prohibited", "error", "no process may use it", "`sudo nvidia-smi -i {index} -c 0`"),
    _Fault("Remapped Rows / Remapping Failure Occurred", "Yes", "error", "its memory has faults left", "replace it"),
    _Fault("Remapped Rows / Pending", "Yes", "warning", "a faulty row of its memory is still in use", _RESET_REMEDY),
    _Fault("Retired Pages / Pending.*", "Yes", "warning", "a faulty page of its memory is still in use", _RESET_REMEDY),
    _Fault("ECC Errors / Volatile / .*Uncorrectable.*", "[1-9][0-9]*", "warning", "its memory failed since a reset",
           _RESET_REMEDY),
    _Fault("Clocks .* Reasons / .*HW Thermal Slowdown", "Active", "warning", "it is too hot and slows down",
           "look after its cooling"),
    _Fault("Clocks .* Reasons / .*HW Power Brake Slowdown", "Active", "warning", "its power supply slows it down",
           "look after the power supply"),
)  # fmt: skip
_ASCEND_STATES: dict[str, State] = {"Warning": "warning", "Alarm": "error", "Critical": "error"}
# As the kernel's log has them since the node was started.
_XID_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
# Errors of the hardware (https://docs.nvidia.com/deploy/xid-errors/), without those of programs, such as 13 and 31.
_HARDWARE_XIDS = {
    48: "uncorrectable memory error", 64: "a faulty row of memory was not remapped", 74: "NVLink error",
    79: "fallen off the bus", 92: "many correctable memory errors", 95: "uncontained memory error",
    119: "its firmware did not answer", 120: "error of its firmware", 140: "uncorrected memory error",
    154: "needs a reset or a reboot",
}  # fmt: skip


def check_health(job: Job | None, context: CheckContext) -> Iterator[CheckResult]:
    """Faults that drivers and the kernel's log know of devices that answer.

    One line for each fault.
    """
    if job and job.on_cpu:
        return
    for index, device in enumerate(read_devices()):
        yield from (_downgrade_if_unused(line, device.uuid, context) for line in _nvidia_faults(str(index), device))
    for name, word in ascend.read_health().items():
        if word in _ASCEND_STATES:
            remedy = f"`npu-smi info -t health -i {name}` says more"
            line = CheckResult(_ASCEND_STATES[word], "health", f"device {name}: {word}", "OK", remedy)
            yield _downgrade_if_unused(line, name, context)
    # Each error once for each device; nothing if users may not read the log.
    logged = dict.fromkeys((bus, int(code)) for bus, code in _XID_LINE.findall(driver.run_tool("dmesg") or ""))
    for bus, code in logged:
        if code in _HARDWARE_XIDS:
            found = f"Xid {code} on {bus} since the node was started: {_HARDWARE_XIDS[code]}"
            remedy = "unless it was reset since: reboot, and replace it where that comes back"
            yield CheckResult("warning", "Xid", found, "", remedy)


def _downgrade_if_unused(line: CheckResult, name: str, context: CheckContext) -> CheckResult:
    """Return the line, as a warning if the run does not take the device."""
    taken = context.allocation.accelerators if context.allocation else ()
    if taken and not any(name in device.visible_ids for device in taken):
        return line._replace(state="warning")
    return line


def _nvidia_faults(index: str, device: NvidiaDevice) -> Iterator[CheckResult]:
    for fault in _FAULTS:
        for fact, value in device.facts.items():
            if re.fullmatch(fault.fact, fact) and re.fullmatch(fault.values, value):
                told = f"device {index}: {fact}: {value}; {fault.means}"
                yield CheckResult(fault.state, "health", told, "", fault.remedy.format(index=index))
