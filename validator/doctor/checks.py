"""The checks, in the order in which they are told. Each takes the run, None where no recipe is named, and the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

from validator.diagnostic import RecipeError
from validator.doctor import (
    builds,
    cann,
    devices,
    disk,
    files,
    health,
    holders,
    hubs,
    infiniband,
    interfaces,
    limits,
    linked,
    locks,
    meeting,
    memory,
    operators,
    packages,
    processors,
    proxies,
    ray,
    shared,
    start,
)
from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.job.job import Job

Check = Callable[[Job | None, Node], Iterator[Line]]

CHECKS: dict[str, Check] = {
    "devices": devices.lines,
    "device files": files.lines,
    "health": health.lines,
    "processes": holders.lines,
    "processors": processors.lines,
    "main memory": memory.lines,
    "/dev/shm": shared.lines,
    "limits": limits.lines,
    "disk": disk.lines,
    "packages": packages.lines,
    "torch": builds.lines,
    "compiled packages": linked.lines,
    "CANN": cann.lines,
    "operators": operators.lines,
    "locks": locks.lines,
    "start": start.lines,
    "hub": hubs.lines,
    "Ray": ray.lines,
    "meeting": meeting.lines,
    "interfaces": interfaces.lines,
    "InfiniBand": infiniband.lines,
    "proxy": proxies.lines,
}
# Seconds for all checks, which run at once: nvidia-smi alone may take 30, and a dead network file system answers never.
_LIMIT = 40.0


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """What all checks say, in their order. A check that fails, or does not end, is a line itself; the thread of one
    that does not end is left behind."""
    pool = ThreadPoolExecutor(len(CHECKS))
    under_way = {name: pool.submit(_all, check, job, node) for name, check in CHECKS.items()}
    wait(under_way.values(), _LIMIT)
    pool.shutdown(wait=False, cancel_futures=True)
    for name, future in under_way.items():
        yield from _said(name, future)


def _all(check: Check, job: Job | None, node: Node) -> list[Line]:
    return [*check(job, node)]


def _said(name: str, future: Future[list[Line]]) -> list[Line]:
    if not future.done():
        return [Line("warning", name, f"no answer within {_LIMIT:.0f} seconds")]
    try:
        return future.result()
    except (RecipeError, OSError, ValueError) as err:
        return [Line("warning", name, f"could not be looked at: {err}")]
