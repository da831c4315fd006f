"""PAR001 to PAR009 and PAR017 to PAR024: contradictions between the DeepSpeed file and the recipe, settings for one
device and for several, and what is impossible with sharded states or several processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from validator.knowledge.devices import Machine
from validator.knowledge.models import Model
from validator.knowledge.optimizers import optimizer_choice
from validator.rules import subjects
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.rules.subjects import PlaceIn
from validator.run.deepspeed import MICRO_BATCHES_KEPT_OFFLOADED, DeepSpeedConfig
from validator.run.launch_command import Launch
from validator.run.schedule import warmup_steps
from validator.run.settings import RunSettings

# Key in the JSON, key in the recipe: the Trainer demands equality (transformers/integrations/deepspeed.py).
_EQUAL_KEYS = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_max_lr": "learning_rate",
}
_BATCH_KEYS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@rule("PAR001", ERROR, about=subjects.deepspeed_file)
def value_contradicted(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """A fixed value in the DeepSpeed JSON differs from the recipe's.

    Why: "Please correct the following DeepSpeed config values that mismatch TrainingArguments values", after the data
    set is tokenized and the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: "auto" in the JSON: the recipe alone decides.
    """
    for path, key in _EQUAL_KEYS.items():
        if path != _BATCH_KEYS[0] or not run.args.flag("auto_find_batch_size"):
            yield from _contradictions(at, zero, path, (key,), run.args.get(key))
    betas = ("adam_beta1", "adam_beta2")
    yield from _contradictions(at, zero, "optimizer.params.betas", betas, [run.args.get(key) for key in betas])


@rule("PAR002", ERROR, about=subjects.deepspeed_file)
def batch_size_wrong(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """train_batch_size in the JSON is not micro batch x accumulation x devices.

    Why: the Trainer and DeepSpeed both check the product, after the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    deepspeed/runtime/config.py:DeepSpeedConfig._batch_assertion
    Fix: `"train_batch_size": "auto"`.
    """
    size = zero.value("train_batch_size")
    right = all(zero.value(path) in (None, "auto", run.args.get(_EQUAL_KEYS[path])) for path in _BATCH_KEYS)
    if size in (None, "auto") or run.machine is None or not right or run.args.flag("auto_find_batch_size"):
        return
    batch = run.batch
    if size != batch.effective_batch:
        place = at("train_batch_size", conflicts_with=tuple(_EQUAL_KEYS[path] for path in _BATCH_KEYS))
        product = f"{batch.micro_batch} x {batch.accumulation} x {batch.world_size} = {batch.effective_batch}"
        found = f"`train_batch_size` is {size}, but {product} (micro batch x accumulation x devices)"
        yield place, f'{found}; write `"train_batch_size": "auto"`'


@rule("PAR003", ERROR, about=subjects.deepspeed_file)
def precision_contradicted(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The JSON fixes a precision that is not the recipe's.

    Why: the Trainer refuses the pair; with `bf16: true` in the recipe and fp16 in the JSON, or the other way round,
    after the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: `"enabled": "auto"` in both blocks of the JSON: the recipe alone decides.
    """
    both = all(zero.value(f"{name}.enabled") is True for name in ("fp16", "bf16"))
    for name in ("fp16", "bf16") if not both else ():
        fixed, wanted = zero.value(f"{name}.enabled"), run.args.flag(name) or run.args.flag(f"{name}_full_eval")
        if fixed not in (None, "auto") and fixed != wanted:
            place = at(f"{name}.enabled", conflicts_with=(name,))
            found = f"{_file_words(zero)} sets `{name}.enabled` to {json.dumps(fixed)}"
            recipe = f"the recipe has {name} {'on' if wanted else 'off'}"
            yield place, f'{found}, and {recipe}; write `"enabled": "auto"` in the block `{name}`'


@rule("PAR004", ERROR, about=subjects.deepspeed_file)
def accumulation_missing(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The JSON leaves gradient accumulation out, and the recipe accumulates.

    Why: accelerate then puts 1 into the JSON, and the batch sizes no longer multiply, after the model is loaded.
    Source: accelerate/utils/dataclasses.py:DeepSpeedPlugin.__post_init__
    Fix: `"gradient_accumulation_steps": "auto"`.
    """
    key, steps = "gradient_accumulation_steps", run.batch.accumulation
    sized = all(zero.config.get(each) is not None for each in ("zero_optimization", "train_batch_size", _BATCH_KEYS[0]))
    if sized and key not in zero.config and steps > 1:
        found = f"{_file_words(zero)} leaves out `{key}`, which then is 1, and the recipe has {steps}"
        yield at(key, conflicts_with=(key,)), f'{found}; add `"{key}": "auto"`'


@rule("PAR005", WARNING, about=subjects.deepspeed_file)
def optimizer_replaced(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The JSON brings its own optimizer or scheduler, so the recipe's is not used.

    Why: `optim` and `lr_scheduler_type` have no effect, and a missing learning rate becomes DeepSpeed's 0.001.
    Source: accelerate/accelerator.py:Accelerator._prepare_deepspeed,
    transformers/integrations/deepspeed.py:deepspeed_optim_sched
    Fix: remove the `optimizer` and `scheduler` blocks from the JSON.
    """
    for block, key in (("optimizer", "optim"), ("scheduler", "lr_scheduler_type")):
        kind = zero.value(f"{block}.type")
        if kind and run.args.is_set(key):
            place = at(block, at_key=True, conflicts_with=(key,))
            found = f"{block} {kind} of {_file_words(zero)} replaces `{key}: {run.args.get(key)}`"
            yield place, f"{found}; remove the block `{block}` to use `{key}`"
    if zero.value("optimizer.type") and zero.value("optimizer.params.lr") is None:
        found = f"the block `optimizer` of {_file_words(zero)} has no `lr`, so 0.001 replaces `learning_rate`"
        place = at("optimizer.params.lr", conflicts_with=("learning_rate",))
        yield place, f'{found}; write `"params": {{"lr": "auto"}}` in the block'


@rule("PAR023", WARNING, about=subjects.deepspeed, since="deepspeed 0.15.2", until="deepspeed 0.19.0")
def gradients_lost(run: RunSettings, zero: DeepSpeedConfig) -> Findings:
    """ZeRO-2 offloads the optimizer, and a step has more than two micro batches.

    Why: from DeepSpeed 0.15.2 to 0.18.9 only the first and the last micro batch of a step train: the gradients of the
    others are never copied to host memory. The loss falls all the same, and the gradient norm is too small.
    Source: deepspeed/runtime/zero/stage_1_and_2.py:DeepSpeedZeroOptimizer.async_accumulate_grad_in_cpu_via_gpu
    Fix: `deepspeed: deepspeed/ds_z3_offload.json`; or at most 2 for `gradient_accumulation_steps`, and more samples in
    each micro batch; DeepSpeed 0.19 has it right.
    """
    lost = run.batch.accumulation - MICRO_BATCHES_KEPT_OFFLOADED
    if run.task.trains and zero.stage == 2 and zero.offload("offload_optimizer") and lost > 0:
        found = f"{lost} of {run.batch.accumulation} micro batches of a step are lost"
        why = "ZeRO-2 with the optimizer in host memory keeps the first and the last (DeepSpeed 0.15.2 to 0.18.9)"
        yield "gradient_accumulation_steps", f"{found}: {why}; set `deepspeed: deepspeed/ds_z3_offload.json`"


@rule("PAR006", NOTE, about=subjects.deepspeed, pedantic=True)
def launcher_needed(run: RunSettings, _zero: DeepSpeedConfig) -> Findings:
    """DeepSpeed is used on one device.

    Why: LLaMA-Factory starts torchrun by itself only for several devices: "Please use FORCE_TORCHRUN=1".
    Source: llamafactory/launcher.py:launch, llamafactory/hparams/parser.py:get_train_args
    Fix: `FORCE_TORCHRUN=1 llamafactory-cli train ...`; `lmf-recipes train` sets it.
    """
    if run.machine and run.batch.world_size == 1:
        found = "DeepSpeed on one device needs FORCE_TORCHRUN=1 in the environment"
        text = f"{found}; set FORCE_TORCHRUN=1, or start with `lmf-recipes train`, which sets it"
        yield "deepspeed", text


@rule("PAR007", NOTE, about=subjects.machine, pedantic=True)
def nodes_to_join(run: RunSettings, machine: Machine) -> Findings:
    """The machine has several nodes.

    Why: each node starts its own command and needs its own rank; LLaMA-Factory reads NODE_RANK, not RANK. With
    RDZV_ID nodes find their places themselves.
    Source: llamafactory/launcher.py:launch
    Fix: `lmf-recipes submit`, which has SLURM, SkyPilot or Kubernetes start all of them; without a scheduler NNODES,
    NODE_RANK, MASTER_ADDR and MASTER_PORT on every node: `lmf-recipes explain` shows the commands.
    """
    if machine.nodes > 1 and Launch(run).launcher == "torchrun" and "RDZV_ID" not in os.environ:
        variables = f"FORCE_TORCHRUN=1 NNODES={machine.nodes} NODE_RANK MASTER_ADDR MASTER_PORT"
        found = f"each of the {machine.nodes} nodes must start its own command"
        yield "machine", f"{found}; use `lmf-recipes submit`, or set {variables} on each node"


def _file_words(zero: DeepSpeedConfig) -> str:
    return f"`{Path(zero.path).name}`" if zero.path else "the DeepSpeed configuration"


def _auto_remedy(zero: DeepSpeedConfig, path: str) -> str:
    """Return, as text for a message, that a setting of the DeepSpeed file be "auto". `path`: its dotted path."""
    return f'write `"{path.rpartition(".")[2]}": "auto"` in {_file_words(zero)}'


def _contradictions(
    at: PlaceIn, zero: DeepSpeedConfig, path: str, keys: tuple[str, ...], recipe_value: Any
) -> Findings:
    """Yield a finding if a setting of the DeepSpeed file contradicts the recipe. `path`: the dotted path of the
    setting. `keys`: the recipe's keys that give the same setting. `recipe_value`: the value that these keys make. A
    missing setting and "auto" contradict nothing."""
    file_value = zero.value(path)
    if file_value not in (None, "auto") and file_value != recipe_value:
        verb, file = "is" if len(keys) == 1 else "are", _file_words(zero)
        names = " and ".join(f"`{key}`" for key in keys)
        found = f"`{path}` is {file_value} in {file}, but {names} {verb} {recipe_value} in the recipe"
        yield at(path, conflicts_with=keys), f"{found}; {_auto_remedy(zero, path)}"


# Of the recipe's keys these decide the steps of warm-up, and of all.
_STEP_KEYS = {
    "scheduler.params.warmup_num_steps": ("warmup_steps", "warmup_ratio"),
    "scheduler.params.total_num_steps": ("max_steps", "num_train_epochs"),
}


@rule("PAR020", ERROR, about=subjects.deepspeed_file)
def steps_contradicted(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON fixes numbers of steps for the scheduler that are not the run's.

    Why: "Please correct the following DeepSpeed config values that mismatch TrainingArguments values", after the data
    set is tokenized and the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize,
    transformers/training_args.py:TrainingArguments.get_warmup_steps
    Fix: "auto" in the JSON: the recipe alone decides.
    """
    for path, fixed, steps in _fixed_steps(run, zero):
        if steps is not None and fixed != steps:
            what = "warms up for" if "warmup" in path else "takes"
            found = f"`{path}` is {fixed}, but the run {what} {steps:,} steps"
            yield at(path, conflicts_with=_STEP_KEYS[path]), f"{found}; {_auto_remedy(zero, path)}"


@rule("PAR021", WARNING, about=subjects.deepspeed_file)
def steps_by_chance(run: RunSettings, at: PlaceIn, zero: DeepSpeedConfig) -> Findings:
    """The DeepSpeed JSON fixes numbers of steps for the scheduler, which the data decide.

    Why: the Trainer stops unless the number is exactly the run's, after the data set is tokenized and the model is
    loaded on every rank; it differs with rows, batch size and devices.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: "auto" in the JSON; or `max_steps` in the recipe.
    """
    for path, fixed, steps in _fixed_steps(run, zero):
        if steps is None:
            found = f"`{path}` is {fixed}, and the run stops if its data make another number of steps"
            yield at(path, conflicts_with=_STEP_KEYS[path]), f"{found}; {_auto_remedy(zero, path)}"


def _fixed_steps(run: RunSettings, zero: DeepSpeedConfig) -> Iterator[tuple[str, float, float | None]]:
    """Yield each number of steps that the DeepSpeed file sets, for warm-up and for the whole run: its dotted path in
    the file, the number, and the number that the recipe gives. The last is None if it depends on the number of
    samples."""
    stated = int(run.args.number("max_steps"))
    total = stated if stated > 0 else None
    for path, steps in zip(_STEP_KEYS, (warmup_steps(run, total), total), strict=True):
        fixed = zero.value(path) if run.task.trains else None
        if isinstance(fixed, (int, float)):
            yield path, fixed, steps


_NEW_TOKEN_KEYS = ("resize_vocab", "add_tokens", "add_special_tokens", "new_special_tokens_config")


@rule("PAR008", ERROR, about=subjects.deepspeed)
def optimizer_not_offloadable(run: RunSettings, zero: DeepSpeedConfig) -> Findings:
    """The optimizer cannot run on offloaded state.

    Why: accelerate gives DeepSpeed's CPU Adagrad and Lion an argument of Adam: "unexpected keyword argument
    'adamw_mode'" when the trainer is built, after the model is loaded on every rank. CPU Adam with the settings of
    Adafactor ends in the first step: "adam_update(): incompatible function arguments".
    Source: accelerate/utils/deepspeed.py:map_pytorch_optim_to_deepspeed
    Fix: `optim: adamw_torch`, no offload, or `"zero_force_ds_cpu_optimizer": false`.
    """
    optim = run.args.get("optim")
    if zero.steps_on_cpu and optimizer_choice(optim).on_cpu == "refused":
        found = f"`optim: {optim}` cannot run on optimizer states in host memory"
        remedy = f"write `optim: adamw_torch`, or remove `offload_optimizer` from {_file_words(zero)}"
        yield "optim", f"{found}; {remedy}"


@rule("PAR009", WARNING, about=subjects.deepspeed)
def optimizer_becomes_adam(run: RunSettings, zero: DeepSpeedConfig) -> Findings:
    """DeepSpeed's CPU Adam replaces the recipe's optimizer, because optimizer states are offloaded.

    Why: accelerate maps AdamW to its CPU form and everything else to plain Adam, in which weight decay is not
    decoupled, and with 32-bit state.
    Source: accelerate/utils/deepspeed.py:map_pytorch_optim_to_deepspeed
    Fix: `optim: adamw_torch`; or no offload.
    """
    optim = run.args.get("optim")
    special = next((key for key in ("use_muon", "use_adam_mini") if run.args.flag(key)), None)
    if zero.steps_on_cpu and special:
        found = f"`{special}` has no effect, because `offload_optimizer` uses DeepSpeed's CPU Adam"
        remedy = f"remove `{special}`, or `offload_optimizer` from {_file_words(zero)}"
        yield special, f"{found}; {remedy}"
    elif zero.steps_on_cpu and run.args.is_set("optim") and optimizer_choice(optim).on_cpu == "plain adam":
        found = f"`optim: {optim}` has no effect, because `offload_optimizer` replaces it by DeepSpeed's plain CPU Adam"
        yield "optim", f"{found}; write `optim: adamw_torch`, which stays AdamW"


@rule("PAR017", ERROR, about=subjects.deepspeed)
def optimizer_of_matrices_sharded(run: RunSettings, zero: DeepSpeedConfig) -> Findings:
    """Muon or Adam-mini is combined with ZeRO.

    Why: ZeRO hands the optimizer flattened shards, in which these two no longer find the matrices they work on:
    "KeyError: 'use_muon'" or "too many indices" at the first step, after the data is tokenized and the model loaded on
    every rank (seen in a run).
    Source: llamafactory/third_party/muon/muon.py:Muon.step,
    llamafactory/train/trainer_utils.py:_create_adam_mini_optimizer,
    deepspeed/runtime/zero/stage_1_and_2.py:DeepSpeedZeroOptimizer.__init__
    Fix: no `deepspeed`, or `optim: adamw_torch` alone.
    """
    for key, last in (("use_muon", 3), ("use_adam_mini", 2)):
        if run.args.flag(key) and 0 < zero.stage <= last and not zero.steps_on_cpu:
            found = f"`{key}` needs whole matrices, which ZeRO-{zero.stage} cuts into flat shards"
            yield key, f"{found}; remove `{key}` or `deepspeed`"


@rule("PAR018", ERROR, since="deepspeed 0.16.5")
def output_layer_copied_in_shards(run: RunSettings) -> Findings:
    """LoRA trains a copy of the output layer under ZeRO-3.

    Why: DeepSpeed since 0.16.5 loses count in the copy that peft makes of a linear layer: "'Linear' object has no
    attribute 'ds_grads_remaining'" at the first step, after the data is tokenized and the model loaded on every rank
    (seen in a run; github.com/deepspeedai/DeepSpeed/issues/7615). Added tokens make such a copy too.
    Source: deepspeed/runtime/zero/parameter_offload.py:DeepSpeedZeRoOffload._register_deepspeed_module,
    peft/utils/other.py:ModulesToSaveWrapper.update
    Fix: ZeRO-2, `additional_target: embed_tokens` alone, or `finetuning_type: full`.
    """
    if run.zero_stage < 3 or run.task.method != "lora" or not run.task.trains:
        return
    # A word names each module whose name ends with it.
    if any("lm_head".endswith(word) for word in filter(None, run.args.words("additional_target"))):
        found = "`additional_target` makes a copy of lm_head, which fails under ZeRO-3 at the first step"
        remedy = "remove lm_head from `additional_target`, or use ZeRO-2"
        yield "additional_target", f"{found}; {remedy}"
    added = next((key for key in _NEW_TOKEN_KEYS if run.args.flag(key)), None)
    if added and not run.args.is_set("additional_target"):
        found = f"`{added}` trains a copy of lm_head, which fails under ZeRO-3 at the first step"
        yield added, f"{found}; use ZeRO-2, or remove `{added}`"


@rule("PAR019", ERROR, about=subjects.model, since="transformers 5.0.0")
def router_adapted_in_ddp(run: RunSettings, model: Model) -> Findings:
    """LoRA adapts a router that bypasses adapters, in DDP.

    Why: the router of deepseek_v2 reads the weight of its linear layer, so the adapter on it gets no gradient, and
    LLaMA-Factory turns the search for unused parameters off for LoRA: "Expected to have finished reduction" at the
    second step, after the model is loaded on every rank (seen in a run).
    Source: transformers/models/deepseek_v2/modeling_deepseek_v2.py:DeepseekV2Moe.forward,
    llamafactory/hparams/parser.py:get_train_args
    Fix: name the layers in `lora_target` without `gate`, or use ZeRO-2.
    """
    targets = {target.rpartition(".")[2] for target in run.args.words("lora_target")}
    other_class = run.args.flag("trust_remote_code") or run.args.flag("use_kt")  # whose router may be no linear layer
    routed = model.family.router == "linear" and {"all", "gate"} & targets and not other_class
    if routed and run.task.method == "lora" and run.task.trains and run.ddp_needs_all_gradients:
        found = "`lora_target` adapts the router (`gate`), whose adapter gets no gradient, which DDP refuses"
        yield "lora_target", f"{found}; name the other layers in `lora_target`, or use ZeRO-2"


@rule("PAR022", ERROR, about=subjects.model, since="transformers 5.0.0")
def mixture_not_found(run: RunSettings, model: Model) -> Findings:
    """ZeRO-3 trains a mixture of experts whose class has another name in transformers 5.

    Why: "No modules of type ['DeepseekV2MoE'] found in model" once the model is loaded on every rank: transformers 5
    spells the class otherwise (seen in a run).
    Source: llamafactory/model/model_utils/moe.py:add_z3_leaf_module
    Fix: ZeRO-2, FSDP, or transformers 4.
    """
    lost = model.family.lost_leaf
    if lost and run.zero_stage == 3 and run.task.trains:
        found = f"under ZeRO-3 LLaMA-Factory looks for the class {lost}, which transformers 5 has renamed"
        yield "deepspeed", f"{found}; use ZeRO-2, FSDP or transformers 4"


@rule("PAR024", ERROR, about=subjects.model)
def idle_layers_in_ddp(run: RunSettings, model: Model) -> Findings:
    """A model with layers that never run is trained in DDP.

    Why: MiMo loads a layer for further tokens that its code does not run in training. Its weights, and adapters on
    them, get no gradient, and neither LLaMA-Factory for LoRA nor transformers with checkpointed layers searches for
    unused parameters: "Expected to have finished reduction" at the second step (seen with the class in PyTorch's DDP).
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: ZeRO-2, which leaves parameters without gradients as they are.
    """
    recomputed = run.activation_checkpointing.llamafactory_mode != "off"
    reached = run.task.method == "lora" or (run.task.method == "full" and recomputed)
    if model.arch.mtp_layers > 0 and reached and run.task.trains and run.ddp_needs_all_gradients:
        found = "a layer of this model never runs in training, so DDP stops at the second step"
        yield "model_name_or_path", f"{found}; set `deepspeed: deepspeed/ds_z2.json`"
