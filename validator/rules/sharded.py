"""PAR008, PAR009, PAR017 to PAR019, PAR022 and PAR024: what several processes, and states in shards, cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule

# Optimizers that accelerate turns into the CPU optimizer of the same kind (accelerate/utils/deepspeed.py).
_ON_CPU = {"adamw_torch", "adamw_torch_fused", "paged_adamw_32bit"}
# Those it hands an argument of Adam, which their CPU optimizers refuse, and Adafactor, whose two values for `eps` are
# not for CPU Adam.
_REFUSED = ("adagrad", "lion_32bit", "paged_lion_32bit", "adafactor")
_NEW_TOKENS = ("resize_vocab", "add_tokens", "add_special_tokens", "new_special_tokens_config")


@rule("PAR008", Severity.ERROR)
def optimizer_not_offloadable(job: Job) -> Iterator[Finding]:
    """The optimizer cannot run on offloaded state.

    Why: accelerate gives DeepSpeed's CPU Adagrad and Lion an argument of Adam: "unexpected keyword argument
    'adamw_mode'" when the trainer is built, after the model is loaded on every rank. CPU Adam with the settings of
    Adafactor ends in the first step: "adam_update(): incompatible function arguments".
    Source: accelerate/utils/deepspeed.py:map_pytorch_optim_to_deepspeed
    Fix: `optim: adamw_torch`, no offload, or `"zero_force_ds_cpu_optimizer": false`.
    """
    optim = job.get("optim")
    if _forced(job) and optim in _REFUSED:
        yield "optim", f"{optim} cannot run on offloaded optimizer state; use adamw_torch, or no offload_optimizer"


@rule("PAR009", Severity.WARNING)
def optimizer_becomes_adam(job: Job) -> Iterator[Finding]:
    """With optimizer offload, the recipe's optimizer is replaced by DeepSpeed's CPU Adam.

    Why: accelerate maps AdamW to its CPU form and everything else to plain Adam, in which weight decay is not
    decoupled, and with 32-bit state.
    Source: accelerate/utils/deepspeed.py:map_pytorch_optim_to_deepspeed
    Fix: `optim: adamw_torch`; or no offload.
    """
    optim = job.get("optim")
    special = next((key for key in ("use_muon", "use_adam_mini") if job.flag(key)), None)
    if _forced(job) and special:
        yield (
            special,
            f"`{special}` has no effect with offload_optimizer, which uses DeepSpeed's CPU Adam; remove one",
        )
    elif _forced(job) and job.has("optim") and optim not in (*_ON_CPU, *_REFUSED):
        yield "optim", f"{optim} becomes DeepSpeed's plain CPU Adam with offload_optimizer; write adamw_torch"


@rule("PAR017", Severity.ERROR)
def optimizer_of_matrices_sharded(job: Job) -> Iterator[Finding]:
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
        if job.flag(key) and 0 < job.zero_stage <= last and not _forced(job):
            yield key, f"`{key}` cannot step on the shards of ZeRO-{job.zero_stage}; remove it or `deepspeed`"


@rule("PAR018", Severity.ERROR)
def output_layer_copied_in_shards(job: Job) -> Iterator[Finding]:
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
    added = next((key for key in _NEW_TOKENS if job.flag(key)), None)
    if added and not job.has("additional_target"):
        yield added, f"`{added}` trains a copy of lm_head, which fails under ZeRO-3 at the first step; use ZeRO-2"


@rule("PAR019", Severity.ERROR, since="transformers 5.0.0")
def router_adapted_in_ddp(job: Job) -> Iterator[Finding]:
    """LoRA adapts a router that bypasses adapters, in DDP.

    Why: the router of deepseek_v2 reads the weight of its linear layer, so the adapter on it gets no gradient, and
    LLaMA-Factory turns the search for unused parameters off for LoRA: "Expected to have finished reduction" at the
    second step, after the model is loaded on every rank (seen in a run).
    Source: transformers/models/deepseek_v2/modeling_deepseek_v2.py:DeepseekV2Moe.forward,
    llamafactory/hparams/parser.py:get_train_args
    Fix: name the layers in `lora_target` without `gate`, or use ZeRO-2.
    """
    routed = job.model is not None and job.model.family.router == "linear" and job.method == "lora"
    if _strict(job) and routed and job.trains and {"all", "gate"} & set(job.words("lora_target")):
        yield "lora_target", "the adapter of the router gets no gradient, which DDP refuses; name the layers but `gate`"


@rule("PAR022", Severity.ERROR, since="transformers 5.0.0")
def mixture_not_found(job: Job) -> Iterator[Finding]:
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


@rule("PAR024", Severity.ERROR)
def idle_layers_in_ddp(job: Job) -> Iterator[Finding]:
    """A model with layers that never run is trained in DDP.

    Why: MiMo loads a layer for further tokens that its code does not run in training. Its weights, and adapters on
    them, get no gradient, and neither LLaMA-Factory for LoRA nor transformers with checkpointed layers searches for
    unused parameters: "Expected to have finished reduction" at the second step (seen with the class in PyTorch's DDP).
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: ZeRO-2, which leaves parameters without gradients as they are.
    """
    idle = job.model is not None and job.model.arch.idle > 0
    reached = job.method == "lora" or (job.method == "full" and job.own_checkpointing != "off")
    if idle and reached and job.trains and _strict(job):
        remedy = "set `deepspeed: deepspeed/ds_z2.json`"
        yield "model_name_or_path", f"a layer of this model never runs, so DDP stops at the second step; {remedy}"


def _strict(job: Job) -> bool:
    """Whether several processes train in DDP, which is not asked to search for parameters without gradients."""
    return job.world > 1 and not job.zero and not job.fsdp and not job.flag("ddp_find_unused_parameters")


def _forced(job: Job) -> bool:
    """Whether the Trainer hands the optimizer's state to DeepSpeed's CPU optimizers."""
    return job.zero is not None and job.zero.steps_on_cpu
