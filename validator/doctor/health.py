"""What drivers and the kernel's log know to be wrong with devices that answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.here import ascend, program
from validator.here.details import Details, details
from validator.job.job import Job

_RESET = "once nothing runs on it: `sudo nvidia-smi --gpu-reset -i {index}`, else reboot"


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
    _Fault("GPU Reset Status / Reset Required", "Yes", "error", "no process can start on it", _RESET),
    _Fault("GPU Recovery Action", "(?!Drain).*(Reset|Reboot).*", "error", "no process can start on it", _RESET),
    _Fault("GPU Recovery Action", "Drain.*", "warning", "it has to be reset soon", _RESET),
    _Fault("Compute Mode", "Prohibited", "error", "no process may use it", "`sudo nvidia-smi -i {index} -c 0`"),
    _Fault("Remapped Rows / Remapping Failure Occurred", "Yes", "error", "its memory has faults left", "replace it"),
    _Fault("Remapped Rows / Pending", "Yes", "warning", "a faulty row of its memory is still in use", _RESET),
    _Fault("Retired Pages / Pending.*", "Yes", "warning", "a faulty page of its memory is still in use", _RESET),
    _Fault("ECC Errors / Volatile / .*Uncorrectable.*", "[1-9][0-9]*", "warning", "its memory failed since a reset",
           _RESET),
    _Fault("Clocks .* Reasons / .*HW Thermal Slowdown", "Active", "warning", "it is too hot and slows down",
           "look after its cooling"),
    _Fault("Clocks .* Reasons / .*HW Power Brake Slowdown", "Active", "warning", "its power supply slows it down",
           "look after the power supply"),
)  # fmt: skip
_ASCEND: dict[str, State] = {"Warning": "warning", "Alarm": "error", "Critical": "error"}
# As the kernel's log has them since the node was started.
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
# Errors of the hardware (https://docs.nvidia.com/deploy/xid-errors/), without those of programs, such as 13 and 31.
_HARDWARE = {
    48: "uncorrectable memory error", 64: "a faulty row of memory was not remapped", 74: "NVLink error",
    79: "fallen off the bus", 92: "many correctable memory errors", 95: "uncontained memory error",
    119: "its firmware did not answer", 120: "error of its firmware", 140: "uncorrected memory error",
    154: "needs a reset or a reboot",
}  # fmt: skip


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """One line for each fault; nothing where none is known."""
    if job and job.on_cpu:
        return
    for index, device in enumerate(details()):
        yield from (_weighed(line, device.uuid, node) for line in _nvidia(str(index), device))
    for name, word in ascend.health().items():
        if word in _ASCEND:
            remedy = f"`npu-smi info -t health -i {name}` says more"
            yield _weighed(Line(_ASCEND[word], "health", f"device {name}: {word}", "OK", remedy), name, node)
    yield from _logged()


def _weighed(line: Line, name: str, node: Node) -> Line:
    """A fault of a device that the run does not take does not stop it."""
    taken = node.target.accelerators if node.target else ()
    if taken and not any(name in device.names for device in taken):
        return line._replace(state="warning")
    return line


def _nvidia(index: str, device: Details) -> Iterator[Line]:
    for fault in _FAULTS:
        for fact, value in device.facts.items():
            if re.fullmatch(fault.fact, fact) and re.fullmatch(fault.values, value):
                told = f"device {index}: {fact}: {value}; {fault.means}"
                yield Line(fault.state, "health", told, "", fault.remedy.format(index=index))


def _logged() -> Iterator[Line]:
    """Each error once for each device; nothing where users may not read the log."""
    seen = dict.fromkeys((bus, int(code)) for bus, code in _XID.findall(program.output("dmesg") or ""))
    for bus, code in seen:
        if code in _HARDWARE:
            found = f"Xid {code} on {bus} since the node was started: {_HARDWARE[code]}"
            remedy = "unless it was reset since: reboot, and replace it where that comes back"
            yield Line("warning", "Xid", found, "", remedy)
