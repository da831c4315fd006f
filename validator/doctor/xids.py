"""What the kernel's log says of NVIDIA's devices since the node was started."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import program
from validator.job.job import Job

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
# Errors of the hardware (https://docs.nvidia.com/deploy/xid-errors/), without those of programs, such as 13 and 31.
_HARDWARE = {
    48: "uncorrectable memory error", 64: "a faulty row of memory was not remapped", 74: "NVLink error",
    79: "fallen off the bus", 92: "many correctable memory errors", 95: "uncontained memory error",
    119: "its firmware did not answer", 120: "error of its firmware", 140: "uncorrected memory error",
    154: "needs a reset or a reboot",
}  # fmt: skip


def lines(_job: Job | None, _node: Node) -> Iterator[Line]:
    """Each error once for each device; nothing where users may not read the log."""
    seen = dict.fromkeys((bus, int(code)) for bus, code in _XID.findall(program.output("dmesg") or ""))
    for bus, code in seen:
        if code in _HARDWARE:
            found = f"Xid {code} on {bus} since the node was started: {_HARDWARE[code]}"
            remedy = "unless it was reset since: reboot, and replace it where that comes back"
            yield Line("warning", "Xid", found, "", remedy)
