"""What the drivers know to be wrong with devices that answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.here import ascend
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


def lines(_job: Job | None, _node: Node) -> Iterator[Line]:
    """One line for each fault; nothing where none is known."""
    for index, device in enumerate(details()):
        yield from _nvidia(str(index), device)
    for name, word in ascend.health().items():
        if word in _ASCEND:
            remedy = f"`npu-smi info -t health -i {name}` says more"
            yield Line(_ASCEND[word], "health", f"device {name}: {word}", "OK", remedy)


def _nvidia(index: str, device: Details) -> Iterator[Line]:
    for fault in _FAULTS:
        for fact, value in device.facts.items():
            if re.fullmatch(fault.fact, fact) and re.fullmatch(fault.values, value):
                told = f"device {index}: {fact}: {value}; {fault.means}"
                yield Line(fault.state, "health", told, "", fault.remedy.format(index=index))
