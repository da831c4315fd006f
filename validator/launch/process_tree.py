"""The processes below this one: finds them in /proc, adopts those whose parent ends (PR_SET_CHILD_SUBREAPER), signals
and kills them. Works on Linux alone."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from validator.processes import PR_SET_CHILD_SUBREAPER, prctl


def become_subreaper(wanted: bool = True) -> None:
    """Processes below this one whose own parent ends become children of this one: none is lost from sight."""
    prctl(PR_SET_CHILD_SUBREAPER, int(wanted))


def child_pids(pid: int) -> list[int]:
    """Processes whose parent this is."""
    families, ended = _process_families()
    return [each for each in families[pid] if each not in ended]


def descendant_pids(pid: int) -> Iterator[int]:
    """All processes below this one, parents first."""
    (families, ended), wanted = _process_families(), [pid]
    for parent in wanted:
        wanted += families[parent]
    yield from (each for each in wanted[1:] if each not in ended)


def kill_children(others: Collection[int], seconds: float) -> None:
    """Kill all children of this process but the others, and those that become children as these end, until none is
    left, or for so many seconds."""
    until, ending = time.monotonic() + seconds, set[int]()
    while time.monotonic() < until:
        for pid in {*_process_families()[0][os.getpid()]} - {*others}:
            send_signal(pid, signal.SIGKILL)
            ending.add(pid)
        if not ending:
            return
        # One that looks ended has its own children until its last thread is gone, and then it can be waited for.
        ending -= {pid for pid in ending if _reap(pid)}
        time.sleep(0.01)


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def is_stopped(pid: int) -> bool:
    """Whether it stands still, or has ended."""
    return (_proc_status(pid, "State") or "T").startswith(("T", "t", "Z", "X"))


def is_signal_pending(pid: int, number: int) -> bool:
    """Whether it has been sent the signal, and has not taken notice of it: as one that is stopped."""
    return bool(int(_proc_status(pid, "ShdPnd") or "0", 16) >> (number - 1) & 1)


def _proc_status(pid: int, name: str) -> str:
    """What proc(5) says of a process; nothing of one that has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""


def _process_families() -> tuple[defaultdict[int, list[int]], set[int]]:
    """Children by their parent, as proc(5) tells it, and which of them have ended; none where there is no /proc."""
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
    """Send a signal, where the process is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
