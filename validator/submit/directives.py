"""The lines by which sbatch is asked for a job's resources."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from validator.quoting import quote
from validator.read import disk
from validator.submit import limit
from validator.submit.site import Slurm
from validator.submit.work import Work
from validator.tables.nodes import node

# The earliest that SLURM sends a signal, seconds before the limit (sbatch, --signal).
_EARLIEST = 65535
_SITE = ("partition", "account", "qos", "constraint", "reservation")


def lines(work: Work, slurm: Slurm, hours: float, several: int = 0) -> list[str]:
    """The lines of a job of at most so many hours; of an array, where it is one of `several`."""
    words = [quote(word) for word in _words(work, slurm, hours, several)]
    return [f"#SBATCH {word}" for word in (*words, *slurm.options)]


def _words(work: Work, slurm: Slurm, hours: float, several: int) -> Iterator[str]:
    yield f"--job-name={work.name}"
    if several:
        yield f"--array=0-{several - 1}"
    yield from (f"--nodes={work.nodes}", "--ntasks-per-node=1")
    if devices := _devices(work, slurm):
        yield devices
    yield "--exclusive" if slurm.exclusive else f"--cpus-per-task={work.cpus}"
    yield f"--mem={work.memory_gib}G" if work.memory_gib and not slurm.exclusive else "--mem=0"
    yield f"--time={clock(hours)}"
    if work.resumes:
        yield f"--signal=B:USR1@{min(limit.notice(work, hours), _EARLIEST)}"
    yield "--requeue" if work.resumes else "--no-requeue"
    yield from ("--open-mode=append", f"--output={log(work, slurm, several)}")
    yield from (f"--{name}={value}" for name in _SITE if (value := getattr(slurm, name)))


def _devices(work: Work, slurm: Slurm) -> str:
    """The site's form, else the name that most sites give to the vendor's devices."""
    if work.device.vendor == "cpu":
        return ""
    form = (slurm.devices or node(work.device).slurm + ":{devices}").replace("{devices}", str(work.devices))
    return form if form.startswith("-") else f"--gres={form}"


def clock(hours: float) -> str:
    """Days, hours and minutes as SLURM writes them, rounded up."""
    minutes = max(math.ceil(round(hours * 60, 6)), 1)
    days, rest = divmod(minutes, 24 * 60)
    return (f"{days}-" if days else "") + f"{rest // 60:02}:{rest % 60:02}:00"


def log(work: Work, slurm: Slurm, several: int = 0) -> Path:
    """The file that each job logs to, with SLURM's own signs for its name and number."""
    folder = disk.expanded(slurm.logs).absolute() if slurm.logs else work.output.parent
    return folder / ("%x-%A_%a.out" if several else "%x-%j.out")
