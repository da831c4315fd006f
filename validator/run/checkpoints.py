"""Checkpoints in the Trainer's format: what a checkpoint tells about the run that wrote it, and the checkpoint from
which LLaMA-Factory would resume by its own rules (hparams/parser.py, get_train_args). Sources: transformers/trainer.py,
Trainer._save_checkpoint; deepspeed/runtime/engine.py, save_checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from validator.on_node import checkpoint_integrity
from validator.recipe import safe_read
from validator.run.sample_counts import sample_counts
from validator.run.settings import RunSettings


class TrainerCheckpoint:
    """A checkpoint folder written by the Trainer. Each property reads its files when it is first used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def quarantine_path(self) -> Path:
        """The path to which an incomplete checkpoint is renamed. Neither the Trainer nor LLaMA-Factory takes a folder
        of this name for a checkpoint."""
        return checkpoint_integrity.quarantine_path(self.path)

    @cached_property
    def problem(self) -> str | None:
        """The reason why the checkpoint is incomplete, in words; None if it is complete."""
        return checkpoint_integrity.integrity_problem(self.path)

    @cached_property
    def state(self) -> Mapping[str, Any]:
        """Contents of trainer_state.json, which the Trainer writes last; empty if the file cannot be read."""
        return checkpoint_integrity.read_json_mapping(self.path / checkpoint_integrity.TRAINER_STATE)

    @property
    def step(self) -> int:
        """Optimizer steps that were done when the checkpoint was written. Without a readable trainer_state.json, the
        number in the folder's name; else 0."""
        step, name = self.state.get("global_step"), checkpoint_integrity.CHECKPOINT_NAME.fullmatch(self.name)
        return step if isinstance(step, int) else int(name[1]) if name else 0

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps per epoch in the run that wrote the checkpoint; None if trainer_state.json does not tell. The
        Trainer's `epoch` counts micro batches, and the last step of an epoch may have fewer micro batches, so the
        quotient is rounded up."""
        epoch = self.state.get("epoch")
        if not isinstance(epoch, (int, float)) or not epoch > 0 or not self.step:
            return None
        return math.ceil(self.step / epoch - 1e-6)

    @cached_property
    def process_count(self) -> int | None:
        """Number of processes that wrote the checkpoint, counted by their rng_state files; None if there are no
        rng_state files, as with `save_only_model`."""
        if safe_read.path_kind(self.path / "rng_state.pth") == "file":
            return 1
        return len([*safe_read.glob_folder(self.path, "rng_state_*.pth")]) or None

    @cached_property
    def has_deepspeed_states(self) -> bool:
        """True if the checkpoint holds states of DeepSpeed."""
        return any(safe_read.glob_folder(self.path, "global_step*"))

    @cached_property
    def optimizer_shards(self) -> tuple[str, ...]:
        """File names of the optimizer states that each process wrote under ZeRO; empty for stage 0."""
        return tuple(sorted(each.name for each in safe_read.glob_folder(self.path, "global_step*/*_optim_states.pt")))

    @property
    def has_weight_shards(self) -> bool:
        """True if the checkpoint holds sharded weights in addition to sharded optimizer states (ZeRO stage 3)."""
        return any(safe_read.glob_folder(self.path, "global_step*/*zero_pp_rank_*_model_states.pt"))

    @property
    def restores_optimizer(self) -> bool:
        """True if a resumed run restores the optimizer and the learning rate schedule. The Trainer loads both or
        neither, and reports nothing if it loads neither."""
        optimizer = self.has_deepspeed_states or any(safe_read.glob_folder(self.path, "optimizer*"))
        return optimizer and safe_read.path_kind(self.path / "scheduler.pt") == "file"

    @property
    def is_adapter(self) -> bool | None:
        """True if the saved weights are an adapter's, False if they are a whole model's; None if neither kind of weight
        file exists, as with weights that FSDP has sharded."""
        if any(safe_read.glob_folder(self.path, "adapter_model.*")):
            return True
        return (
            False
            if any(safe_read.path_kind(self.path / name) == "file" for name in checkpoint_integrity.WEIGHT_FILES)
            else None
        )

    @cached_property
    def adapter(self) -> Mapping[str, Any]:
        """Contents of adapter_config.json; empty if the checkpoint has no adapter or the file cannot be read."""
        return checkpoint_integrity.read_json_mapping(self.path / "adapter_config.json")


def checkpoints_in(folder: Path) -> list[TrainerCheckpoint]:
    """Return the checkpoints in a folder, complete or not, in the order of their steps (transformers/trainer_utils.py,
    get_last_checkpoint); an empty list if the folder cannot be read."""
    numbered = (
        (checkpoint_integrity.CHECKPOINT_NAME.fullmatch(path.name), path) for path in safe_read.list_folder(folder)
    )
    steps = {int(match[1]): path for match, path in numbered if match and safe_read.path_kind(path) == "folder"}
    return [TrainerCheckpoint(steps[step]) for step in sorted(steps)]


_DROPPED_SHARE = 0.05
# Where the Trainer writes if no folder is named (transformers, training_args.py).
DEFAULT_OUTPUT_DIR = "trainer_output"


def never_resumes(run: RunSettings) -> bool:
    """True if LLaMA-Factory starts this run from step 0 even if the recipe asks to resume: stages rm and ppo with
    method full or freeze."""
    return run.task.stage in ("rm", "ppo") and run.task.method in ("full", "freeze")


def resumes_unasked(run: RunSettings) -> bool:
    """True if LLaMA-Factory looks for a checkpoint in the output folder although the recipe does not set
    `resume_from_checkpoint`."""
    return run.task.trains and not (
        run.args.is_set("resume_from_checkpoint") or run.args.flag("overwrite_output_dir") or never_resumes(run)
    )


def output_dir(run: RunSettings) -> Path:
    """Return the absolute path of the folder that the run writes to. The folder need not exist."""
    return safe_read.expand_home(str(run.args.get("output_dir") or DEFAULT_OUTPUT_DIR)).absolute()


def output_folder(run: RunSettings) -> Path | None:
    """Return the path of the folder that the run writes to, spelled as in the recipe's `output_dir`; None if the folder
    does not exist. It lies in the working directory, wherever the recipe lies."""
    folder = safe_read.expand_home(str(run.args.get("output_dir") or DEFAULT_OUTPUT_DIR))
    is_there = run.workspace.folders and safe_read.path_kind(run.workspace.start / folder) == "folder"
    return folder if is_there else None


def found_checkpoints(run: RunSettings) -> list[TrainerCheckpoint]:
    """Return the checkpoints in the output folder, complete or not, in the order of their steps."""
    folder = output_folder(run)
    return [] if folder is None else checkpoints_in(folder)


def result_files(run: RunSettings) -> list[str]:
    """Return the names of the weight files that lie directly in the output folder. A run saves them there at its
    end."""
    folder = output_folder(run)
    if folder is None:
        return []
    return [name for name in checkpoint_integrity.WEIGHT_FILES if safe_read.path_kind(folder / name) == "file"]


@lru_cache(maxsize=1)
def resume_candidates(run: RunSettings) -> tuple[TrainerCheckpoint, ...]:
    """Return the checkpoints from which the run could resume, latest first; empty if the run does not resume. The
    Trainer takes the first of them, complete or not."""
    resume_from = run.args.get("resume_from_checkpoint")
    if not run.task.trains or never_resumes(run):
        return ()
    if isinstance(resume_from, str) and resume_from:
        place = run.workspace.find(resume_from)
        return (TrainerCheckpoint(place[0]),) if place and safe_read.path_kind(place[0]) == "folder" else ()
    return tuple(reversed(found_checkpoints(run))) if resume_from is True or resumes_unasked(run) else ()


def half_written_checkpoints(run: RunSettings) -> tuple[TrainerCheckpoint, ...]:
    """Return the incomplete checkpoints in the output folder that are later than the last complete checkpoint. The run
    would try to resume from the latest of them, and stop."""
    if isinstance(run.args.get("resume_from_checkpoint"), str):
        return ()
    complete, saved = resume_checkpoint(run), resume_candidates(run)
    return saved[: saved.index(complete)] if complete else saved


def resume_checkpoint(run: RunSettings) -> TrainerCheckpoint | None:
    """Return the last complete checkpoint from which the run could resume; None if no checkpoint is complete or the run
    does not resume."""
    return next((saved for saved in resume_candidates(run) if not saved.problem), None)


def batch_counts(run: RunSettings, saved: TrainerCheckpoint) -> tuple[int, int] | None:
    """Return how many samples all processes together take per forward pass: in the run that wrote the checkpoint, and
    in this run. None if either number is not known. If every node has its own disk, a node sees only the checkpoint
    files of its own processes, so the first number is not known."""
    machine, batch = run.machine, saved.state.get("train_batch_size")
    if machine is None or saved.process_count is None or not isinstance(batch, int):
        return None
    if machine.nodes > 1 and saved.process_count == machine.devices:
        return None
    return batch * saved.process_count, run.batch.micro_batch * run.batch.world_size


def epoch_steps(run: RunSettings, saved: TrainerCheckpoint) -> tuple[int, int] | None:
    """Return the optimizer steps per epoch: in the run that wrote the checkpoint, and in this run. None if the number
    of rows is not known, or if packing, tokenized data or streaming hides how many sequences the rows make."""
    rows_are_known = (
        run.data.local_rows is not None
        and sample_counts(run).exact
        and not (run.batch.packing or run.data.is_tokenized or run.args.flag("streaming"))
    )
    if saved.steps_per_epoch is None or run.machine is None or not rows_are_known:
        return None
    train = sample_counts(run).train
    return None if train is None else (saved.steps_per_epoch, run.batch.steps_per_epoch(train))


def has_same_steps(run: RunSettings, saved: TrainerCheckpoint) -> bool:
    """True if the resumed run would make as many optimizer steps per epoch as the run that wrote the checkpoint, or if
    that is not known. Tokenizing may drop a few rows, so a small difference is ignored. If the steps are not known, the
    samples per forward pass are compared (`batch_counts`)."""
    if steps := epoch_steps(run, saved):
        return abs(steps[0] - steps[1]) <= max(1, _DROPPED_SHARE * steps[0])
    batches = batch_counts(run, saved)
    return batches is None or batches[0] == batches[1]


def total_steps(run: RunSettings, saved: TrainerCheckpoint) -> int | None:
    """Return the optimizer steps of the run from its first step to its last; None if an epoch of the resumed run may
    have another number of steps than an epoch of the checkpoint's run."""
    if run.args.number("max_steps") > 0:
        return int(run.args.number("max_steps"))
    steps_per_epoch = saved.steps_per_epoch if has_same_steps(run, saved) else None
    return math.ceil(run.args.number("num_train_epochs") * steps_per_epoch) if steps_per_epoch else None


def is_at_end(run: RunSettings, saved: TrainerCheckpoint) -> bool:
    """True if the checkpoint was written at the run's last step; False if the number of steps is not known."""
    steps = total_steps(run, saved)
    return steps is not None and saved.step >= steps


def is_finished(run: RunSettings, saved: TrainerCheckpoint) -> bool:
    """True if the checkpoint was written at the run's last step and the output folder holds a complete final model. The
    weights alone do not prove the end: a run that was stopped early may have saved a model, too. The checkpoint alone
    does not prove it either: a run may have been killed while it saved the final model."""
    folder = output_folder(run)
    if folder is None or not is_at_end(run, saved) or not result_files(run):
        return False
    return checkpoint_integrity.result_problem(folder) is None
