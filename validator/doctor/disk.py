"""The folder that a run writes to: whether it can, and how long a checkpoint takes; room for rows in the cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from validator.doctor import line
from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import host
from validator.here.mount import mount
from validator.job.job import GIB, Job
from validator.memory.terms import Disk
from validator.tables import cache
from validator.train import room

_WHAT = "output folder"
_MOST = 256 << 20  # bytes that are written to see how fast it is
_SECONDS = 1.0  # that it takes at most
_LEAST = 1.0  # GiB free: with less nothing is tried
_COPIES = 2.0  # of the tokenized rows: as they were read, and as they are trained on
_FILES = 1000  # of a few checkpoints
_TOLD = 0.05 * GIB  # of a checkpoint
_SLOW = 600.0  # seconds of a checkpoint


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """What is written, and what is kept of the data."""
    yield from _output(job, node)
    if job and job.disk and job.datasets and not job.tokenized:
        yield from _cached(cache.data_sets(job.origin[1]), max(_COPIES * job.disk[Disk.DATA] / GIB, _LEAST))


def _cached(folder: Path, wanted: float) -> Iterator[Line]:
    """`No space left on device` with much room in the output folder (hiyouga/LLaMA-Factory issue 275). `wanted`: GiB
    of the rows as datasets keeps them, read and tokenized."""
    free = host.free_disk_gib(folder)
    if free is not None and free < wanted:
        remedy = "free some, or set HF_DATASETS_CACHE to another disk"
        yield Line("warning", "data cache", f"{free:.1f} GiB free at {folder}", f"about {wanted:.1f} GiB", remedy)


def _output(job: Job | None, node: Node) -> Iterator[Line]:
    """The run's output folder, else the working directory. What is written to see its speed is gone when it ends."""
    folder = room.output(job) if job else Path.cwd()
    if folder is None:
        return
    there = next(each for each in (folder, *folder.parents) if each.exists())
    place = _place(there, node.root)
    try:
        rate = _rate(there)
    except OSError as err:
        wanted = "a folder that can be written"
        yield Line("error", _WHAT, f"{place}: {err.strerror}", wanted, "set another `output_dir`" if job else "")
        return
    short = [line.of(_WHAT, each) for each in room.disk(job)] if job else []
    yield _timed(None if any(each.state == "error" for each in short) else job, place, rate)
    yield from short
    yield from _volatile(there, node.root)
    yield from _inodes(there)


def _place(folder: Path, root: Path) -> str:
    under, free = mount(folder.resolve(), root), host.free_disk_gib(folder)
    kind = f" on {under.kind}{f' of {under.source}' if under.network else ''}" if under else ""
    return f"{folder}{kind}{f', {free:.1f} GiB free' if free is not None else ''}"


def _rate(folder: Path) -> float | None:
    """Bytes a second of a file that is written and brought to the disk, in pieces each twice as long as the one before,
    until the next would take too long; None where there is no room to try. Raises OSError where it cannot be
    written."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        if (host.free_disk_gib(folder) or 0.0) < _LEAST:
            return None
        piece, size, end = os.urandom(1 << 20), 1 << 20, monotonic() + _SECONDS
        while True:
            begun = monotonic()
            for _ in range(size // len(piece)):
                file.write(piece)
            os.fsync(file.fileno())
            took = max(monotonic() - begun, 1e-6)
            if monotonic() + 2 * took > end or file.tell() + 2 * size > _MOST:
                return size / took
            size *= 2


def _timed(job: Job | None, place: str, rate: float | None) -> Line:
    found = place if rate is None else f"{place}, {rate / 1e6:,.0f} MB/s"
    if job is None or job.checkpoint < _TOLD or rate is None:
        return Line("ok", _WHAT, found)
    seconds = job.checkpoint / rate
    wanted = f"{job.checkpoint / GIB:.1f} GiB for a checkpoint, about {_lasting(seconds)}"
    if seconds < _SLOW:
        return Line("ok", _WHAT, found, wanted)
    remedy = "all devices wait meanwhile: a faster disk, `save_only_model: true` or a larger `save_steps`"
    return Line("warning", _WHAT, found, wanted, remedy)


def _lasting(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _volatile(folder: Path, root: Path) -> Iterator[Line]:
    """Disks that do not outlast the run."""
    under = mount(folder.resolve(), root)
    if under and under.kind == "overlay":
        remedy = "mount a folder of the host there, or set another `output_dir`"
        yield Line("warning", _WHAT, f"{folder} is the container's own layer, which goes with it", "", remedy)
    if under and under.kind in ("tmpfs", "ramfs"):
        yield Line("warning", _WHAT, f"{folder} is main memory ({under.kind})", "", "set another `output_dir`")


def _inodes(folder: Path) -> Iterator[Line]:
    """Some file systems count files; 0 in all is one that does not."""
    there = os.statvfs(folder)
    if there.f_files and there.f_favail < _FILES:
        yield Line("warning", _WHAT, f"{there.f_favail} more files on it", f"{_FILES:,}", "remove some: `df -i`")
