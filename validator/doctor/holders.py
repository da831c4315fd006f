"""Who holds memory of the devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import amd, ascend
from validator.here.details import details
from validator.here.holder import Holder, mine, user
from validator.job.job import Job

_LEAST = 1.0  # GiB: a screen holds less


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Each process that holds memory, the largest first; or that somebody does who is not seen from here. Whether what
    is left is enough for the run is a question of `devices`."""
    if job and job.on_cpu:
        return
    names = _names(node)
    there = [each for each in _all() if (each.gib or 0.0) > _LEAST or each.gib is None]
    for each in sorted(there, key=lambda each: -(each.gib or 0.0)):
        yield Line("warning", "processes", _told(each, names, node.root), "", _remedy(each, node.root))
    if not there:
        yield from _unseen(node)


def _all() -> list[Holder]:
    nvidia = [holder for device in details() for holder in device.holders]
    return nvidia or ascend.holders() or amd.holders()


def _names(node: Node) -> dict[str, str]:
    """The number of each device by its UUID."""
    there = [*node.here.accelerators, *node.here.others] if node.here else []
    return {name: each.names[0] for each in there for name in each.names[1:]}


def _told(holder: Holder, names: dict[str, str], root: Path) -> str:
    who = user(holder.pid, root)
    size = f"{holder.gib:.1f} GiB" if holder.gib is not None else "memory"
    device = f"device {names.get(holder.device, holder.device)}" if holder.device else "the devices"
    origin = f"of {who}" if who else "not seen from here"
    return f"{size} of {device} held by {Path(holder.name).name} (pid {holder.pid}, {origin})"


def _remedy(holder: Holder, root: Path) -> str:
    return f"if it is a left-over: `kill {holder.pid}`" if mine(holder.pid, root) else ""


def _unseen(node: Node) -> Iterator[Line]:
    """What is taken where no process shows: those of other containers do not."""
    taken = node.here.taken() if node.here else None
    if taken:
        yield Line("warning", "processes", f"{taken}, none of which is seen from here", "", "look for them on the host")
