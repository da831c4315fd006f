"""What the devices and the disk of this machine have left for a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from validator.diagnostic import Severity
from validator.here import host
from validator.here.accelerator import Accelerator
from validator.job.job import GIB, Job
from validator.read.disk import expanded, matching

# What this machine lacks, in words: an error stops the run.
Shortage = tuple[Severity, str]


def lacking(job: Job, accelerators: Sequence[Accelerator]) -> Iterator[Shortage]:
    """What will not suffice, or may not."""
    yield from devices(job, accelerators)
    yield from disk(job)


def devices(job: Job, accelerators: Sequence[Accelerator]) -> Iterator[Shortage]:
    """Memory that other processes hold. The prediction is what the driver shows for the run, context included. As much
    as is usable of a device is judged already."""
    need, known = job.device_memory, [device for device in accelerators if device.free_gib is not None]
    fullest = min(known, key=lambda device: device.free_gib or 0.0, default=None)
    if need is None or fullest is None or (free := fullest.free_gib) is None or need.high / GIB < free:
        return
    if job.machine and free >= (job.machine.device.usable_gib or free + 1):
        return
    short = need.expected / GIB >= free
    text = (
        f"device {fullest.names[0]} has {free:.1f} GiB free of {fullest.memory_gib:.1f}, {fullest.taken_gib:.1f} are "
        f"taken; the run {'needs' if short else 'may need'} {need.expected / GIB:.1f} ({need.low / GIB:.1f} to "
        f"{need.high / GIB:.1f}): end what takes them, or choose other devices"
    )
    yield Severity.ERROR if short else Severity.WARNING, text


def output(job: Job) -> Path | None:
    """The folder that the run writes to; None where it keeps nothing."""
    folder = job.get("output_dir")
    return expanded(folder).absolute() if isinstance(folder, str) and job.trains else None


def disk(job: Job) -> Iterator[Shortage]:
    """Disk for what the run writes."""
    folder = output(job)
    if folder and job.get("save_strategy") != "no":
        yield from _disk(job, folder)


def _disk(job: Job, output: Path) -> Iterator[Shortage]:
    """Checkpoints and the result. The number of checkpoints is an estimate without a limit, and where the number of
    steps is one; a run that goes on replaces those that are there."""
    free = host.free_disk_gib(output)
    if job.disk is None or free is None:
        return
    each, most = job.checkpoint / GIB, job.output_bytes / GIB
    where = f"{free:.1f} GiB are free on the disk of {output}"
    if free < each:
        yield Severity.ERROR, f"{where}, one checkpoint takes {each:.1f}: free some, or set another `output_dir`"
    elif free < most:
        kept, at_once = job.checkpoints
        counted = job.number("save_total_limit") > 0 and job.steps > 0 and not job.packs
        certain = counted and not any(matching(output, "checkpoint-*"))
        beside = "and the result" if at_once == kept else "at once (a new one is written before the oldest is removed)"
        remedy = "free some, set another `output_dir` or a smaller `save_total_limit`"
        text = f"{where}, {at_once} checkpoints {beside} take {most:.1f}: {remedy}"
        yield Severity.ERROR if certain else Severity.WARNING, text
