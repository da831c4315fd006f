"""The checkpoint that a run on this machine resumes from, in words for the user. Half-written checkpoints are set
aside before the run starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from validator.errors import RecipeError, os_reason
from validator.run import checkpoint_integrity, checkpoints
from validator.run.checkpoints import TrainerCheckpoint
from validator.run.settings import RunSettings


def resume_messages(run: RunSettings, *, dry: bool) -> Iterator[str]:
    """Yield from which checkpoint the run resumes, that it is finished, or that it starts anew beside checkpoints.
    Unless `dry`, half-written checkpoints are renamed, and nothing is lost. Raises RecipeError if one may be complete
    on another node's disk: that node would resume from it, and this one would not."""
    for saved in checkpoints.half_written_checkpoints(run):
        if saved.is_adapter is None and run.machine and run.machine.nodes > 1 and not dry:
            remedy = "share the folder or save with `save_on_each_node: true`, else rename it on all nodes"
            raise RecipeError(f"`{saved.path}` holds no weights on this node; {remedy}")
        try:
            place = saved.quarantine_path if dry else checkpoint_integrity.quarantine(saved.path)
        except OSError as err:
            why = f"is half-written ({saved.problem}) and cannot be renamed: {os_reason(err)}"
            raise RecipeError(f"`{saved.path}` {why}; rename or remove it") from None
        if place:
            yield f"{saved.name} is half-written ({saved.problem}): {'would be ' if dry else ''}renamed to {place.name}"
    taken, there = checkpoints.resume_checkpoint(run), checkpoints.found_checkpoints(run)
    if done := finished_message(run):
        yield done
    elif taken:
        yield f"goes on from {_name_with_step(run, taken)}"
    elif there and run.task.trains:
        yield f"starts anew: {_why_not_resumed(run, there)}"


def finished_message(run: RunSettings) -> str | None:
    """Return the message for a finished run, whose last checkpoint and result are there; None if it is not finished."""
    taken = checkpoints.resume_checkpoint(run)
    if taken is None or not checkpoints.is_finished(run, taken):
        return None
    found = f"`{checkpoints.output_folder(run)}` holds the result and {_name_with_step(run, taken)}"
    return f"already finished: {found}; `overwrite_output_dir=true` trains anew, more epochs go on"


def after_exit_message(run: RunSettings) -> str | None:
    """Return what the same command would do after this run has ended, by what the folder holds now; None if the recipe
    does not train."""
    now = replace(run)
    if not now.task.trains:
        return None
    taken, saved = checkpoints.resume_checkpoint(now), checkpoints.found_checkpoints(now)
    if finished_message(now):
        return "the run had come to its end"
    if taken:
        return f"the same command goes on from {_name_with_step(now, taken)}"
    return f"the same command starts anew: {_why_not_resumed(now, saved) if saved else 'no checkpoint was saved'}"


def _name_with_step(run: RunSettings, saved: TrainerCheckpoint) -> str:
    total = checkpoints.total_steps(run, saved)
    return f"{saved.name} (step {saved.step:,}{f' of {total:,}, {saved.step / total:.0%}' if total else ''})"


def _why_not_resumed(run: RunSettings, there: list[TrainerCheckpoint]) -> str:
    last = next((saved for saved in reversed(there) if not saved.problem), None)
    if checkpoints.never_resumes(run):
        return f"stage {run.task.stage} with {run.task.method} never resumes"
    if last and run.args.flag("overwrite_output_dir"):
        return f"`overwrite_output_dir` is true; with =false the run goes on from {_name_with_step(run, last)}"
    return "no checkpoint in its folder is whole" if not last else "`resume_from_checkpoint` says so"
