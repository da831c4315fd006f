"""The checkpoint that a run on this machine resumes from, in words for the user. Half-written checkpoints are set
aside before the run starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from validator.errors import RecipeError, os_reason
from validator.run import checkpoint_integrity, checkpoints
from validator.run.checkpoints import TrainerCheckpoint
from validator.run.prediction import Job


def resume_messages(job: Job, *, dry: bool) -> Iterator[str]:
    """What the run will go on from, that it is finished, or that it starts anew where checkpoints lie in its folder.
    Unless `dry`, half-written checkpoints get another name, and nothing is lost. Raises RecipeError where one may be
    whole on another node's disk, from which that node would go on and this one not."""
    for saved in checkpoints.half_written_checkpoints(job):
        if saved.adapts is None and job.machine and job.machine.nodes > 1 and not dry:
            raise RecipeError(
                f"`{saved.path}` holds no weights on this node; share the folder or save with `save_on_each_node: "
                "true`, else rename it on all nodes"
            )
        if place := saved.aside if dry else _set_aside(saved):
            yield f"{saved.name} is half-written ({saved.flaw}): {'would be ' if dry else ''}renamed to {place.name}"
    taken, there = checkpoints.resume_checkpoint(job), checkpoints.found_checkpoints(job)
    if done := finished_message(job):
        yield done
    elif taken:
        yield f"goes on from {_name_with_step(job, taken)}"
    elif there and job.task.trains:
        yield f"starts anew: {_why_not_resumed(job, there)}"


def _set_aside(saved: TrainerCheckpoint) -> Path | None:
    try:
        return checkpoint_integrity.quarantine(saved.path)
    except OSError as err:
        why = f"is half-written ({saved.flaw}) and cannot be renamed: {os_reason(err)}"
        raise RecipeError(f"`{saved.path}` {why}; rename or remove it") from None


def finished_message(job: Job) -> str | None:
    """That nothing is left to do, in words: the checkpoint is the last one of the run, and the result is there."""
    taken = checkpoints.resume_checkpoint(job)
    if taken is None or not checkpoints.is_finished(job, taken):
        return None
    remedy = "`overwrite_output_dir=true` trains anew, more epochs go on"
    return (
        f"already finished: `{checkpoints.output_folder(job)}` holds the result "
        f"and {_name_with_step(job, taken)}; {remedy}"
    )


def after_exit_message(job: Job) -> str | None:
    """What the same command does after this run was ended, in words; None where that is no training. The folder is
    looked into anew."""
    now = replace(job)
    if not now.task.trains:
        return None
    taken, saved = checkpoints.resume_checkpoint(now), checkpoints.found_checkpoints(now)
    if finished_message(now):
        return "the run had come to its end"
    if taken:
        return f"the same command goes on from {_name_with_step(now, taken)}"
    return f"the same command starts anew: {_why_not_resumed(now, saved) if saved else 'no checkpoint was saved'}"


def _name_with_step(job: Job, saved: TrainerCheckpoint) -> str:
    total = checkpoints.total_steps(job, saved)
    return f"{saved.name} (step {saved.step:,}{f' of {total:,}, {saved.step / total:.0%}' if total else ''})"


def _why_not_resumed(job: Job, there: list[TrainerCheckpoint]) -> str:
    last = next((saved for saved in reversed(there) if not saved.flaw), None)
    if checkpoints.never_resumes(job):
        return f"stage {job.task.stage} with {job.task.method} never resumes"
    if last and job.args.flag("overwrite_output_dir"):
        return f"`overwrite_output_dir` is true; with =false the run goes on from {_name_with_step(job, last)}"
    return "no checkpoint in its folder is whole" if not last else "`resume_from_checkpoint` says so"
