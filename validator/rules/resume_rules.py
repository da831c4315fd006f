"""PTH009 to PTH011, PTH014, PTH015 and PTH018 to PTH027: what earlier runs left in the output folder, and whether a
run can resume from it."""

from __future__ import annotations

import os

from validator.errors import RecipeError
from validator.finding import Place
from validator.knowledge import models
from validator.recipe import safe_read
from validator.rules import subjects
from validator.rules.missing_paths import is_missing
from validator.rules.rule import ERROR, WARNING, Findings, rule
from validator.rules.subjects import at_checkpoint_key
from validator.run import checkpoints
from validator.run.checkpoints import TrainerCheckpoint
from validator.run.settings import RunSettings


@rule("PTH009", ERROR)
def output_occupied(run: RunSettings) -> Findings:
    """The output folder holds weights of an earlier run, and no checkpoint to resume from.

    Why: every process stops while the arguments are parsed: "Output directory already exists and is not empty".
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: another `output_dir`, or `overwrite_output_dir: true`.
    """
    free = not checkpoints.resumes_unasked(run) or checkpoints.found_checkpoints(run)
    if held := [] if free else checkpoints.result_files(run):
        folder = checkpoints.output_folder(run)
        remedy = "choose another `output_dir`, or set `overwrite_output_dir: true`"
        yield "output_dir", f"`{folder}` already holds {held[0]}; {remedy}"


@rule("PTH010", WARNING, about=subjects.checkpoint)
def silently_resumed(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """The output folder holds checkpoints, which LLaMA-Factory resumes without being asked.

    Why: training goes on from the last step of the earlier run, or ends at once, whatever the recipe now says.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: `resume_from_checkpoint` if that is meant, else another `output_dir` or `overwrite_output_dir: true`.
    """
    if checkpoints.resumes_unasked(run) and not _other_base_model(run, saved):
        folder = checkpoints.output_folder(run)
        found = f"`{folder}` holds {saved.name}, from which training resumes without being asked"
        yield "output_dir", f"{found}; set `resume_from_checkpoint: true` to resume, or choose another `output_dir`"


@rule("PTH011", WARNING)
def tokenized_data_wins(run: RunSettings) -> Findings:
    """`tokenized_path` holds data, so all other data settings are ignored.

    Why: LLaMA-Factory loads what lies there; `dataset`, `cutoff_len`, `template` and `max_samples` have no effect.
    Source: llamafactory/data/loader.py:get_dataset, llamafactory/extras/misc.py:has_tokenized_data
    Fix: remove the folder to tokenize anew, or name another.
    """
    if run.data.is_tokenized:
        folder = run.args.get("tokenized_path")
        found = f"`{folder}` already holds tokenized data, so `dataset`, `cutoff_len` and the like are ignored"
        yield "tokenized_path", f"{found}; remove the folder `{folder}` to tokenize anew"


@rule("PTH014", ERROR)
def checkpoint_missing(run: RunSettings) -> Findings:
    """`resume_from_checkpoint` names a checkpoint that does not exist or is not complete.

    Why: "Can't find a valid checkpoint" or a file that is cut off, after the data set is tokenized and the model is
    loaded on every rank.
    Source: transformers/trainer.py:Trainer._load_from_checkpoint
    Fix: name an existing checkpoint-N folder, or leave the key out for a first run.
    """
    value = run.args.get("resume_from_checkpoint")
    if not value or not run.task.trains or checkpoints.never_resumes(run):
        return
    if value is True:
        if not checkpoints.found_checkpoints(run) and is_missing(run, checkpoints.output_dir(run), "folder"):
            found = "there is no checkpoint in `output_dir` to resume from"
            yield "resume_from_checkpoint", f"{found}; remove `resume_from_checkpoint`"
    elif isinstance(value, str) and not run.workspace.find(value):
        if is_missing(run, value, "folder"):
            yield "resume_from_checkpoint", f"`{value}` does not exist; name a checkpoint-N folder that does"
    elif (named := next(iter(checkpoints.resume_candidates(run)), None)) and named.problem:
        where = at_checkpoint_key(run, "resume_from_checkpoint")
        yield where, f"`{value}` is not a complete checkpoint ({named.problem}); name another checkpoint"


@rule("PTH015", ERROR, about=subjects.checkpoint)
def checkpoint_of_another_model(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """The output folder holds a checkpoint of another model, which LLaMA-Factory resumes without being asked.

    Why: its weights are loaded into this model: a size mismatch after the data set is tokenized and the model is loaded
    on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args, transformers/trainer.py:Trainer._load_from_checkpoint
    Fix: another `output_dir`.
    """
    if checkpoints.resumes_unasked(run) and (other := _other_base_model(run, saved)):
        held = f"`{checkpoints.output_folder(run)}` holds {saved.name} of {other}"
        where = at_checkpoint_key(run, "output_dir")
        yield where, f"{held}, from which training would resume; choose another `output_dir`"


def _other_base_model(run: RunSettings, saved: TrainerCheckpoint) -> str | None:
    """Return, as text for a message, the model from which a checkpoint was trained, if its model type, hidden size or
    number of layers differs from the run's model. None if they agree, or if the checkpoint's model is not known."""
    base = str(saved.adapter.get("base_model_name_or_path")) if saved.adapter else str(saved.path)
    location = run.workspace.find(base)
    local = location is not None and safe_read.path_kind(location[0] / "config.json") == "file"
    try:
        maker = models.find_model(str(location[0]) if location and local else base)
    except RecipeError:
        return None
    shape = (maker.kind, maker.arch.hidden, maker.arch.layers)
    if run.model is None or shape == (run.model.kind, run.model.arch.hidden, run.model.arch.layers):
        return None
    return base if saved.adapter else f"another model ({maker.kind}, {maker.arch.layers} layers of {maker.arch.hidden})"


@rule("PTH018", ERROR)
def checkpoint_incomplete(run: RunSettings) -> Findings:
    """The checkpoint to resume from is half-written, because the earlier run was killed while it saved.

    Why: a missing trainer_state.json, weights or states that are cut off stop every process, after the data set is
    tokenized and the model is loaded. `lmf-recipes train` sets such a checkpoint aside by itself.
    Source: transformers/trainer.py:Trainer._save_checkpoint, transformers/trainer.py:Trainer.train
    Fix: rename the folder, so that the checkpoint before it is taken; `checkpoint-` must not begin its name.
    """
    for saved in checkpoints.half_written_checkpoints(run):
        before = checkpoints.resume_checkpoint(run)
        resumed = f", and the run resumes from {before.name}" if before else ""
        remedy = f"rename the folder to {saved.quarantine_path.name}{resumed}"
        yield _checkpoint_place(run), f"`{saved.path}` is half-written ({saved.problem}); {remedy}"


@rule("PTH019", ERROR, about=subjects.checkpoint)
def states_of_other_processes(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """A different number of processes saved ZeRO's optimizer states.

    Why: "Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported",
    in stages 1 to 3, with `elastic_checkpoint`, too.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine._load_zero_checkpoint
    Fix: as many devices as before; or start anew from the weights of the checkpoint.
    """
    zero, machine, shards = run.deepspeed, run.machine, len(saved.optimizer_shards) if saved.has_deepspeed_states else 0
    if zero is None or machine is None or zero.value("checkpoint.load_universal"):
        return
    apart = machine.nodes > 1 and shards == machine.devices  # on disks of their own nodes see what they wrote
    if shards and shards != run.batch.world_size and not apart:
        found = f"{saved.name} holds optimizer states of {shards} processes, but the run has {run.batch.world_size}"
        remedy = f"run on {shards} devices, or {_start_anew(run)}"
        yield _checkpoint_place(run), f"{found}, and ZeRO cannot redistribute them; {remedy}"


@rule("PTH020", ERROR, about=subjects.checkpoint)
def states_of_another_kind(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """DeepSpeed cannot load the checkpoint: it has no DeepSpeed states, or those of another stage or number format.

    Why: under DeepSpeed "Can't find a valid checkpoint", an assertion without a word where one of both is stage 3, a
    FileNotFoundError where bf16 was turned on or off, as the files are named after it.
    Source: transformers/integrations/deepspeed.py:deepspeed_load_checkpoint,
    deepspeed/runtime/engine.py:DeepSpeedEngine._get_all_zero_checkpoints
    Fix: the settings of the earlier run, without `save_only_model`; or start anew.
    """
    if run.deepspeed and not run.deepspeed.problem and (other := _deepspeed_mismatch(run, saved)):
        yield _checkpoint_place(run), f"{saved.name} {other}; use the settings of {saved.name}, or {_start_anew(run)}"


def _deepspeed_mismatch(run: RunSettings, saved: TrainerCheckpoint) -> str | None:
    """Return why DeepSpeed cannot load the checkpoint, as text for a message; None if it can."""
    if not saved.has_deepspeed_states:
        return "holds no DeepSpeed states (saved without it, or with `save_only_model`)"
    stage, half = run.zero_stage, all(name.startswith("bf16_") for name in saved.optimizer_shards)
    if bool(stage) != bool(saved.optimizer_shards):
        found = f"was saved with DeepSpeed stage {'1 to 3' if saved.optimizer_shards else 0}"
        return f"{found}, and the run uses stage {stage}"
    if (stage == 3) != saved.has_weight_shards:
        return f"was saved with ZeRO-{3 if saved.has_weight_shards else '1 or 2'}, and the run uses ZeRO-{stage}"
    if saved.optimizer_shards and half != (run.precision.compute_dtype == "bf16"):
        return f"was saved {'with' if half else 'without'} bf16, and the run {'does not use' if half else 'uses'} bf16"
    return None


@rule("PTH021", ERROR, about=subjects.checkpoint)
def other_parameters(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """The checkpoint holds other parameters than the run trains: its method, rank or layers differ.

    Why: a size mismatch, "Can't find a checkpoint index", or "parameter group that doesn't match the size of
    optimizer's group", after the data set is tokenized and the model is loaded.
    Source: transformers/trainer.py:Trainer._load_from_checkpoint,
    torch/optim/optimizer.py:Optimizer.load_state_dict
    Fix: the method, `lora_rank` and `lora_target` of the earlier run; or start anew.
    """
    if other := _parameter_mismatch(run, saved):
        yield _checkpoint_place(run), f"{saved.name} {other}; use the settings of {saved.name}, or {_start_anew(run)}"


def _parameter_mismatch(run: RunSettings, saved: TrainerCheckpoint) -> str | None:
    config = saved.adapter
    if saved.is_adapter not in (None, run.task.uses_adapter):
        return (
            f"holds {'an adapter' if saved.is_adapter else 'all weights'}, and `finetuning_type` is {run.task.method}"
        )
    if not config or run.task.method != "lora":
        return None
    rank, layers = config.get("r"), config.get("target_modules")
    if isinstance(rank, int) and rank != run.args.number("lora_rank"):
        return f"was saved with `lora_rank: {rank}`, and the recipe has {run.args.number('lora_rank'):.0f}"
    recipe_targets = {*run.args.words("lora_target")}
    saved_targets = {str(layer).rpartition(".")[2] for layer in layers} if isinstance(layers, list) else recipe_targets
    if not run.task.targets_all_linear and recipe_targets != saved_targets:
        return f"adapts {', '.join(sorted(saved_targets))}, and the run adapts {', '.join(sorted(recipe_targets))}"
    return None


@rule("PTH022", ERROR, about=subjects.checkpoint)
def reward_model_resumed(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """A reward model with LoRA would resume from a checkpoint.

    Why: the value head is around the adapter, so the Trainer takes the model for one without: "Can't find a checkpoint
    index", with DeepSpeed missing keys. LLaMA-Factory resumes by itself if the output folder holds checkpoints. Its
    advice, to add the checkpoint to `adapter_name_or_path`, does not help as long as the folder holds them.
    Source: llamafactory/train/rm/workflow.py:run_rm, transformers/trainer.py:Trainer._load_from_checkpoint
    Fix: `overwrite_output_dir: true` or another `output_dir`; `adapter_name_or_path` goes on from the weights.
    """
    if run.task.stage == "rm" and run.task.uses_adapter:
        remedy = f"set `adapter_name_or_path: {saved.path}` and another `output_dir` to train on from its weights"
        yield _checkpoint_place(run), f"a reward model cannot resume from {saved.name}; {remedy}"


@rule("PTH023", ERROR, about=subjects.checkpoint, since="deepspeed 0.18.0")
def weights_thrown_back(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """A run with DeepSpeed stage 0 and bf16 would resume from a checkpoint.

    Why: from DeepSpeed 0.18 on the 32-bit weights of the optimizer are not loaded (seen in a real run). The first loss
    is as it was, then the first step puts the weights back to where the earlier run began.
    Source: deepspeed/runtime/engine.py:DeepSpeedEngine.load_checkpoint
    Fix: start anew, with ZeRO-1; or DeepSpeed before 0.18.
    """
    stage_0 = saved.has_deepspeed_states and not saved.optimizer_shards and run.deepspeed and run.zero_stage == 0
    if stage_0 and run.precision.compute_dtype == "bf16":
        found = f"DeepSpeed stage 0 with bf16 loads no 32-bit weights from {saved.name}"
        undone = "so the first step undoes the training so far"
        yield _checkpoint_place(run), f"{found}, {undone}; use ZeRO-1, and {_start_anew(run)}"


@rule("PTH024", ERROR, about=subjects.checkpoint)
def several_on_the_cpu(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """Several processes on the CPU would resume from a checkpoint, without DeepSpeed.

    Why: each loads the optimizer's states to its device, and torch knows no `cpu:0`: "don't know how to restore data
    location". With ACCELERATE_TORCH_DEVICE=cpu the device is `cpu`.
    Source: transformers/trainer.py:Trainer._load_optimizer_and_scheduler, accelerate/state.py:PartialState.__init__
    Fix: set the variable, on every node.
    """
    device_is_set = os.environ.get("ACCELERATE_TORCH_DEVICE") == "cpu"
    if saved.restores_optimizer and run.on_cpu and run.batch.world_size > 1 and not run.deepspeed and not device_is_set:
        found = f"{run.batch.world_size} processes on the CPU cannot load {saved.name}"
        yield _checkpoint_place(run), f"{found}; set ACCELERATE_TORCH_DEVICE=cpu in the environment"


@rule("PTH025", WARNING, about=subjects.checkpoint)
def optimizer_anew(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """The checkpoint holds no states of optimizer and learning rate.

    Why: the Trainer says nothing and begins both anew: the warm-up comes again, and the learning rate does not reach
    its end.
    Source: transformers/trainer.py:Trainer._load_optimizer_and_scheduler
    Fix: leave `save_only_model` out in runs that may be interrupted, and keep DeepSpeed on or off.
    """
    if not run.deepspeed and (saved.has_deepspeed_states or not saved.restores_optimizer):
        held = (
            "only DeepSpeed states, and the run does not use DeepSpeed"
            if saved.has_deepspeed_states
            else "no optimizer states"
        )
        anew = "so optimizer and learning rate begin anew, with warm-up"
        remedy = (
            "set `deepspeed` as before"
            if saved.has_deepspeed_states
            else "resume from a checkpoint that has optimizer states"
        )
        yield _checkpoint_place(run), f"{saved.name} holds {held}, {anew}; {remedy}, or {_start_anew(run)}"


@rule("PTH026", WARNING, about=subjects.checkpoint)
def counted_otherwise(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """Data, batches or devices differ from those of the checkpoint's run, so steps and epochs differ.

    Why: the steps that are done count as steps of the new size, so samples are skipped that nobody saw, or seen again.
    Source: transformers/trainer.py:Trainer._init_training_state
    Fix: the data, `per_device_train_batch_size` and number of devices of the earlier run, or
    `gradient_accumulation_steps` that keep the samples of a step.
    """
    if checkpoints.has_same_steps(run, saved):
        return
    if steps := checkpoints.epoch_steps(run, saved):
        what = f"an epoch has {steps[0]:,} steps in {saved.name} and {steps[1]:,} in the run"
        remedy = f"keep data, batch size and number of devices as they were, or {_start_anew(run)}"
        yield _checkpoint_place(run), f"{what}, so samples are skipped or seen twice; {remedy}"
    elif batches := checkpoints.batch_counts(run, saved):
        what = f"a micro batch of all devices has {batches[0]} samples in {saved.name} and {batches[1]} in the run"
        remedy = "set `gradient_accumulation_steps` so that an optimizer step has as many samples as before"
        yield _checkpoint_place(run), f"{what}, so samples may be skipped or seen twice; {remedy}"


@rule("PTH027", WARNING, about=subjects.checkpoint)
def trained_to_the_end(run: RunSettings, saved: TrainerCheckpoint) -> Findings:
    """The checkpoint is at the end of the run.

    Why: nothing is left to train; within an epoch the Trainer makes one more step all the same, at each start.
    Source: transformers/trainer.py:Trainer._run_epoch
    Fix: another `output_dir`, or more epochs.
    """
    if checkpoints.is_at_end(run, saved):
        found = f"{saved.name} is at the end of the run, step {saved.step:,} of {checkpoints.total_steps(run, saved):,}"
        longer = "`max_steps`" if run.args.number("max_steps") > 0 else "`num_train_epochs`"
        yield _checkpoint_place(run), f"{found}; choose another `output_dir`, or raise {longer}"


def _start_anew(run: RunSettings) -> str:
    """Return the advice how to train from the start, without the checkpoint."""
    first = "remove `resume_from_checkpoint` and " if run.args.get("resume_from_checkpoint") else ""
    return f"{first}set another `output_dir` to start anew"


def _checkpoint_place(run: RunSettings) -> Place:
    """Return the place of the recipe's key that leads to the checkpoint: `resume_from_checkpoint` if it is set, else
    `output_dir`."""
    return at_checkpoint_key(run, "resume_from_checkpoint" if run.args.get("resume_from_checkpoint") else "output_dir")
