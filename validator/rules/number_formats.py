"""Number formats: precision of training, quantized checkpoints and quantization while loading."""

from __future__ import annotations

from validator.knowledge import releases
from validator.knowledge.models import Model
from validator.knowledge.releases import ReleaseRange
from validator.run.broken_run import overflows_in_fp16
from validator.run.quantization import ON_LOAD_BITS
from validator.run.settings import RunSettings

from . import subjects
from .rule import ERROR, WARNING, Findings, remove_keys, rename_key, rule, set_value


@rule("TRA701", ERROR)
def two_formats(run: RunSettings) -> Findings:
    """Both fp16 and bf16 are set.

    Why: refused at parse, on every rank.
    Source: transformers/training_args.py:TrainingArguments._validate_args
    Fix: bf16 where the device has it (Ampere and later, Ascend 910B), else fp16.
    """
    for half, brain in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if run.args.flag(half) and run.args.flag(brain):
            yield half, f"`{half}` and `{brain}` exclude each other; remove `{half}`, or `{brain}`"


@rule("TRA702", ERROR)
def pure_format_sharded(run: RunSettings) -> Findings:
    """Pure bf16 is combined with ZeRO-3.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: `bf16: true` instead of `pure_bf16`; ZeRO-3 keeps bf16 weights anyway.
    """
    if run.args.flag("pure_bf16") and run.zero_stage == 3:
        yield "pure_bf16", "`pure_bf16` is refused with DeepSpeed ZeRO-3; write `bf16: true`"


@rule("TRA703", WARNING)
def full_precision(run: RunSettings) -> Findings:
    """Training computes in 32 bits.

    Why: full and freeze turn trained weights into fp32, and without bf16 or fp16 nothing computes in less: twice the
    memory for activations, and a fraction of the speed. `fp8` alone does not help: the Trainer fixes the precision
    before LLaMA-Factory asks for fp8, unless `fp8_backend: te` forces it.
    Source: llamafactory/model/adapter.py:init_adapter, llamafactory/train/fp8_utils.py:configure_fp8_environment
    Fix: `bf16: true` (fp16 on V100 and T4).
    """
    trains = run.task.trains and run.task.method in ("full", "freeze")
    if trains and run.precision.mode == "fp32" and not run.on_cpu and not fp32_weights_key(run):
        better = "fp16" if run.machine and not run.machine.device.bf16 else "bf16"
        if better == "fp16" and overflows_in_fp16(run):
            return
        yield "bf16", f"neither `bf16` nor `fp16` is set, so training computes in 32 bits; set `{better}: true`"


@rule("TRA704", ERROR)
def attention_unknown(run: RunSettings) -> Findings:
    """The recipe asks for FlashAttention-3, which LLaMA-Factory does not set up.

    Why: "unknown attention type" when the model is configured, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: `flash_attn: fa2`, or auto.
    """
    if run.args.get("flash_attn") == "fa3" and not (run.model and run.model.family.own_kernel):
        judged = releases.newest_pair()[0]
        yield "flash_attn", f"LLaMA-Factory {judged} does not support `flash_attn: fa3`; write `flash_attn: fa2`"


@rule("TRA705", WARNING)
def checkpointing_stays_on(run: RunSettings) -> Findings:
    """Gradient checkpointing is switched off by a key that does not do that, or is switched both on and off.

    Why: LLaMA-Factory switches it on itself; `gradient_checkpointing: false` leaves it on, and `gradient_checkpointing:
    true` brings it back where `disable_gradient_checkpointing` has removed it.
    Source: llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training
    Fix: `disable_gradient_checkpointing: true` alone switches it off; neither key leaves it on.
    """
    if not run.args.flag("disable_gradient_checkpointing"):
        if run.args.values.get("gradient_checkpointing") is False:
            found = "`gradient_checkpointing: false` has no effect, as LLaMA-Factory turns checkpointing on"
            text = f"{found}; write `disable_gradient_checkpointing: true`"
            fix = rename_key("gradient_checkpointing", "disable_gradient_checkpointing", safe=False, value=True)
            yield "gradient_checkpointing", text, fix
    elif run.args.flag("gradient_checkpointing"):
        found = "`gradient_checkpointing: true` undoes `disable_gradient_checkpointing`"
        remedy = "remove `gradient_checkpointing`, or `disable_gradient_checkpointing`"
        yield "disable_gradient_checkpointing", f"{found}; {remedy}"


@rule("TRA706", WARNING)
def two_liger_switches(run: RunSettings) -> Findings:
    """Liger kernels are switched on by transformers' key.

    Why: LLaMA-Factory's own key is `enable_liger_kernel`; transformers' patches the model a second time, after
    LLaMA-Factory decided whether the stage can do without logits.
    Source: transformers/trainer.py:Trainer.train, llamafactory/model/loader.py:load_model
    Fix: `enable_liger_kernel: true` alone.
    """
    own = run.args.flag("enable_liger_kernel")
    if run.args.flag("use_liger_kernel"):
        how = "remove `use_liger_kernel`" if own else "write `enable_liger_kernel: true` instead"
        fix = remove_keys("use_liger_kernel") if own else rename_key("use_liger_kernel", "enable_liger_kernel", False)
        yield (
            "use_liger_kernel",
            f"`use_liger_kernel` bypasses LLaMA-Factory's own switch, `enable_liger_kernel`; {how}",
            fix,
        )


@rule("TRA711", ERROR)
def fp32_meets_bf16(run: RunSettings) -> Findings:
    """Weights in 32 and in 16 bits meet in a run without mixed precision.

    Why: LLaMA-Factory trains in 32 bits what freeze tuning, `additional_target` or new tokens unfreeze, and
    `upcast_layernorm` widens the norms, beside a checkpoint in 16 bits. Only `bf16` or `fp16` lets the two be
    multiplied: "expected m1 and m2 to have the same dtype" at the first step, after the data is tokenized and the model
    loaded on every rank.
    Source: llamafactory/model/adapter.py:init_adapter, llamafactory/model/adapter.py:_setup_freeze_tuning,
    llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training
    Fix: `bf16: true` (fp16 on V100 and T4).
    """
    key = fp32_weights_key(run)
    if key and run.task.trains and not run.precision.trains_in_16_bit and not run.precision.autocast:
        yield key, f"{KEEPS_FP32[key]} mixes 32-bit with 16-bit weights, which needs mixed precision; set `bf16: true`"


# keys that make LLaMA-Factory keep some weights in 32 bits (model/adapter.py, model/model_utils/checkpointing.py)
KEEPS_FP32 = {
    "finetuning_type": "freeze tuning",
    "additional_target": "`additional_target`",
    "resize_vocab": "a new embedding",
    "add_tokens": "a new embedding",
    "add_special_tokens": "a new embedding",
    "upcast_layernorm": "`upcast_layernorm`",
}


def fp32_weights_key(run: RunSettings) -> str | None:
    """Return the recipe's key that makes some weights 32-bit while others stay 16-bit. None if no key does, if
    DeepSpeed or FSDP is used, or if the model is not known."""
    if run.task.method == "full" or run.model is None or run.model.dtype_bytes != 2 or run.uses_deepspeed or run.fsdp:
        return None
    adapter_keys = ("additional_target", "resize_vocab", "add_tokens", "add_special_tokens")
    keys = ["finetuning_type"] if run.task.method == "freeze" else [key for key in adapter_keys if run.args.flag(key)]
    return next(iter([*keys, *(["upcast_layernorm"] if run.args.flag("upcast_layernorm") else [])]), None)


def _sharding_name(run: RunSettings) -> str | None:
    return "DeepSpeed ZeRO-3" if run.zero_stage == 3 else "FSDP" if run.fsdp else None


@rule("TRA301", ERROR)
def quantized_weights_trained(run: RunSettings) -> Findings:
    """Quantized weights are trained by a method other than LoRA or OFT.

    Why: refused at parse, on every rank: only LoRA and OFT train beside frozen weights.
    Source: llamafactory/hparams/parser.py:_verify_model_args
    Fix: `finetuning_type: lora`, or remove `quantization_bit`.
    """
    if run.quantization.is_requested and not run.task.uses_adapter:
        found = f"`quantization_bit` works only with adapters, not with `finetuning_type: {run.task.method}`"
        yield "quantization_bit", f"{found}; set `finetuning_type: lora`, or remove `quantization_bit`"


@rule("TRA302", ERROR)
def quantization_conflict(run: RunSettings) -> Findings:
    """A setting excludes quantized weights.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:_verify_model_args, llamafactory/hparams/parser.py:get_train_args
    Fix: remove the setting, or `quantization_bit`.
    """
    if not (run.quantization.is_requested and run.task.uses_adapter):
        return
    if run.args.flag("pissa_init") and run.task.method == "lora":
        remedy = "run LLaMA-Factory's scripts/pissa_init.py first, or remove `pissa_init`"
        yield "pissa_init", f"PiSSA cannot be initialized on quantized weights; {remedy}"
    if run.args.flag("resize_vocab"):
        yield "resize_vocab", "the embeddings of a quantized model cannot be resized; remove `resize_vocab`"
    if run.args.is_set("adapter_name_or_path") and run.args.flag("create_new_adapter"):
        found = "a new adapter cannot be put on a quantized model that has one already"
        yield "create_new_adapter", f"{found}; merge that adapter into the model, or remove `create_new_adapter`"
    elif len(run.args.words("adapter_name_or_path")) > 1:
        found = "`adapter_name_or_path` names several adapters, and a quantized model takes one"
        yield "adapter_name_or_path", f"{found}; merge the adapters first, and name one"
    if run.args.flag("fp8"):
        yield "fp8", "`fp8` and `quantization_bit` exclude each other; remove `fp8`, or `quantization_bit`"


@rule("TRA303", ERROR)
def device_map_in_training(run: RunSettings) -> Findings:
    """`quantization_device_map: auto` is set in training.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `quantization_device_map`; ZeRO-3 or FSDP shard a 4-bit model.
    """
    if run.task.trains and run.args.get("quantization_device_map") == "auto":
        text = "`quantization_device_map: auto` is refused in training; remove `quantization_device_map`"
        yield "quantization_device_map", text


@rule("TRA304", ERROR)
def bits_refused(run: RunSettings) -> Findings:
    """The quantization method does not support this number of bits.

    Why: fails when the model is configured, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization
    Fix: bnb takes 4 or 8, eetq 8, hqq 1 to 6 or 8.
    """
    asked = run.quantization
    allowed = ON_LOAD_BITS.get(asked.method)
    if asked.quantizes_at_load and run.task.uses_adapter and allowed and asked.bits not in allowed:
        known, nearest = " or ".join(map(str, allowed)), min(allowed, key=lambda bits: abs(bits - (asked.bits or 0)))
        found = f"{asked.method} quantizes to {known} bits, not to {asked.bits}"
        yield "quantization_bit", f"{found}; set `quantization_bit: {nearest}`"


@rule("TRA305", ERROR)
def quantization_not_sharded(run: RunSettings) -> Findings:
    """Weights are quantized in a way that ZeRO-3 and FSDP cannot shard.

    Why: fails when the model is configured, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization
    Fix: `quantization_bit: 4` with bnb, or ZeRO-2.
    """
    way, asked = _sharding_name(run), run.quantization
    known = asked.quantizes_at_load and asked.bits in ON_LOAD_BITS.get(asked.method, ())
    if way and known and run.task.uses_adapter and (asked.method, asked.bits) != ("bnb", 4):
        found = f"{way} cannot shard {asked.bits}-bit {asked.method} weights"
        remedy = "set `quantization_bit: 4` with `quantization_method: bnb`, or use DeepSpeed ZeRO-2"
        yield "quantization_bit", f"{found}; {remedy}"


@rule("TRA306", ERROR)
def checkpoint_not_sharded(run: RunSettings) -> Findings:
    """The checkpoint is quantized in a way that ZeRO-3 and FSDP cannot shard.

    Why: fails when the model is configured, after the whole data set is tokenized on every rank. LLaMA-Factory 0.9.4
    and later load weights in FP8 in 16 bits, and older releases refuse them, too.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization
    Fix: ZeRO-2 or plain data parallel, or the unquantized model with `quantization_bit: 4`.
    """
    older = run.releases.requires(until="llamafactory 0.9.4")
    kind, way = run.quantization.checkpoint if older else run.quantization.kept_method, _sharding_name(run)
    if kind and way:
        found = f"the checkpoint is {kind}-quantized, which {way} cannot shard"
        yield "model_name_or_path", f"{found}; use DeepSpeed ZeRO-2, or train without DeepSpeed and FSDP"


@rule("TRA307", ERROR)
def quantized_checkpoint_trained(run: RunSettings) -> Findings:
    """A quantized checkpoint is used with a method other than LoRA or OFT, or with PiSSA.

    Why: fails when the adapter is made, after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/model/adapter.py:init_adapter
    Fix: `finetuning_type: lora`, or the unquantized model.
    """
    kind = run.quantization.kept_method if run.task.trains and not run.quantization.is_requested else None
    if kind and not run.task.uses_adapter:
        found = f"the checkpoint is {kind}-quantized, so its weights cannot be trained"
        yield "finetuning_type", f"{found}; set `finetuning_type: lora`"
    elif kind and run.args.flag("pissa_init"):
        found = f"the checkpoint is {kind}-quantized, and PiSSA needs the original weights"
        yield "pissa_init", f"{found}; remove `pissa_init`"


@rule("TRA308", WARNING)
def nothing_quantized(run: RunSettings) -> Findings:
    """The quantization method does not quantize while loading, or does not quantize this model.

    Why: `quantization_bit` then has no effect, and the full weights are loaded: out of memory, or no saving at all.
    GPTQ, AWQ and the like are for checkpoints that are quantized already; bitsandbytes replaces plain linear layers
    only since transformers 5.6, and not those of a class of its own that a model has, as Falcon's.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization,
    transformers/integrations/bitsandbytes.py:replace_with_bnb_linear
    Fix: `quantization_method: bnb`, or the quantized checkpoint without `quantization_bit`; for such a model
    transformers 5.2.
    """
    asked = run.quantization
    if asked.quantizes_at_load and not asked.works:
        key = "quantization_method" if "quantization_method" in run.args.values else "quantization_bit"
        text = (
            f"`quantization_method: {asked.method}` quantizes nothing while loading; write `quantization_method: bnb`"
        )
        yield key, text, set_value("quantization_method", "bnb", safe=False)
    elif asked.works and asked.skipped_by_bnb and run.model:
        found = f"this transformers quantizes no linear layer of {run.model.kind}"
        yield "quantization_bit", f"{found}; install transformers 5.2.0, which does"


@rule("TRA309", WARNING)
def quantized_twice(run: RunSettings) -> Findings:
    """`quantization_bit` is set for a checkpoint that is quantized already.

    Why: it has no effect; the checkpoint's own quantization is used.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization
    Fix: remove it.
    """
    kind = run.quantization.checkpoint
    if kind and run.quantization.is_requested and run.task.uses_adapter:
        found = f"the checkpoint is {kind}-quantized already, so `quantization_bit` has no effect"
        yield "quantization_bit", f"{found}; remove `quantization_bit`"


@rule("TRA310", ERROR)
def dora_on_quantized(run: RunSettings) -> Findings:
    """DoRA is put on quantized weights.

    Why: refused when the adapter is made, after the data is tokenized and the model loaded on every rank; bitsandbytes
    too, as LLaMA-Factory compares the method's name with another spelling.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: LoRA without `use_dora`, or unquantized weights.
    """
    quantized = run.quantization.works or run.quantization.kept_method
    if run.task.method == "lora" and run.args.flag("use_dora") and quantized:
        yield "use_dora", "`use_dora` is refused on quantized weights, bnb included; remove `use_dora`"


@rule("TRA311", WARNING, about=subjects.model)
def experts_not_quantized(run: RunSettings, model: Model) -> Findings:
    """A mixture-of-experts model is quantized while loading.

    Why: transformers 5 keeps the experts as fused tensors that bitsandbytes leaves in 16 bits, so most of the model
    is not shrunk.
    Source: transformers/integrations/bitsandbytes.py:replace_with_bnb_linear
    Fix: transformers 4, whose experts are linear modules; else shard over several devices with ZeRO-3, or use a
    checkpoint that is quantized already.
    """
    fused = model.arch.ffn.experts and model.family.fuses(run.releases) and not _has_quantized_router(run)
    if (
        fused and run.quantization.quantizes_at_load and run.quantization.method == "bnb"
    ):  # TRA313 and TRA314 say worse of a router
        older = model.family.forms(ReleaseRange()).get("separate")
        cures = [f"install transformers {older}, which quantizes them"] if older else []
        if run.machine is None or run.batch.world_size > 1:  # else ZeRO-3 has nothing to shard over
            cures.append("shard them with DeepSpeed ZeRO-3")
        remedy = ", or ".join(cures) or "take a checkpoint that is quantized already"
        yield "quantization_bit", f"`quantization_bit` leaves the experts of {model.kind} in 16 bits; {remedy}"


@rule("TRA312", ERROR)
def other_model_bits(run: RunSettings) -> Findings:
    """The reference or reward model is quantized to a number of bits that is not supported.

    Why: an assertion at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: 4 or 8.
    """
    for key in ("ref_model_quantization_bit", "reward_model_quantization_bit"):
        if run.args.is_set(key) and run.args.get(key) not in (4, 8):
            yield key, f"`{key}` is {run.args.get(key)}, and only 4 and 8 are accepted; set `{key}: 4`"


@rule("TRA313", ERROR, since="transformers 5.0.0")
def router_packed(run: RunSettings) -> Findings:
    """A model whose router reads the weight of a plain linear layer is quantized to 4 bits.

    Why: the router multiplies by the packed weight: "mat1 and mat2 shapes cannot be multiplied" at the first step,
    after the data is tokenized and the model loaded on every rank (seen in a run).
    Source: transformers/models/deepseek_v2/modeling_deepseek_v2.py:DeepseekV2Moe.forward
    Fix: LoRA on 16-bit weights, sharded with ZeRO-3 where they do not fit.
    """
    if _has_quantized_router(run) and run.quantization.bits == 4:
        yield "quantization_bit", "the router of this model cannot read 4-bit weights; remove `quantization_bit`"


@rule("TRA314", WARNING, since="transformers 5.0.0")
def router_rounded(run: RunSettings) -> Findings:
    """A model whose router reads the weight of a plain linear layer is quantized to 8 bits.

    Why: the run goes on, but the router takes the stored integers for weights and sends tokens to other experts than
    the model learned.
    Source: transformers/models/deepseek_v2/modeling_deepseek_v2.py:DeepseekV2Moe.forward
    Fix: LoRA on 16-bit weights, sharded with ZeRO-3 where they do not fit.
    """
    if _has_quantized_router(run) and run.quantization.bits == 8:
        found = "the router of this model reads 8-bit integers as weights, and chooses wrong experts"
        yield "quantization_bit", f"{found}; remove `quantization_bit`"


# Methods whose checkpoints are computed by kernels of other packages
_KERNEL_METHODS = {"gptq": "GPTQ", "awq": "AWQ"}


@rule("TRA315", WARNING)
def adapter_on_quantized_checkpoint(run: RunSettings) -> Findings:
    """An adapter is put on the layers of a GPTQ or AWQ checkpoint.

    Why: PEFT has adapters for some of their kernels; which kernel is used depends on the device and on the releases of
    PEFT, GPTQModel and AutoAWQ. With another one the run stops after the data is tokenized and the model loaded on
    every rank: "Target module TritonV2QuantLinear() is not supported" (LLaMA-Factory issues 9101, 10374), or at the
    first step of a run in bf16, as AWQ's kernel computes in fp16 (Qwen3-VL issue 1222).
    Source: peft/tuners/lora/gptq.py:dispatch_gptq, peft/tuners/lora/awq.py:dispatch_awq,
    transformers/integrations/awq.py:replace_with_awq_linear
    Fix: the model that is not quantized, with `quantization_bit: 4`.
    """
    method = _KERNEL_METHODS.get(run.quantization.kept_method or "")
    if method and run.task.trains and run.task.uses_adapter:
        found = f"the checkpoint is quantized by {method}, and PEFT knows the layers of some of its kernels only"
        remedy = "name the model that is not quantized, and set `quantization_bit: 4`"
        yield "model_name_or_path", f"{found}; {remedy}, or try a few steps with `lmf-recipes train --smoke` first"


def _has_quantized_router(run: RunSettings) -> bool:
    quantized = run.quantization.quantizes_at_load and run.quantization.method == "bnb"
    return quantized and run.task.trains and run.model is not None and run.model.family.router == "linear"
