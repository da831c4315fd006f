"""The accelerators: whether they answer, are those that the run wants, and have memory left for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from validator.doctor import line
from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.here.machine import Here
from validator.job.job import Job
from validator.tables.machines import Machine
from validator.train import room

_WHAT = "devices"
# What a driver's program says, and what to do about it.
_REMEDIES = {
    "Driver/library version mismatch": "the driver was updated while it was at work: reboot",
    "couldn't communicate with the NVIDIA driver": "its kernel module is not loaded: `sudo modprobe nvidia`; after an "
    "update of the kernel install the driver anew",
    "Failed to initialize NVML: Unknown Error": "the container lost its devices: start it again",
    "the device is used": "another container holds the devices: end it",
    "does not answer": "the driver hangs: reboot",
}
_UNKNOWN = "is not in the catalogue"  # a device that works, and shows no memory of its own
# Files of a driver whose program is missing, as in a container that gets the devices alone.
_FILES = {
    "dev/nvidia0": ("nvidia-smi", "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    "dev/davinci0": ("npu-smi", "mount /usr/local/bin/npu-smi and /usr/local/Ascend/driver into the container"),
    "dev/kfd": ("rocm-smi", "`apt install rocm-smi-lib`"),
}


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """The devices here, beside those that the run wants. A machine without any, such as a login node, is at fault
    where a run wants some."""
    wanted = str(node.assumed or "")
    if node.fault:
        remedy = next((remedy for words, remedy in _REMEDIES.items() if words in node.fault), "")
        known = _UNKNOWN not in node.fault and (wanted or job is None)
        yield Line("error" if known else "warning", _WHAT, node.fault, wanted, remedy)
    elif node.here is None:
        yield _none(node.root, wanted)
    elif node.refused:
        yield Line("error", _WHAT, node.refused, wanted)
    else:
        yield Line(_state(node.here, node.assumed, job), _WHAT, str(node.here), wanted)
        yield from _noted(node.here, node, job)


def _none(root: Path, wanted: str) -> Line:
    for file, (program, remedy) in _FILES.items():
        if (root / file).exists():
            return Line("warning", _WHAT, f"/{file} is there, and {program} is not", wanted, remedy)
    compute = "run it on a compute node, such as by `srun`" if wanted else ""
    return Line("error" if wanted else "ok", _WHAT, "this machine shows no device", wanted, compute)


def _state(here: Here, assumed: Machine | None, job: Job | None) -> State:
    """A run may do with other devices, which is told by what becomes of it; a machine by itself should be as named."""
    if assumed is None or (assumed.device.id == here.device and assumed.devices <= len(here.accelerators)):
        return "ok"
    return "warning" if job else "error"


def _noted(here: Here, node: Node, job: Job | None) -> Iterator[Line]:
    """What is to know of the devices, and of what the run gets of them."""
    for words in here.lost:
        yield Line("warning" if job else "error", _WHAT, words, "", "the device has left the bus: reboot, or reseat it")
    for words in node.target.lines if node.target else here.notes():
        # What this machine is stands above, and who takes memory is told by holders.py.
        if words not in (*here.lost, here.taken()) and not words.startswith(f"this machine: {here}"):
            yield Line("ok", _WHAT, words)
    if job and node.target:
        yield from (line.of("device memory", each) for each in room.devices(job, node.target.accelerators))
