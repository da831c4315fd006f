"""Main memory that is left, against what the run is predicted to take of it, and the device where it shares that."""

from __future__ import annotations

from collections.abc import Iterator

from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.here import host
from validator.job.job import GIB, Job
from validator.memory import Estimate

_WHAT = "main memory"
_MORE = "ask for more (`--mem` of a batch job, the memory limit of a container)"


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """What is available now: free, or cached and given back on demand, within the limits of batch job and container.
    Without it the kernel kills a process of the run, which torchrun reports as exit code -9."""
    total, available = host.memory_gib(node.root), host.available_gib(node.root)
    if available is None:
        yield Line("warning", _WHAT, "the kernel does not tell how much is available")
        return
    swap = host.swap_gib(node.root)
    there = f"{available:.1f} GiB of {total or available:.1f} available{f', {swap:.0f} of swap' if swap >= 1 else ''}"
    shared = job is not None and job.machine is not None and job.machine.device.shared_memory
    need = (job.device_memory if shared else job.host_memory) if job else None
    yield _judged(need, there, available, total or available) if need else Line("ok", _WHAT, there)


def _judged(need: Estimate, there: str, available: float, total: float) -> Line:
    low, expected, high = need.low / GIB, need.expected / GIB, need.high / GIB
    state: State = "error" if expected >= available else "warning" if high >= available else "ok"
    wanted = f"{expected:.1f} GiB ({low:.1f} to {high:.1f})"
    if state == "ok":
        return Line(state, _WHAT, there, wanted)
    remedy = f"end what takes it, or {_MORE}" if expected < total else f"{_MORE}; `lmf-recipes explain` shows what fits"
    may = "would" if state == "error" else "may"
    return Line(state, _WHAT, there, wanted, f"the kernel {may} kill the run (exit code -9): {remedy}")
