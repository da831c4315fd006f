"""Main memory, processors and disk of this machine, GiB of 2^30 bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_GIB = float(1 << 30)


def memory_gib(root: Path = Path("/")) -> float | None:
    """Main memory: what the kernel has, or what the control groups of this process (a container, a batch job) may use
    where that is less, rounded down to a tenth; None where it is not told, as outside Linux."""
    size = min(_sizes(root), default=None)
    return None if size is None else int(size * 10) / 10


def _sizes(root: Path) -> Iterator[float]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemTotal:"):
            yield int(line.split()[1]) * 1024 / _GIB
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _limits(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")


def _limits(tree: Path, path: str, file: str) -> Iterator[float]:
    """The limits of a group and of those above it. Inside a container the path may be the host's: then the tree's own
    root is the container's group. No limit is the word max, or a number beyond all memory."""
    group = tree / path.strip("/")
    for folder in {group, *group.parents, tree}:
        if folder.is_relative_to(tree):
            for line in _lines(folder / file):
                if line.strip().isdecimal():
                    yield int(line) / _GIB


def cpus(root: Path = Path("/")) -> int:
    """Processors, threads counted, that this process may use: those that it is bound to, or the share that the control
    group of a container has where that is less."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for line in _lines(root / "sys/fs/cgroup/cpu.max"):
        quota, _, period = line.partition(" ")
        if quota.isdecimal():
            bound = min(bound, max(int(quota) // int(period), 1))
    return bound


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def free_disk_gib(folder: Path) -> float | None:
    """Free space of the disk that a folder lies on, or would; None where that cannot be told."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), None)
    try:
        return shutil.disk_usage(there).free / _GIB if there else None
    except OSError:
        return None
