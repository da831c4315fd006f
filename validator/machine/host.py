"""Main memory, CPUs, free disk space and mounts of this machine. Limits of control groups (a container, a batch job)
apply to memory and CPUs. Sizes are in GiB of 2^30 bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from validator.physics.estimate import GIB


def read_lines(file: Path) -> list[str]:
    """Read the lines of a file. Return an empty list if the file is missing or cannot be read; for example, reading the
    speed of a network card that is down fails."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def read_first_line(file: Path) -> str:
    """Read the first line of a file and strip it. Return an empty string if the file is missing, empty or cannot be
    read."""
    return next(iter(read_lines(file)), "").strip()


def has_slurm() -> bool:
    """True if the commands of SLURM are on PATH, so that advice on batch jobs helps."""
    return shutil.which("srun") is not None


class Cgroup(NamedTuple):
    """The folder of a Linux control group and the version (1 or 2) of control groups. The two versions name the files
    in the folder differently."""

    folder: Path
    version: int

    def number(self, name: str) -> int | None:
        """Return the whole number that a file of the control group holds. Return None if the file is missing or holds
        another word, such as `max`."""
        first = read_first_line(self.folder / name)
        return int(first) if first.isdecimal() else None


def own_cgroups(root: Path, controller: str) -> Iterator[Cgroup]:
    """Yield the control group of this process for a controller (memory, pids …), and every group above it, because the
    limits of those groups apply, too."""
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
    """A mounted file system. `kind` is its type, such as ext4. `source` is the block device, or the folder on a file
    server."""

    kind: str
    source: str

    @property
    def network(self) -> bool:
        """True if the file system is on another machine: NFS, Lustre and similar types, and every FUSE file system."""
        return self.kind in _NETWORK_FILE_SYSTEMS or self.kind.startswith("fuse.")


def find_mount(folder: Path, root: Path = Path("/")) -> Mount | None:
    """Return the mounted file system that holds the folder. Return None if the kernel does not list mounts, as outside
    Linux."""
    holding: tuple[int, Mount] | None = None
    for line in read_lines(root / "proc/self/mountinfo"):
        position, _, file_system = line.partition(" - ")
        point, (kind, source) = Path(_unescape_blanks(position.split()[4])), file_system.split()[:2]
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
    """Return the main memory of this machine in GiB, rounded down to a tenth. If a control group of this process (a
    container, a batch job) has a lower limit, that limit is returned. Return None if neither is known, as outside
    Linux. A group without a limit states a number larger than all memory, or no number."""
    limits = (group.number(_MEMORY_FILES[group.version][0]) for group in own_cgroups(root, "memory"))
    sizes = [*_meminfo_gib(root, "MemTotal"), *(limit / GIB for limit in limits if limit is not None)]
    return int(min(sizes) * 10) / 10 if sizes else None


def available_memory_gib(root: Path = Path("/")) -> float | None:
    """Return the GiB of main memory that a new process could allocate: the kernel's MemAvailable, or what the control
    groups have left if that is less. Return None if neither is known."""
    left = [size for group in own_cgroups(root, "memory") if (size := _cgroup_left_gib(group)) is not None]
    return min([*_meminfo_gib(root, "MemAvailable"), *left], default=None)


def free_swap_gib(root: Path = Path("/")) -> float:
    """Return the GiB of free swap space; zero if the kernel does not state it."""
    return sum(_meminfo_gib(root, "SwapFree"))


def _meminfo_gib(root: Path, name: str) -> Iterator[float]:
    for line in read_lines(root / "proc/meminfo"):
        if line.startswith(f"{name}:"):
            yield int(line.split()[1]) * 1024 / GIB


def _cgroup_left_gib(group: Cgroup) -> float | None:
    """Return the GiB that a control group can still use below its memory limit. Cached files count as free, because the
    kernel gives them back first. Return None if the group has no limit."""
    limit, used, cached = _MEMORY_FILES[group.version]
    limit_bytes, used_bytes = group.number(limit), group.number(used)
    if limit_bytes is None or used_bytes is None:
        return None
    counted = dict(line.split() for line in read_lines(group.folder / "memory.stat"))
    return max(limit_bytes - used_bytes + sum(int(counted.get(name, 0)) for name in cached), 0) / GIB


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs (hardware threads) that this process may use. The number is the CPU affinity of this
    process (a batch job), or the CPU quota of its control groups (a container) if the quota is smaller; at least 1."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([bound, *_cgroup_cpu_shares(root)])))


def _cgroup_cpu_shares(root: Path) -> Iterator[float]:
    """Yield the CPU quota of each control group of this process, in CPUs: quota divided by period, each in
    microseconds. A group without a limit, whose quota is the word max or -1, is skipped."""
    for group in own_cgroups(root, "cpu"):
        files = ("cpu.max",) if group.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(line for file in files for line in read_lines(group.folder / file)).split()
        if len(words) == 2 and all(map(str.isdecimal, words)):
            yield int(words[0]) / int(words[1])


def existing_parent(folder: Path) -> Path:
    """Return the folder itself if it exists, or else the nearest parent folder that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def free_disk_gib(folder: Path) -> float | None:
    """Return the free GiB on the disk of a folder. The folder need not exist yet. Return None if the disk cannot be
    read."""
    try:
        return shutil.disk_usage(existing_parent(folder)).free / GIB
    except OSError:
        return None
