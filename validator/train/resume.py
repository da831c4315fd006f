"""From what a run on this machine goes on, said before it starts; a half-written checkpoint is set aside first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.job import resumption
from validator.job.job import Job
from validator.tables import whole
from validator.tables.saved import Saved


def told(job: Job, *, dry: bool) -> Iterator[str]:
    """What the run will go on from, that it is finished, or that it starts anew where checkpoints lie in its folder.
    Unless `dry`, half-written checkpoints get another name, and nothing is lost. Raises RecipeError where one may be
    whole on another node's disk, from which that node would go on and this one not."""
    for saved in resumption.half(job):
        if saved.adapts is None and job.machine and job.machine.nodes > 1 and not dry:
            raise RecipeError(
                f"`{saved.path}` holds no weights on this node; share the folder or save with `save_on_each_node: "
                "true`, else rename it on all nodes"
            )
        if place := saved.aside if dry else _put_aside(saved):
            yield f"{saved.name} is half-written ({saved.flaw}): {'would be ' if dry else ''}renamed to {place.name}"
    taken, there = resumption.source(job), resumption.there(job)
    if done := finished(job):
        yield done
    elif taken:
        yield f"goes on from {_at(job, taken)}"
    elif there and job.trains:
        yield f"starts anew: {_why(job, there)}"


def _put_aside(saved: Saved) -> Path | None:
    try:
        return whole.put_aside(saved.path)
    except OSError as err:
        why = f"is half-written ({saved.flaw}) and cannot be renamed: {(err.strerror or str(err)).lower()}"
        raise RecipeError(f"`{saved.path}` {why}; rename or remove it") from None


def finished(job: Job) -> str | None:
    """That nothing is left to do, in words: the checkpoint is the last one of the run, and the result is there."""
    taken = resumption.source(job)
    if taken is None or not resumption.finished(job, taken):
        return None
    remedy = "`overwrite_output_dir=true` trains anew, more epochs go on"
    return f"already finished: `{resumption.output(job)}` holds the result and {_at(job, taken)}; {remedy}"


def again(job: Job) -> str | None:
    """What the same command does after this run was ended, in words; None where that is no training. The folder is
    looked into anew."""
    now = replace(job)
    if not now.trains:
        return None
    taken, saved = resumption.source(now), resumption.there(now)
    if finished(now):
        return "the run had come to its end"
    if taken:
        return f"the same command goes on from {_at(now, taken)}"
    return f"the same command starts anew: {_why(now, saved) if saved else 'no checkpoint was saved'}"


def _at(job: Job, saved: Saved) -> str:
    total = resumption.total(job, saved)
    return f"{saved.name} (step {saved.step:,}{f' of {total:,}, {saved.step / total:.0%}' if total else ''})"


def _why(job: Job, there: list[Saved]) -> str:
    last = next((saved for saved in reversed(there) if not saved.flaw), None)
    if resumption.never(job):
        return f"stage {job.stage} with {job.method} never resumes"
    if last and job.flag("overwrite_output_dir"):
        return f"`overwrite_output_dir` is true; with =false the run goes on from {_at(job, last)}"
    return "no checkpoint in its folder is whole" if not last else "`resume_from_checkpoint` says so"
