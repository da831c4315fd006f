"""InfiniBand and RoCE adapters, which NCCL takes before any network interface."""

from __future__ import annotations

from collections.abc import Iterator

from validator.doctor.line import Line
from validator.doctor.meeting import nodes
from validator.doctor.node import Node
from validator.here.network import Port, infiniband_off, means, ports
from validator.job.job import Job

_WHAT = "InfiniBand"
_ADAPTERS, _OFF = "NCCL_IB_HCA", "NCCL_IB_DISABLE"


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Nothing for a run on one node, on Ascend, whose devices have their own network, or where there is no adapter and
    none is named."""
    ascend = job and job.machine and job.machine.device.vendor == "ascend"
    if nodes(job, node) > 1 and not ascend:
        yield from _judged(ports(node.root), node.environment.get(_ADAPTERS, ""), infiniband_off(node.environment))


def _judged(there: list[Port], words: str, off: bool) -> Iterator[Line]:
    meant = [port for port in there if not words or means(words, port.adapter)]
    active = [port for port in meant if port.active]
    slow = "NCCL falls back to sockets, several times slower"
    if off:
        if active:
            found = f"{_OFF}=1, and {_counted(active)} stay unused"
            remedy = f"unset {_OFF}, unless they do not lead to the others"
            yield Line("warning", _WHAT, found, "NCCL over them", remedy)
    elif words and not meant:
        names = ", ".join(sorted({port.adapter for port in there})) or "none here"
        yield Line("warning", _WHAT, f"{_ADAPTERS}={words} means no adapter: {slow}", names, f"unset {_ADAPTERS}")
    elif meant and not active:
        found = f"no port of {', '.join(sorted({port.adapter for port in meant}))} is active: {slow}"
        yield Line(
            "warning", _WHAT, found, "an active port", "`ibstat` says more; look after the cable or the subnet manager"
        )
    elif active:
        yield Line("ok", _WHAT, _counted(active))


def _counted(some: list[Port]) -> str:
    return f"{len(some)} active ({', '.join(sorted({port.rate for port in some}))})"
