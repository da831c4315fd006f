"""Locks that a run would wait for: of a process that builds an operator, or that downloads the model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import time

from validator.doctor.check_result import CheckContext, CheckResult, State, ok, result, warning
from validator.doctor.deepspeed_ops import extension_folders, operators_to_build
from validator.escaping import shell_quote
from validator.knowledge import hub_caches
from validator.machine import host
from validator.recipe import atomic_write
from validator.run import model_files
from validator.run.settings import RunSettings
from validator.wording import format_duration

_BUILD_LOCK, _DOWNLOAD_LOCK = "stale lock", "hub lock"
_MAX_BUILD_SECONDS = 15 * 60  # seconds that no operator takes to build: cpu_adam takes 95 on two cores


def check_locks(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Locks that a run would wait for: of a process that builds an operator, or that downloads the model."""
    yield from _check_build_locks(run, context)
    yield from _check_download_locks(run) if run else ()


def _check_build_locks(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Yield the build locks that this run would meet. torch makes a file `lock` beside an operator that it builds, and
    waits for the end of such a file, whether or not the process that made it lives (torch, utils/file_baton.py): the
    run stands still after "Using … as PyTorch extensions root" (huggingface/transformers issue 26015, OpenRLHF 208)."""
    names = operators_to_build(run, context) if run else None
    for lock in (lock for folder in extension_folders(context) for lock in sorted(folder.glob("*/lock"))):
        name = lock.parent.name
        if names is None or name in names:
            yield _describe_build_lock(lock, name, context.root, run is not None)


def _describe_build_lock(lock: Path, name: str, root: Path, wanted: bool) -> CheckResult:
    age = max(time() - lock.stat().st_mtime, 0.0)
    found = f"{lock} is {format_duration(age)} old"
    if builder := _find_builder(lock.parent, root):
        return ok(f"{found}; process {builder} builds {name}", what=_BUILD_LOCK)
    state: State = "error" if wanted and age > _MAX_BUILD_SECONDS else "warning"
    nobody = "nobody builds here" if age > _MAX_BUILD_SECONDS else "nobody builds here, perhaps another node does"
    waits = f"DeepSpeed waits for {name} without end"
    return result(state, f"{found}, and {nobody}; {waits}", "", f"`rm {shell_quote(str(lock))}`", what=_BUILD_LOCK)


def _find_builder(folder: Path, root: Path) -> int | None:
    """Return the process that builds in the folder, where torch runs ninja."""
    for process in (root / "proc").glob("[0-9]*"):
        if host.read_first_line(process / "comm") == "ninja":
            try:
                there = (process / "cwd").readlink()
            except OSError:  # another user's
                continue
            if there == folder.resolve():
                return int(process.name)
    return None


def _check_download_locks(run: RunSettings) -> Iterator[CheckResult]:
    """Yield one download lock of each model. The run waits for a download that has begun (huggingface_hub,
    utils/_fixes.py, WeakFileLock). The kernel frees the lock of a process that is gone, but on a file system without
    locks the mere file counts."""
    for name in model_files.hub_models(run):
        folder = hub_caches.hub_cache(run.hub_source[1]) / ".locks" / hub_caches.huggingface_entry(name)
        yield from islice(filter(None, map(_check_download_lock, sorted(folder.glob("*.lock")))), 1)


def _check_download_lock(lock: Path) -> CheckResult | None:
    """Try to share the lock for a moment: a process that downloads holds it alone."""
    waits = "the run waits until it is free"
    try:
        with lock.open() as file:
            if atomic_write.try_lock(file.fileno(), shared=True):
                return None
    except OSError as err:
        if err.errno not in atomic_write.NO_LOCKS:
            return None
        words = f"{lock} is on a file system without locks, where the file alone counts, and {waits}"
        return warning(words, "", f"if nobody downloads: `rm {shell_quote(str(lock))}`", what=_DOWNLOAD_LOCK)
    remedy = f"`fuser -v {shell_quote(str(lock))}` names the process that downloads; end it if it hangs"
    return warning(f"{lock} is held, and {waits}", "", remedy, what=_DOWNLOAD_LOCK)
