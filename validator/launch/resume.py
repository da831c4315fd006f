"""Tells the user from which checkpoint a run on this machine resumes, and renames half-written checkpoints before the
run starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from validator.errors import RecipeError, os_reason
from validator.on_node import checkpoint_integrity
from validator.run import checkpoints
from validator.run.checkpoints import TrainerCheckpoint
from validator.run.settings import RunSettings


def resume_messages(run: RunSettings, *, dry: bool) -> Iterator[str]:
    """Yield the messages for the user before a run starts: from which checkpoint the run resumes, that the run is
    finished, or why the run starts anew although there are checkpoints. Half-written checkpoints are renamed, not
    removed; with `dry`, the messages only announce this. Raises RecipeError if a half-written checkpoint cannot be
    renamed. Also raises RecipeError if a checkpoint without weights on this node may be complete on another node's
    disk, because only the other node would resume from that checkpoint."""
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
    checkpoint, found = checkpoints.resume_checkpoint(run), checkpoints.found_checkpoints(run)
    if done := finished_message(run):
        yield done
    elif checkpoint:
        yield f"goes on from {_name_with_step(run, checkpoint)}"
    elif found and run.task.trains:
        yield f"starts anew: {_why_not_resumed(run, found)}"


def finished_message(run: RunSettings) -> str | None:
    """Return the message for a finished run, whose output folder holds the last checkpoint and the result. Return None
    if the run is not finished."""
    checkpoint = checkpoints.resume_checkpoint(run)
    if checkpoint is None or not checkpoints.is_finished(run, checkpoint):
        return None
    found = f"`{checkpoints.output_folder(run)}` holds the result and {_name_with_step(run, checkpoint)}"
    return f"already finished: {found}; `overwrite_output_dir=true` trains anew, more epochs go on"


_SIGNAL_CODES = 128  # from here on, exit codes are those of a run that a signal ended


def after_exit_message(run: RunSettings, code: int) -> str | None:
    """Return what the same command would do if it were started again now, after this run has ended: resume from a
    checkpoint, or start anew. The checkpoints in the output folder are read again. If there is none and the trainer
    failed by itself, by its exit code `code`, the message leads to its log instead. Return None if the recipe does not
    train."""
    now = replace(run)
    if not now.task.trains:
        return None
    checkpoint, saved = checkpoints.resume_checkpoint(now), checkpoints.found_checkpoints(now)
    if finished_message(now):
        return "the run had come to its end"
    if checkpoint:
        return f"the same command goes on from {_name_with_step(now, checkpoint)}"
    if not saved and code < _SIGNAL_CODES:
        return "no checkpoint was saved; the log above names the reason"
    return f"the same command starts anew: {_why_not_resumed(now, saved) if saved else 'no checkpoint was saved'}"


def _name_with_step(run: RunSettings, saved: TrainerCheckpoint) -> str:
    total = checkpoints.total_steps(run, saved)
    return f"{saved.name} (step {saved.step:,}{f' of {total:,}, {saved.step / total:.0%}' if total else ''})"


def _why_not_resumed(run: RunSettings, found: list[TrainerCheckpoint]) -> str:
    last = next((saved for saved in reversed(found) if not saved.problem), None)
    if checkpoints.never_resumes(run):
        return f"stage {run.task.stage} with {run.task.method} never resumes"
    if last and run.args.flag("overwrite_output_dir"):
        return f"`overwrite_output_dir` is true; with =false the run goes on from {_name_with_step(run, last)}"
    return "no checkpoint in its folder is whole" if not last else "`resume_from_checkpoint` says so"
