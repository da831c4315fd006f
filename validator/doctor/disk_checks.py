"""The folder that a run writes to: is it writable, large enough, fast enough for checkpoints, and still there
afterwards? And disk space for the cache of tokenized data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from validator.doctor.check_result import CheckContext, CheckResult
from validator.errors import os_reason
from validator.knowledge import hub_caches
from validator.machine import host
from validator.machine.host import find_mount
from validator.physics.estimate import GIB, DiskTerm
from validator.recipe.safe_read import expand_home, glob_folder
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.wording import format_duration


def output_folder(run: RunSettings) -> Path | None:
    """Return the folder that the run writes to; None if it keeps nothing."""
    folder = run.args.get("output_dir")
    return expand_home(folder).absolute() if isinstance(folder, str) and run.task.trains else None


_OUTPUT_FOLDER = "output folder"


def check_disk_space(run: RunSettings | None, _context: CheckContext) -> Iterator[CheckResult]:
    """Yield a line if checkpoints and the result do not fit on the disk of `output_dir`. How many checkpoints are kept
    is an estimate if `save_total_limit` is unset or the number of steps is an estimate; a resumed run replaces those
    that are there."""
    output = output_folder(run) if run else None
    if run is None or output is None or run.args.get("save_strategy") == "no":
        return
    prediction = predict(run)
    if prediction.disk is None:
        return
    free = host.free_disk_gib(output)
    if free is None:
        return
    each, most = prediction.checkpoint / GIB, prediction.output_bytes / GIB
    where = f"{free:.1f} GiB are free on the disk of {output}"
    if free < each:
        text = f"{where}, one checkpoint takes {each:.1f}: free some, or set another `output_dir`"
        yield CheckResult("error", _OUTPUT_FOLDER, text)
    elif free < most:
        kept, at_once = prediction.checkpoints
        counted = run.args.number("save_total_limit") > 0 and run.steps > 0 and not run.batch.packing
        certain = counted and not any(glob_folder(output, "checkpoint-*"))
        beside = "and the result" if at_once == kept else "at once (a new one is written before the oldest is removed)"
        remedy = "free some, set another `output_dir` or a smaller `save_total_limit`"
        text = f"{where}, {at_once} checkpoints {beside} take {most:.1f}: {remedy}"
        yield CheckResult("error" if certain else "warning", _OUTPUT_FOLDER, text)


# A file of this size, or of what is written in this time, shows how fast the disk is.
_MAX_TRIAL_BYTES, _MAX_TRIAL_SECONDS = 256 << 20, 1.0
_MIN_FREE_GIB = 1.0  # with less nothing is tried
_DATA_COPIES = 2.0  # rows as they were read, and as they are trained on
_MIN_FREE_FILES = 1000  # a few checkpoints have as many
# A smaller checkpoint is not timed; one that takes longer is a warning.
_MIN_CHECKPOINT_BYTES, _SLOW_SECONDS = 0.05 * GIB, 600.0


def check_disk(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """The folder that a run writes to: can it be written, and how fast; disk space for the cache of data."""
    yield from _check_output_folder(run, context)
    disk = predict(run).disk if run and run.data.datasets and not run.data.is_tokenized else None
    if run and disk:
        # `No space left on device` with much room in the output folder (hiyouga/LLaMA-Factory issue 275)
        folder = hub_caches.datasets_cache(run.hub_source[1])
        wanted = max(_DATA_COPIES * disk[DiskTerm.DATA] / GIB, _MIN_FREE_GIB)
        free = host.free_disk_gib(folder)
        if free is not None and free < wanted:
            remedy = "free some, or set HF_DATASETS_CACHE to another disk"
            found = f"{free:.1f} GiB free at {folder}"
            yield CheckResult("warning", "data cache", found, f"about {wanted:.1f} GiB", remedy)


def _check_output_folder(run: RunSettings | None, context: CheckContext) -> Iterator[CheckResult]:
    """Check the run's output folder, or without a run the working directory. The file of the trial does not stay."""
    folder = output_folder(run) if run else Path.cwd()
    if folder is None:
        return
    there = host.existing_parent(folder)
    under, free = find_mount(there.resolve(), context.root), host.free_disk_gib(there)
    kind = f" on {under.kind}{f' of {under.source}' if under.network else ''}" if under else ""
    place = f"{there}{kind}{f', {free:.1f} GiB free' if free is not None else ''}"
    try:
        rate = _measure_write_rate(there)
    except OSError as err:
        remedy = "set another `output_dir`" if run else ""
        found = f"{place}: {os_reason(err)}"
        yield CheckResult("error", _OUTPUT_FOLDER, found, "a folder that can be written", remedy)
        return
    short = [*check_disk_space(run, context)]
    yield _judge_write_rate(None if any(each.state == "error" for each in short) else run, place, rate)
    yield from short
    if under and under.kind == "overlay":
        found = f"{there} is the container's own layer, which goes with it"
        remedy = "mount a folder of the host there, or set another `output_dir`"
        yield CheckResult("warning", _OUTPUT_FOLDER, found, "", remedy)
    if under and under.kind in ("tmpfs", "ramfs"):
        found = f"{there} is main memory ({under.kind})"
        yield CheckResult("warning", _OUTPUT_FOLDER, found, "", "set another `output_dir`")
    disk = os.statvfs(there)
    if disk.f_files and disk.f_favail < _MIN_FREE_FILES:  # a file system that counts no files has 0 in all
        found = f"{disk.f_favail} more files on it"
        yield CheckResult("warning", _OUTPUT_FOLDER, found, f"{_MIN_FREE_FILES:,}", "remove some: `df -i`")


def _measure_write_rate(folder: Path) -> float | None:
    """Return bytes a second of a file that is written and synced in pieces, each twice as long as the one before, until
    the next would take too long; None if there is no room to try. Raises OSError if it cannot be written."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        if (host.free_disk_gib(folder) or 0.0) < _MIN_FREE_GIB:
            return None
        piece, size, end = os.urandom(1 << 20), 1 << 20, monotonic() + _MAX_TRIAL_SECONDS
        while True:
            begun = monotonic()
            for _ in range(size // len(piece)):
                file.write(piece)
            os.fsync(file.fileno())
            took = max(monotonic() - begun, 1e-6)
            if monotonic() + 2 * took > end or file.tell() + 2 * size > _MAX_TRIAL_BYTES:
                return size / took
            size *= 2


def _judge_write_rate(run: RunSettings | None, place: str, rate: float | None) -> CheckResult:
    found = place if rate is None else f"{place}, {rate / 1e6:,.0f} MB/s"
    checkpoint = predict(run).checkpoint if run else 0.0
    if checkpoint < _MIN_CHECKPOINT_BYTES or rate is None:
        return CheckResult("ok", _OUTPUT_FOLDER, found)
    seconds = checkpoint / rate
    wanted = f"{checkpoint / GIB:.1f} GiB for a checkpoint, about {format_duration(seconds)}"
    if seconds < _SLOW_SECONDS:
        return CheckResult("ok", _OUTPUT_FOLDER, found, wanted)
    remedy = "all devices wait meanwhile: a faster disk, `save_only_model: true` or a larger `save_steps`"
    return CheckResult("warning", _OUTPUT_FOLDER, found, wanted, remedy)
