"""Main memory, CPUs, free disk space and mounts of this machine, within the limits of its control groups (a
container, a batch job). Sizes are in GiB of 2^30 bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from validator.physics.estimate import GIB


def read_lines(file: Path) -> list[str]:
    """Read the lines of a file; none if it is missing or cannot be read, as the speed of a card that is down."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def read_first_line(file: Path) -> str:
    """Read the first line of a file without blanks around it; empty if there is none."""
    return next(iter(read_lines(file)), "").strip()


class Cgroup(NamedTuple):
    """The folder of a control group. Versions 1 and 2 of control groups name its files differently."""

    folder: Path
    version: int

    def number(self, name: str) -> int | None:
        """Return the number in a file of the group; None for the word max, or if the file is missing."""
        first = read_first_line(self.folder / name)
        return int(first) if first.isdecimal() else None


def own_cgroups(root: Path, controller: str) -> Iterator[Cgroup]:
    """Yield this process's group for a controller (memory, pids …) and the groups above it, whose limits hold, too."""
    tree = root / "sys/fs/cgroup"
    for line in read_lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            version, top = 2, tree
        elif controller in controllers.split(","):
            version, top = 1, tree / controller
        else:
            continue
        # Inside a container the path may be the host's: then the tree's own root is the container's group.
        group = top / path.strip("/")
        yield from (Cgroup(folder, version) for folder in {group, *group.parents, top} if folder.is_relative_to(top))


_NETWORK_FILE_SYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "wekafs", "panfs", "afs",
}  # fmt: skip


class Mount(NamedTuple):
    """A mounted file system: `kind` such as ext4, `source` the device or the server's folder."""

    kind: str
    source: str

    @property
    def network(self) -> bool:
        """True if the disk is another machine's."""
        return self.kind in _NETWORK_FILE_SYSTEMS or self.kind.startswith("fuse.")


def find_mount(folder: Path, root: Path = Path("/")) -> Mount | None:
    """Return the mount that holds the folder; None if the kernel does not tell, as outside Linux."""
    holding: tuple[int, Mount] | None = None
    for line in read_lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        point, (kind, source) = Path(_unescape_blanks(left.split()[4])), right.split()[:2]
        depth = len(point.parts)
        if folder.is_relative_to(point) and (holding is None or depth >= holding[0]):
            holding = depth, Mount(kind, _unescape_blanks(source))
    return holding[1] if holding else None


def _unescape_blanks(text: str) -> str:
    return text.replace("\\040", " ")  # the kernel writes blanks in octal


# Files of a memory group, by the version of control groups: its limit, what it uses, and the lines of memory.stat that
# count copies of files, which the kernel gives back before it kills.
_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    2: ("memory.max", "memory.current", ("inactive_file", "active_file")),
}


def memory_gib(root: Path = Path("/")) -> float | None:
    """Return main memory, rounded down to a tenth: all that the kernel has, or the limit of this process's control
    groups (a container, a batch job) if that is less; None if neither is known, as outside Linux. A group without a
    limit has a number beyond all memory, or no number."""
    limits = (group.number(_MEMORY_FILES[group.version][0]) for group in own_cgroups(root, "memory"))
    sizes = [*_meminfo_gib(root, "MemTotal"), *(limit / GIB for limit in limits if limit is not None)]
    return int(min(sizes) * 10) / 10 if sizes else None


def available_memory_gib(root: Path = Path("/")) -> float | None:
    """Return main memory that a new process could take: what the kernel calls available, or what the control groups
    have left if that is less; None if neither is known."""
    left = [size for group in own_cgroups(root, "memory") if (size := _cgroup_left_gib(group)) is not None]
    return min([*_meminfo_gib(root, "MemAvailable"), *left], default=None)


def free_swap_gib(root: Path = Path("/")) -> float:
    """Return free swap space."""
    return sum(_meminfo_gib(root, "SwapFree"))


def _meminfo_gib(root: Path, name: str) -> Iterator[float]:
    for line in read_lines(root / "proc/meminfo"):
        if line.startswith(f"{name}:"):
            yield int(line.split()[1]) * 1024 / GIB


def _cgroup_left_gib(group: Cgroup) -> float | None:
    """Return GiB of its limit that a group does not use, or uses only for cached files."""
    limit, used, cached = _MEMORY_FILES[group.version]
    most, now = group.number(limit), group.number(used)
    if most is None or now is None:
        return None
    counted = dict(line.split() for line in read_lines(group.folder / "memory.stat"))
    return max(most - now + sum(int(counted.get(name, 0)) for name in cached), 0) / GIB


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the CPUs, threads counted, that this process may use: those that it is bound to (a batch job), or those
    whose time its control groups give it (a container) if they are fewer."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([bound, *_cgroup_cpu_shares(root)])))


def _cgroup_cpu_shares(root: Path) -> Iterator[float]:
    """Yield CPUs as quota over period, both in microseconds. A group without a limit has the word max, or -1."""
    for group in own_cgroups(root, "cpu"):
        files = ("cpu.max",) if group.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(line for file in files for line in read_lines(group.folder / file)).split()
        if len(words) == 2 and all(map(str.isdecimal, words)):
            yield int(words[0]) / int(words[1])


def existing_parent(folder: Path) -> Path:
    """Return the folder itself, or the nearest folder above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def free_disk_gib(folder: Path) -> float | None:
    """Return free space on the disk of a folder that need not exist yet; None if it cannot be read."""
    try:
        return shutil.disk_usage(existing_parent(folder)).free / GIB
    except OSError:
        return None
