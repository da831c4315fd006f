"""SLURM: a batch script for a run, or for several alike, and sbatch, which takes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from validator.printable import line
from validator.quoting import join, quote
from validator.submit import alike, batch, directives, limit, sbatch, shell
from validator.submit.order import Order, Run
from validator.submit.site import Site
from validator.submit.work import Work
from validator.train import bash, resume


def order(runs: Sequence[Run], site: Site) -> Order:
    """A batch script for one run, or an array job, without runs that are finished already: nothing is left to submit
    where all are. Raises RecipeError as `text` does."""
    # The nodes see the output folder that this machine does.
    going = [f"{run.work.name} {line}" for run in runs if run.work.resumes for line in resume.told(run.job, dry=True)]
    works = [run.work for run in runs if not (run.work.resumes and resume.finished(run.job))]
    if not works:
        return Order(text([run.work for run in runs], site), going, lambda: ["nothing is submitted"])
    job = text(works, site)
    return Order(job, [*going, *notes(works, site)], lambda: _submit(job, works, site))


def text(works: Sequence[Work], site: Site) -> str:
    """The batch script; of several runs an array job, with the resources of the largest. Raises RecipeError where the
    runs are not alike, or nobody knows how long one takes."""
    most = alike.largest(works)
    hours = limit.hours(most, site.slurm.hours)
    several = len(works) if len(works) > 1 else 0
    login = " -l" if site.slurm.modules else ""  # which defines `module`
    parts = [
        [f"#!/bin/bash{login}", *directives.lines(most, site.slurm, hours, several), *_head(works, hours)],
        ["# What the site asks for", *shell.set_up(site, site.slurm.setup, site.slurm.modules)],
        ["# The run", *(_each(works, most) if several else _run(most, most))],
        batch.meeting(most),
        batch.requeue(most, limit.notice(most, hours)),
        batch.left(most),
        batch.each(most),
        batch.start(most, site.slurm),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def notes(works: Sequence[Work], site: Site) -> Iterator[str]:
    """What the limit means for each run, and what a container does not see."""
    hours = limit.hours(alike.largest(works), site.slurm.hours)
    for work in works:
        yield from limit.notes(work, hours)
        if site.slurm.container:
            yield from _unmounted(work, site.slurm.mounts)


def _submit(job: str, works: Sequence[Work], site: Site) -> Iterator[str]:
    most = alike.largest(works)
    log = directives.log(most, site.slurm, len(works) if len(works) > 1 else 0)
    sbatch.folder(log.parent)
    number = sbatch.number(job)
    file = str(log).replace("%x", most.name).replace("%j", number).replace("%A", number).replace("%a", "0")
    yield f"job {number} is queued: {join(('squeue', '--job', number))}"
    yield f"log: tail -F {quote(file)}"
    yield f"cancel: scancel {number}"


def _head(works: Sequence[Work], hours: float) -> list[str]:
    """What the script is, for whoever reads it."""
    lines = ["", "# Written by `lmf-recipes submit`. Change what you like; `sbatch FILE` takes it as well."]
    for work in works:
        time = limit.told(work.hours) if work.hours else "not known"
        lines.append(f"# {line(work.name)} on {work.machine}: predicted time {time}, limit {hours:.1f} h")
    if works[0].memory_gib is None:
        lines.append("# --mem=0 is all memory of a node: how much the run takes is not known, or it is nearly that")
    return lines


def _each(works: Sequence[Work], most: Work) -> list[str]:
    """The run that a job of the array makes."""
    cases = ((f"{number})", *bash.inside([*_run(work, most), ";;"])) for number, work in enumerate(works))
    return ['case "$SLURM_ARRAY_TASK_ID" in', *(line for case in cases for line in case), "esac"]


def _run(work: Work, most: Work) -> list[str]:
    """Variables that say what is run; of an array's runs each has those that one needs."""
    again = [
        *([f"export overwrites={str(work.overwrites).lower()}"] if most.overwrites else []),
        *([f"resuming=({join(work.resuming)})"] if most.resuming else []),
    ]
    return [
        f"export recipe={quote(str(work.recipe))} output={quote(str(work.output))}",
        *shell.array("arguments", [str(work.recipe), *work.overrides]),
        *(again if work.resumes else ()),
        *shell.exports(work.environment),
    ]


def _unmounted(work: Work, mounts: Sequence[str]) -> Iterator[str]:
    seen = [Path([*mount.split(":"), mount][1]) for mount in mounts]
    for path in (work.recipe, work.output):
        if not any(path.is_relative_to(folder) for folder in seen):
            yield f"`{path}` is in no mount of the container; add its folder to `slurm.mounts` of the site file"
