"""Do the accelerators answer, are they those that the run wants, are their device files there, are they healthy, and
is their memory free?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from validator.doctor.check_result import CheckContext, CheckResult, State
from validator.knowledge.devices import Machine
from validator.knowledge.tables import yaml_table
from validator.machine import amd, ascend, driver_tool
from validator.machine.accelerator import DeviceProcess, is_own_process, process_owner
from validator.machine.nvidia import NvidiaDevice, read_devices
from validator.machine.this_machine import ThisMachine
from validator.run.prediction import GIB, Job


def check_device_memory(job: Job | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield a line if other processes hold device memory that the run needs. The prediction is what the driver shows
    for the run, context included; whether it fits into what is usable of a device is a question of `check`."""
    if job is None or context.target is None:
        return
    need, known = job.device_memory, [device for device in context.target.accelerators if device.free_gib is not None]
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
    """The accelerators: whether they answer, are those that the run wants, and have memory left for it.

    The devices here, beside those that the run wants. A machine without any, such as a login node, is at fault
    where a run wants some.
    """
    wanted = str(context.assumed or "")
    if context.fault:
        remedy = next((remedy for words, remedy in _DRIVER_REMEDIES.items() if words in context.fault), "")
        known = _NOT_IN_CATALOGUE not in context.fault and (wanted or job is None)
        yield CheckResult("error" if known else "warning", _DEVICES, context.fault, wanted, remedy)
    elif context.here is None:
        yield _no_device(context.root, wanted)
    elif context.refused:
        yield CheckResult("error", _DEVICES, context.refused, wanted)
    else:
        yield CheckResult(_devices_state(context.here, context.assumed, job), _DEVICES, str(context.here), wanted)
        yield from _device_notes(context.here, context, job)


def _no_device(root: Path, wanted: str) -> CheckResult:
    for file, (program, remedy) in _DRIVER_FILES.items():
        if (root / file).exists():
            return CheckResult("warning", _DEVICES, f"/{file} is there, and {program} is not", wanted, remedy)
    compute = "run it on a compute node, such as by `srun`" if wanted else ""
    return CheckResult("error" if wanted else "ok", _DEVICES, "this machine shows no device", wanted, compute)


def _devices_state(here: ThisMachine, assumed: Machine | None, job: Job | None) -> State:
    """A run may do with other devices, which is told by what becomes of it; a machine by itself should be as named."""
    if assumed is None or (assumed.device.id == here.device and assumed.devices <= len(here.accelerators)):
        return "ok"
    return "warning" if job else "error"


def _device_notes(here: ThisMachine, context: CheckContext, job: Job | None) -> Iterator[CheckResult]:
    """What is to know of the devices, and of what the run gets of them."""
    for words in here.unreachable:
        yield CheckResult(
            "warning" if job else "error", _DEVICES, words, "", "the device has left the bus: reboot, or reseat it"
        )
    # What this machine is stands above, and who holds memory is what check_processes tells.
    for note in context.target.notes if context.target else here.notes():
        if note.kind == "other":
            yield CheckResult("ok", _DEVICES, note.text)
    yield from check_device_memory(job, context)


_DEVICE_FILES = "device files"


class _RequiredFiles(NamedTuple):
    """`shown` by a file that matches this, it needs `files` beside it; what cannot start without, and what to do. The
    program `maker` makes them where they are asked for."""

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
    """Device files beside those of the devices, which a container may lack while the driver's program works.

    What is missing: nvidia-smi does without the file for memory, with which CUDA begins ("CUDA unknown error");
    Ascend's containers are given each by name.
    """
    for driver in () if job and job.on_cpu else (*_REQUIRED_FILES, _ascend_files()):
        made = driver.maker and (context.root / driver.maker).exists()
        for file in driver.files if any(context.root.glob(driver.shown)) and not made else ():
            if not (context.root / file).exists():
                remedy = driver.remedy.format(file=file)
                yield CheckResult("error", _DEVICE_FILES, f"no /{file}, and {driver.who} cannot start", "", remedy)


def _ascend_files() -> _RequiredFiles:
    first, *others = (file.removeprefix("/") for file in yaml_table("nodes")["ascend"]["container"]["devices"])
    return _RequiredFiles(first.format("[0-9]*"), tuple(others), "CANN", "`docker run --device /{file} …`")


_MIN_PROCESS_GIB = 1.0  # GiB: a screen holds less


def check_processes(job: Job | None, context: CheckContext) -> Iterator[CheckResult]:
    """Who holds memory of the devices.

    Each process that holds memory, the largest first; or that somebody does who is not seen from here. Whether what
    is left is enough for the run is a question of `devices`.
    """
    if job and job.on_cpu:
        return
    names = _names_by_uuid(context)
    there = [each for each in _all_processes() if (each.gib or 0.0) > _MIN_PROCESS_GIB or each.gib is None]
    for each in sorted(there, key=lambda each: -(each.gib or 0.0)):
        yield CheckResult(
            "warning", "processes", _describe_process(each, names, context.root), "", _kill_remedy(each, context.root)
        )
    if not there:
        yield from _unseen_processes(context)


def _all_processes() -> list[DeviceProcess]:
    nvidia = [holder for device in read_devices() for holder in device.processes]
    return nvidia or ascend.read_processes() or amd.read_processes()


def _names_by_uuid(context: CheckContext) -> dict[str, str]:
    """The number of each device by its UUID."""
    there = [*context.here.accelerators, *context.here.other_accelerators] if context.here else []
    return {name: each.visible_ids[0] for each in there for name in each.visible_ids[1:]}


def _describe_process(holder: DeviceProcess, names: dict[str, str], root: Path) -> str:
    who = process_owner(holder.pid, root)
    size = f"{holder.gib:.1f} GiB" if holder.gib is not None else "memory"
    device = f"device {names.get(holder.device, holder.device)}" if holder.device else "the devices"
    origin = f"of {who}" if who else "not seen from here"
    return f"{size} of {device} held by {Path(holder.name).name} (pid {holder.pid}, {origin})"


def _kill_remedy(holder: DeviceProcess, root: Path) -> str:
    return f"if it is a left-over: `kill {holder.pid}`" if is_own_process(holder.pid, root) else ""


def _unseen_processes(context: CheckContext) -> Iterator[CheckResult]:
    """What is taken where no process shows: those of other containers do not."""
    taken = context.here.memory_use_note() if context.here else None
    if taken:
        yield CheckResult(
            "warning", "processes", f"{taken}, none of which is seen from here", "", "look for them on the host"
        )


_RESET_REMEDY = "once nothing runs on it: `sudo nvidia-smi --gpu-reset -i {index}`, else reboot"


class _Fault(NamedTuple):
    """A fact of `nvidia-smi -q`, its values that mean a fault, and what to do; `means` says what it is."""

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
    """What drivers and the kernel's log know to be wrong with devices that answer.

    One line for each fault; nothing where none is known.
    """
    if job and job.on_cpu:
        return
    for index, device in enumerate(read_devices()):
        yield from (_downgrade_if_unused(line, device.uuid, context) for line in _nvidia_faults(str(index), device))
    for name, word in ascend.read_health().items():
        if word in _ASCEND_STATES:
            remedy = f"`npu-smi info -t health -i {name}` says more"
            yield _downgrade_if_unused(
                CheckResult(_ASCEND_STATES[word], "health", f"device {name}: {word}", "OK", remedy), name, context
            )
    yield from _logged_xids()


def _downgrade_if_unused(line: CheckResult, name: str, context: CheckContext) -> CheckResult:
    """A fault of a device that the run does not take does not stop it."""
    taken = context.target.accelerators if context.target else ()
    if taken and not any(name in device.visible_ids for device in taken):
        return line._replace(state="warning")
    return line


def _nvidia_faults(index: str, device: NvidiaDevice) -> Iterator[CheckResult]:
    for fault in _FAULTS:
        for fact, value in device.facts.items():
            if re.fullmatch(fault.fact, fact) and re.fullmatch(fault.values, value):
                told = f"device {index}: {fact}: {value}; {fault.means}"
                yield CheckResult(fault.state, "health", told, "", fault.remedy.format(index=index))


def _logged_xids() -> Iterator[CheckResult]:
    """Each error once for each device; nothing where users may not read the log."""
    seen = dict.fromkeys((bus, int(code)) for bus, code in _XID_LINE.findall(driver_tool.run_tool("dmesg") or ""))
    for bus, code in seen:
        if code in _HARDWARE_XIDS:
            found = f"Xid {code} on {bus} since the node was started: {_HARDWARE_XIDS[code]}"
            remedy = "unless it was reset since: reboot, and replace it where that comes back"
            yield CheckResult("warning", "Xid", found, "", remedy)
