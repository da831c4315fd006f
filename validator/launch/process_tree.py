"""The processes below this one: finds them in /proc, adopts those whose parent ends (PR_SET_CHILD_SUBREAPER), and
signals them. Works on Linux alone."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from validator.processes import PR_SET_CHILD_SUBREAPER, prctl


def become_subreaper() -> None:
    """Adopt descendants whose own parent ends: they become children of this process, and none is lost from sight."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def child_pids(pid: int) -> list[int]:
    """Processes whose parent is this one."""
    families, ended = _process_families()
    return [each for each in families[pid] if each not in ended]


def descendant_pids(pid: int) -> Iterator[int]:
    """Yield all processes below this one, parents first."""
    (families, ended), wanted = _process_families(), [pid]
    for parent in wanted:
        wanted += families[parent]
    yield from (each for each in wanted[1:] if each not in ended)


def _process_families() -> tuple[defaultdict[int, list[int]], set[int]]:
    """Children by their parent (proc(5)), and those of all processes that have ended."""
    families, ended = defaultdict[int, list[int]](list), set[int]()
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # The name, in parentheses, may hold spaces and parentheses itself.
            state, parent = place.read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
            pid = int(place.parent.name)
            families[int(parent)].append(pid)
            if state in "ZX":
                ended.add(pid)
    return families, ended


def send_signal(pid: int, number: int) -> None:
    """Send a signal if the process is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
