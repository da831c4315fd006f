"""PAR001 to PAR009 and PAR017 to PAR024: the DeepSpeed JSON against the recipe, one and several devices, and what
sharded states and several processes cannot do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from validator.finding import Place
from validator.rules.finding_places import in_deepspeed_file
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.run import launcher
from validator.run.deepspeed import MICRO_BATCHES_KEPT_OFFLOADED
from validator.run.prediction import Job
from validator.run.schedule import warmup_steps

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


@rule("PAR001", ERROR)
def value_contradicted(job: Job) -> Findings:
    """A fixed value in the DeepSpeed JSON differs from the recipe's.

    Why: "Please correct the following DeepSpeed config values that mismatch TrainingArguments values", after the data
    set is tokenized and the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: "auto" in the JSON: the recipe alone decides.
    """
    for path, key in _EQUAL_KEYS.items():
        fixed, wanted = _config_value(job, path), job.get(key)
        free = path in _BATCH_KEYS[:1] and job.flag("auto_find_batch_size")
        if fixed is not None and fixed != "auto" and fixed != wanted and not free:
            yield _value_place(job, path, key), _contradiction(job, path, fixed, key, wanted)
    path, keys = "optimizer.params.betas", ("adam_beta1", "adam_beta2")
    fixed, betas = _config_value(job, path), [job.get(key) for key in keys]
    if fixed is not None and fixed != "auto" and fixed != betas:
        yield _value_place(job, path, *keys), _contradiction(job, path, fixed, " and ".join(keys), betas)


@rule("PAR002", ERROR)
def batch_size_wrong(job: Job) -> Findings:
    """train_batch_size in the JSON is not micro batch x accumulation x devices.

    Why: the Trainer and DeepSpeed both check the product, after the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    deepspeed/runtime/config.py:DeepSpeedConfig._batch_assertion
    Fix: `"train_batch_size": "auto"`.
    """
    size = _config_value(job, "train_batch_size")
    right = all(_config_value(job, path) in (None, "auto", job.get(_EQUAL_KEYS[path])) for path in _BATCH_KEYS)
    if size in (None, "auto") or job.machine is None or not right or job.flag("auto_find_batch_size"):
        return
    micro, steps = job.micro_batch, job.accumulation
    if size != job.effective_batch:
        place = _value_place(job, "train_batch_size", *(_EQUAL_KEYS[path] for path in _BATCH_KEYS))
        product = f"{micro} x {steps} x {job.world} = {job.effective_batch} (micro batch x accumulation x devices)"
        yield place, f'train_batch_size is {size}, but {product}; write "auto"'


@rule("PAR003", ERROR)
def precision_contradicted(job: Job) -> Findings:
    """The JSON fixes a precision that is not the recipe's.

    Why: the Trainer refuses the pair; with `bf16: true` in the recipe and fp16 in the JSON, or the other way round,
    after the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_process,
    transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: `"enabled": "auto"` in both blocks of the JSON: the recipe alone decides.
    """
    both = all(_config_value(job, f"{name}.enabled") is True for name in ("fp16", "bf16"))
    for name in ("fp16", "bf16") if not both else ():
        fixed, wanted = _config_value(job, f"{name}.enabled"), job.flag(name) or job.flag(f"{name}_full_eval")
        if fixed not in (None, "auto") and fixed != wanted:
            place = _value_place(job, f"{name}.enabled", name)
            found = f"{_file_words(job)} sets {name}.enabled to {json.dumps(fixed)}"
            yield place, f'{found}, the recipe has {name} {"on" if wanted else "off"}; write "auto" in the JSON'


@rule("PAR004", ERROR)
def accumulation_missing(job: Job) -> Findings:
    """The JSON leaves gradient accumulation out, and the recipe accumulates.

    Why: accelerate then puts 1 into the JSON, and the batch sizes no longer multiply, after the model is loaded.
    Source: accelerate/utils/dataclasses.py:DeepSpeedPlugin.__post_init__
    Fix: `"gradient_accumulation_steps": "auto"`.
    """
    steps = job.accumulation
    config = job.zero.config if job.zero else {}
    sized = all(config.get(key) is not None for key in ("zero_optimization", "train_batch_size", _BATCH_KEYS[0]))
    if sized and "gradient_accumulation_steps" not in config and steps > 1:
        place = _value_place(job, "gradient_accumulation_steps", "gradient_accumulation_steps")
        found = f"{_file_words(job)} leaves out gradient_accumulation_steps, which then is 1 and not {steps}"
        yield place, f'{found}; add `"gradient_accumulation_steps": "auto"`'


@rule("PAR005", WARNING)
def optimizer_replaced(job: Job) -> Findings:
    """The JSON brings its own optimizer or scheduler, so the recipe's is not used.

    Why: `optim` and `lr_scheduler_type` have no effect, and a missing learning rate becomes DeepSpeed's 0.001.
    Source: accelerate/accelerator.py:Accelerator._prepare_deepspeed,
    transformers/integrations/deepspeed.py:deepspeed_optim_sched
    Fix: remove the `optimizer` and `scheduler` blocks from the JSON.
    """
    for block, key in (("optimizer", "optim"), ("scheduler", "lr_scheduler_type")):
        if _config_value(job, f"{block}.type") and job.has(key):
            kind = _config_value(job, f"{block}.type")
            place = in_deepspeed_file(job, block, at_key=True, against=(key,))
            yield place, f"{block} {kind} of {_file_words(job)} replaces `{key}: {job.get(key)}`; remove the block"
    if _config_value(job, "optimizer.type") and _config_value(job, "optimizer.params.lr") is None:
        found = f"the optimizer block of {_file_words(job)} has no lr, so `learning_rate` is not used"
        place = _value_place(job, "optimizer.params.lr", "learning_rate")
        yield place, f'{found} but DeepSpeed\'s 0.001; write `"params": {{"lr": "auto"}}`'


@rule("PAR023", WARNING)
def gradients_lost(job: Job) -> Findings:
    """ZeRO-2 with the optimizer in host memory, and more than two micro batches to a step.

    Why: from DeepSpeed 0.15.2 to 0.18.9 only the first and the last micro batch of a step train: the gradients of the
    others are never copied to host memory. The loss falls all the same, and the gradient norm is too small.
    Source: deepspeed/runtime/zero/stage_1_and_2.py:DeepSpeedZeroOptimizer.async_accumulate_grad_in_cpu_via_gpu
    Fix: `deepspeed: deepspeed/ds_z3_offload.json`; or at most 2 for `gradient_accumulation_steps`, and more samples in
    each micro batch; DeepSpeed 0.19 has it right.
    """
    lost = job.accumulation - MICRO_BATCHES_KEPT_OFFLOADED
    if job.trains and job.zero and job.zero_stage == 2 and job.zero.offload("offload_optimizer") and lost > 0:
        found = f"{lost} of {job.accumulation} micro batches of a step are lost"
        why = "ZeRO-2 with the optimizer in host memory keeps the first and the last (DeepSpeed 0.15.2 to 0.18.9)"
        remedy = "set `deepspeed: deepspeed/ds_z3_offload.json`"
        yield "gradient_accumulation_steps", f"{found}: {why}; {remedy}"


@rule("PAR006", NOTE)
def launcher_needed(job: Job) -> Findings:
    """DeepSpeed on one device.

    Why: LLaMA-Factory starts torchrun by itself only for several devices: "Please use FORCE_TORCHRUN=1".
    Source: llamafactory/launcher.py:launch, llamafactory/hparams/parser.py:get_train_args
    Fix: `FORCE_TORCHRUN=1 llamafactory-cli train ...`; `lmf-recipes train` sets it.
    """
    if job.zero and job.machine and job.world == 1:
        text = "DeepSpeed on one device needs FORCE_TORCHRUN=1 in the environment; `lmf-recipes train` sets it"
        yield "deepspeed", text


@rule("PAR007", NOTE)
def nodes_to_join(job: Job) -> Findings:
    """The machine has several nodes.

    Why: each node starts its own command and must be told its place; LLaMA-Factory reads NODE_RANK, not RANK. With
    RDZV_ID nodes find their places themselves.
    Source: llamafactory/launcher.py:launch
    Fix: `lmf-recipes submit`, which has SLURM, SkyPilot or Kubernetes start all of them; without a scheduler NNODES,
    NODE_RANK, MASTER_ADDR and MASTER_PORT on every node: `lmf-recipes explain` shows the commands.
    """
    otherwise = job.accelerate or launcher.uses_ray() or "RDZV_ID" in os.environ
    if job.machine and job.machine.nodes > 1 and not otherwise:
        nodes = job.machine.nodes
        variables = f"FORCE_TORCHRUN=1 NNODES={nodes} NODE_RANK MASTER_ADDR MASTER_PORT"
        by_hand = f"by hand each needs {variables} in its environment"
        yield "machine", f"{nodes} nodes: `lmf-recipes submit` has a scheduler start them; {by_hand}"


def _config_value(job: Job, path: str) -> Any:
    return job.zero.value(path) if job.zero else None


def _value_place(job: Job, path: str, *keys: str) -> Place:
    """The value at a dotted path of the JSON, against these keys of the recipe."""
    return in_deepspeed_file(job, *path.split("."), against=keys)


def _file_words(job: Job) -> str:
    return f"`{Path(job.zero.path).name}`" if job.zero and job.zero.path else "the DeepSpeed configuration"


def _contradiction(job: Job, path: str, fixed: Any, key: str, wanted: Any) -> str:
    return f'{path} is {fixed} in {_file_words(job)}, {key} is {wanted} in the recipe; write "auto" in the JSON'


_WARMUP_PATH = "scheduler.params.warmup_num_steps"
_TOTAL_PATH = "scheduler.params.total_num_steps"


@rule("PAR020", ERROR)
def steps_contradicted(job: Job) -> Findings:
    """Fixed steps of the scheduler in the DeepSpeed JSON are not the run's.

    Why: "Please correct the following DeepSpeed config values that mismatch TrainingArguments values", after the data
    set is tokenized and the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize,
    transformers/training_args.py:TrainingArguments.get_warmup_steps
    Fix: "auto" in the JSON: the recipe alone decides.
    """
    for path, steps, what in (
        (_WARMUP_PATH, warmup_steps(job, _stated_total_steps(job)), "warms up for"),
        (_TOTAL_PATH, _stated_total_steps(job), "takes"),
    ):
        fixed = _fixed_steps(job, path)
        if fixed is not None and steps is not None and fixed != steps:
            text = f'{path} is {fixed}, the run {what} {steps:,} steps; write "auto" in the JSON'
            yield _steps_place(job, path), text


@rule("PAR021", WARNING)
def steps_by_chance(job: Job) -> Findings:
    """Fixed steps of the scheduler in the DeepSpeed JSON, where the data decide how many there are.

    Why: the Trainer stops unless the number is exactly the run's, after the data set is tokenized and the model is
    loaded on every rank; it differs with rows, batch size and devices.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: "auto" in the JSON; or `max_steps` in the recipe.
    """
    for path, steps in (
        (_WARMUP_PATH, warmup_steps(job, _stated_total_steps(job))),
        (_TOTAL_PATH, _stated_total_steps(job)),
    ):
        fixed = _fixed_steps(job, path)
        if fixed is not None and steps is None:
            text = f'{path} is {fixed} and must be exactly what the data make of the run; write "auto" in the JSON'
            yield _steps_place(job, path), text


def _fixed_steps(job: Job, path: str) -> int | float | None:
    """The number at a dotted path, None where the Trainer fills it in."""
    value = job.zero.value(path) if job.zero and job.trains else None
    return value if isinstance(value, (int, float)) else None


def _steps_place(job: Job, path: str) -> Place:
    keys = ("warmup_steps", "warmup_ratio") if path == _WARMUP_PATH else ("max_steps", "num_train_epochs")
    return in_deepspeed_file(job, *path.split("."), against=keys)


def _stated_total_steps(job: Job) -> int | None:
    """Steps of the run, where the recipe alone says how many."""
    steps = int(job.number("max_steps"))
    return steps if steps > 0 else None


# Optimizers that accelerate turns into the CPU optimizer of the same kind (accelerate/utils/deepspeed.py).
_CPU_OPTIMIZERS = {"adamw_torch", "adamw_torch_fused", "paged_adamw_32bit"}
# Those it hands an argument of Adam, which their CPU optimizers refuse, and Adafactor, whose two values for `eps` are
# not for CPU Adam.
_REFUSED_CPU_OPTIMIZERS = ("adagrad", "lion_32bit", "paged_lion_32bit", "adafactor")
_NEW_TOKEN_KEYS = ("resize_vocab", "add_tokens", "add_special_tokens", "new_special_tokens_config")


@rule("PAR008", ERROR)
def optimizer_not_offloadable(job: Job) -> Findings:
    """The optimizer cannot run on offloaded state.

    Why: accelerate gives DeepSpeed's CPU Adagrad and Lion an argument of Adam: "unexpected keyword argument
    'adamw_mode'" when the trainer is built, after the model is loaded on every rank. CPU Adam with the settings of
    Adafactor ends in the first step: "adam_update(): incompatible function arguments".
    Source: accelerate/utils/deepspeed.py:map_pytorch_optim_to_deepspeed
    Fix: `optim: adamw_torch`, no offload, or `"zero_force_ds_cpu_optimizer": false`.
    """
    optim = job.get("optim")
    if _uses_cpu_adam(job) and optim in _REFUSED_CPU_OPTIMIZERS:
        yield "optim", f"{optim} cannot run on offloaded optimizer state; use adamw_torch, or no offload_optimizer"


@rule("PAR009", WARNING)
def optimizer_becomes_adam(job: Job) -> Findings:
    """With optimizer offload, the recipe's optimizer is replaced by DeepSpeed's CPU Adam.

    Why: accelerate maps AdamW to its CPU form and everything else to plain Adam, in which weight decay is not
    decoupled, and with 32-bit state.
    Source: accelerate/utils/deepspeed.py:map_pytorch_optim_to_deepspeed
    Fix: `optim: adamw_torch`; or no offload.
    """
    optim = job.get("optim")
    special = next((key for key in ("use_muon", "use_adam_mini") if job.flag(key)), None)
    if _uses_cpu_adam(job) and special:
        yield special, f"`{special}` has no effect with offload_optimizer, which uses DeepSpeed's CPU Adam; remove one"
    elif _uses_cpu_adam(job) and job.has("optim") and optim not in (*_CPU_OPTIMIZERS, *_REFUSED_CPU_OPTIMIZERS):
        yield "optim", f"{optim} becomes DeepSpeed's plain CPU Adam with offload_optimizer; write adamw_torch"


@rule("PAR017", ERROR)
def optimizer_of_matrices_sharded(job: Job) -> Findings:
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
        if job.flag(key) and 0 < job.zero_stage <= last and not _uses_cpu_adam(job):
            yield key, f"`{key}` cannot step on the shards of ZeRO-{job.zero_stage}; remove it or `deepspeed`"


@rule("PAR018", ERROR)
def output_layer_copied_in_shards(job: Job) -> Findings:
    """LoRA trains a copy of the output layer under ZeRO-3.

    Why: DeepSpeed since 0.16.5 loses count in the copy that peft makes of a linear layer: "'Linear' object has no
    attribute 'ds_grads_remaining'" at the first step, after the data is tokenized and the model loaded on every rank
    (seen in a run; github.com/deepspeedai/DeepSpeed/issues/7615). Added tokens make such a copy too.
    Source: deepspeed/runtime/zero/parameter_offload.py:DeepSpeedZeRoOffload._register_deepspeed_module,
    peft/utils/other.py:ModulesToSaveWrapper.update
    Fix: ZeRO-2, `additional_target: embed_tokens` alone, or `finetuning_type: full`.
    """
    if job.zero_stage < 3 or job.method != "lora" or not job.trains:
        return
    if "lm_head" in job.words("additional_target"):
        yield "additional_target", "a copy of lm_head fails under ZeRO-3 at the first step; use ZeRO-2, or leave it out"
    added = next((key for key in _NEW_TOKEN_KEYS if job.flag(key)), None)
    if added and not job.has("additional_target"):
        yield added, f"`{added}` trains a copy of lm_head, which fails under ZeRO-3 at the first step; use ZeRO-2"


@rule("PAR019", ERROR, since="transformers 5.0.0")
def router_adapted_in_ddp(job: Job) -> Findings:
    """LoRA adapts a router that bypasses adapters, in DDP.

    Why: the router of deepseek_v2 reads the weight of its linear layer, so the adapter on it gets no gradient, and
    LLaMA-Factory turns the search for unused parameters off for LoRA: "Expected to have finished reduction" at the
    second step, after the model is loaded on every rank (seen in a run).
    Source: transformers/models/deepseek_v2/modeling_deepseek_v2.py:DeepseekV2Moe.forward,
    llamafactory/hparams/parser.py:get_train_args
    Fix: name the layers in `lora_target` without `gate`, or use ZeRO-2.
    """
    routed = job.model is not None and job.model.family.router == "linear" and job.method == "lora"
    if _ddp_needs_all_gradients(job) and routed and job.trains and {"all", "gate"} & set(job.words("lora_target")):
        yield "lora_target", "the adapter of the router gets no gradient, which DDP refuses; name the layers but `gate`"


@rule("PAR022", ERROR, since="transformers 5.0.0")
def mixture_not_found(job: Job) -> Findings:
    """ZeRO-3 trains a mixture that LLaMA-Factory looks for by the name of a class that is gone.

    Why: "No modules of type ['DeepseekV2MoE'] found in model" once the model is loaded on every rank: transformers 5
    spells the class otherwise (seen in a run).
    Source: llamafactory/model/model_utils/moe.py:add_z3_leaf_module
    Fix: ZeRO-2, FSDP, or transformers 4.
    """
    lost = job.model.family.lost_leaf if job.model else None
    if lost and job.zero_stage == 3 and job.trains:
        found = f"LLaMA-Factory looks for {lost} under ZeRO-3, which transformers 5 names otherwise"
        yield "deepspeed", f"{found}; use ZeRO-2, FSDP or transformers 4"


@rule("PAR024", ERROR)
def idle_layers_in_ddp(job: Job) -> Findings:
    """A model with layers that never run is trained in DDP.

    Why: MiMo loads a layer for further tokens that its code does not run in training. Its weights, and adapters on
    them, get no gradient, and neither LLaMA-Factory for LoRA nor transformers with checkpointed layers searches for
    unused parameters: "Expected to have finished reduction" at the second step (seen with the class in PyTorch's DDP).
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: ZeRO-2, which leaves parameters without gradients as they are.
    """
    idle = job.model is not None and job.model.arch.idle > 0
    reached = job.method == "lora" or (job.method == "full" and job.own_checkpointing != "off")
    if idle and reached and job.trains and _ddp_needs_all_gradients(job):
        remedy = "set `deepspeed: deepspeed/ds_z2.json`"
        yield "model_name_or_path", f"a layer of this model never runs, so DDP stops at the second step; {remedy}"


def _ddp_needs_all_gradients(job: Job) -> bool:
    """Whether several processes train in DDP, which is not asked to search for parameters without gradients."""
    return job.world > 1 and not job.zero and not job.fsdp and not job.flag("ddp_find_unused_parameters")


def _uses_cpu_adam(job: Job) -> bool:
    """Whether the Trainer hands the optimizer's state to DeepSpeed's CPU optimizers."""
    return job.zero is not None and job.zero.steps_on_cpu
