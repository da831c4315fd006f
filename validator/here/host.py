"""Main memory, processors and disk of this machine, GiB of 2^30 bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from validator.here.groups import Group, groups
from validator.here.kernel import lines

_GIB = float(1 << 30)


# Files of a memory group, by the version of control groups: its limit, what it uses, and the lines of memory.stat that
# count copies of files, which the kernel gives back before it kills.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    2: ("memory.max", "memory.current", ("inactive_file", "active_file")),
}


def memory_gib(root: Path = Path("/")) -> float | None:
    """Main memory: what the kernel has, or what the control groups of this process (a container, a batch job) may use
    where that is less, rounded down to a tenth; None where it is not told, as outside Linux. No limit is a number
    beyond all memory, or none at all."""
    limits = (group.number(_FILES[group.version][0]) for group in groups(root, "memory"))
    sizes = [*_meminfo(root, "MemTotal"), *(limit / _GIB for limit in limits if limit is not None)]
    return int(min(sizes) * 10) / 10 if sizes else None


def available_gib(root: Path = Path("/")) -> float | None:
    """Main memory that a new process could take: what the kernel calls available, or what the control groups have left
    where that is less; None where it is not told."""
    left = [size for group in groups(root, "memory") if (size := _left(group)) is not None]
    return min([*_meminfo(root, "MemAvailable"), *left], default=None)


def swap_gib(root: Path = Path("/")) -> float:
    """Free swap space."""
    return sum(_meminfo(root, "SwapFree"))


def _meminfo(root: Path, name: str) -> Iterator[float]:
    for line in lines(root / "proc/meminfo"):
        if line.startswith(f"{name}:"):
            yield int(line.split()[1]) * 1024 / _GIB


def _left(group: Group) -> float | None:
    """GiB of its limit that a group does not use, or uses for copies of files alone."""
    limit, used, cached = _FILES[group.version]
    most, now = group.number(limit), group.number(used)
    if most is None or now is None:
        return None
    counted = dict(line.split() for line in lines(group.folder / "memory.stat"))
    return max(most - now + sum(int(counted.get(name, 0)) for name in cached), 0) / _GIB


def cpus(root: Path = Path("/")) -> int:
    """Processors, threads counted, that this process may use: those that it is bound to (a batch job), or those whose
    time its control groups give it (a container) where they are fewer."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([bound, *_shares(root)])))


def _shares(root: Path) -> Iterator[float]:
    """Microseconds of processors in a period of them. No limit is the word max, or -1."""
    for group in groups(root, "cpu"):
        files = ("cpu.max",) if group.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(line for file in files for line in lines(group.folder / file)).split()
        if len(words) == 2 and all(map(str.isdecimal, words)):
            yield int(words[0]) / int(words[1])


def free_disk_gib(folder: Path) -> float | None:
    """Free space of the disk that a folder lies on, or would; None where that cannot be told."""
    try:
        there = next((each for each in (folder, *folder.parents) if each.exists()), None)
        return shutil.disk_usage(there).free / _GIB if there else None
    except OSError:
        return None
