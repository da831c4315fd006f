"""Control groups of this process: the limits that a container or a batch job sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from validator.here.kernel import lines, word


class Group(NamedTuple):
    """A folder of the kernel's, in version 1 or 2 of control groups, which name their files differently."""

    folder: Path
    version: int

    def number(self, name: str) -> int | None:
        """What stands in this file of the group; None for the word max, and where there is no such file."""
        first = word(self.folder / name)
        return int(first) if first.isdecimal() else None


def groups(root: Path, controller: str) -> Iterator[Group]:
    """The process's group for memory, pids … and those above it, whose limits hold, too."""
    tree = root / "sys/fs/cgroup"
    for line in lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from (Group(folder, 2) for folder in _folders(tree, path))
        elif controller in controllers.split(","):
            yield from (Group(folder, 1) for folder in _folders(tree / controller, path))


def _folders(tree: Path, path: str) -> Iterator[Path]:
    """A group and those above it. Inside a container the path may be the host's: then the tree's own root is the
    container's group."""
    group = tree / path.strip("/")
    yield from (folder for folder in {group, *group.parents, tree} if folder.is_relative_to(tree))
