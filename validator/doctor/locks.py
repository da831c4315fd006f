"""Locks that a run would wait for without end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from time import time

from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.doctor.operators import built, roots
from validator.here import kernel
from validator.job.job import Job

_WHAT = "stale lock"
_BUILT = 15 * 60  # seconds that no operator takes to build: cpu_adam takes 95 on two cores


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """torch makes a file `lock` beside an operator that it builds, and waits where there is one, whether or not the
    process that made it lives (torch, utils/file_baton.py): the run stands still after "Using … as PyTorch extensions
    root" (huggingface/transformers issue 26015, OpenRLHF issue 208)."""
    names = built(job, node) if job else None
    for lock in _locks(node):
        name = lock.parent.name
        if names is None or name in names:
            yield _told(lock, name, node.root, job is not None)


def _locks(node: Node) -> Iterator[Path]:
    for root in roots(node):
        yield from sorted(root.glob("*/lock"))


def _told(lock: Path, name: str, root: Path, wanted: bool) -> Line:
    age = max(time() - lock.stat().st_mtime, 0.0)
    found = f"{lock} is {_lasting(age)} old"
    if builder := _builder(lock.parent, root):
        return Line("ok", _WHAT, f"{found}; process {builder} builds {name}")
    state: State = "error" if wanted and age > _BUILT else "warning"
    nobody = "nobody builds here" if age > _BUILT else "nobody builds here, perhaps another node does"
    waits = f"DeepSpeed waits for {name} without end"
    return Line(state, _WHAT, f"{found}, and {nobody}; {waits}", "", f"`rm {shlex.quote(str(lock))}`")


def _builder(folder: Path, root: Path) -> int | None:
    """The process that builds there: torch runs ninja in the operator's folder."""
    for process in (root / "proc").glob("[0-9]*"):
        if kernel.word(process / "comm") == "ninja":
            try:
                there = (process / "cwd").readlink()
            except OSError:  # another user's
                continue
            if there == folder.resolve():
                return int(process.name)
    return None


def _lasting(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
