"""TRA3xx: `quantization_bit` and checkpoints that are quantized already."""

from __future__ import annotations

from validator.knowledge.models import Model
from validator.rules import subjects
from validator.rules.rule import ERROR, WARNING, Findings, rule, set_value
from validator.run.prediction import Job
from validator.run.quantization import ON_LOAD_BITS


def _sharding_name(job: Job) -> str | None:
    return "DeepSpeed ZeRO-3" if job.zero_stage == 3 else "FSDP" if job.fsdp else None


@rule("TRA301", ERROR)
def quantized_weights_trained(job: Job) -> Findings:
    """Quantized weights are to be trained themselves.

    Why: refused at parse, on every rank: only LoRA and OFT train beside frozen weights.
    Source: llamafactory/hparams/parser.py:_verify_model_args
    Fix: `finetuning_type: lora`, or remove `quantization_bit`.
    """
    if job.quantization.asked and not job.task.uses_adapter:
        yield "quantization_bit", f"quantized weights need `finetuning_type: lora` or oft, not {job.task.method}"


@rule("TRA302", ERROR)
def quantization_conflict(job: Job) -> Findings:
    """A setting excludes quantized weights.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:_verify_model_args, llamafactory/hparams/parser.py:get_train_args
    Fix: remove the setting, or `quantization_bit`.
    """
    if not (job.quantization.asked and job.task.uses_adapter):
        return
    if job.args.flag("pissa_init") and job.task.method == "lora":
        yield "pissa_init", "PiSSA cannot be initialized on quantized weights; use scripts/pissa_init.py once"
    if job.args.flag("resize_vocab"):
        yield "resize_vocab", "the embeddings of a quantized model cannot be resized; remove `resize_vocab`"
    if job.args.is_set("adapter_name_or_path") and job.args.flag("create_new_adapter"):
        yield "create_new_adapter", "a new adapter cannot be put on an adapted quantized model; merge the first one"
    elif len(job.args.words("adapter_name_or_path")) > 1:
        yield "adapter_name_or_path", "a quantized model takes one adapter; merge them first"
    if job.args.flag("fp8"):
        yield "fp8", "`fp8` and `quantization_bit` exclude each other; remove one"


@rule("TRA303", ERROR)
def device_map_in_training(job: Job) -> Findings:
    """Layers of a quantized model are to be spread over devices in training.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `quantization_device_map`; ZeRO-3 or FSDP shard a 4-bit model.
    """
    if job.task.trains and job.args.get("quantization_device_map") == "auto":
        yield "quantization_device_map", "`quantization_device_map: auto` is for inference; remove it"


@rule("TRA304", ERROR)
def bits_refused(job: Job) -> Findings:
    """The quantization method does not know this number of bits.

    Why: fails when the model is configured, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization
    Fix: bnb takes 4 or 8, eetq 8, hqq 1 to 6 or 8.
    """
    asked = job.quantization
    allowed = ON_LOAD_BITS.get(asked.method)
    if asked.loads and job.task.uses_adapter and allowed and asked.bits not in allowed:
        known = ", ".join(str(bits) for bits in allowed)
        yield "quantization_bit", f"{asked.method} quantizes to {known} bits, not {asked.bits}"


@rule("TRA305", ERROR)
def quantization_not_sharded(job: Job) -> Findings:
    """Weights are quantized in a way that ZeRO-3 and FSDP cannot shard.

    Why: fails when the model is configured, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization
    Fix: `quantization_bit: 4` with bnb, or ZeRO-2.
    """
    way, asked = _sharding_name(job), job.quantization
    known = asked.loads and asked.bits in ON_LOAD_BITS.get(asked.method, ())
    if way and known and job.task.uses_adapter and (asked.method, asked.bits) != ("bnb", 4):
        text = f"{way} cannot shard {asked.bits}-bit {asked.method} weights; use 4-bit bnb, or ZeRO-2"
        yield "quantization_bit", text


@rule("TRA306", ERROR)
def checkpoint_not_sharded(job: Job) -> Findings:
    """The checkpoint is quantized in a way that ZeRO-3 and FSDP cannot shard.

    Why: fails when the model is configured, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization
    Fix: ZeRO-2 or plain data parallel, or the unquantized model with `quantization_bit: 4`.
    """
    kind, way = job.quantization.kept, _sharding_name(job)
    if kind and way:
        yield "model_name_or_path", f"the checkpoint is {kind}-quantized, which {way} cannot shard; use ZeRO-2 or none"


@rule("TRA307", ERROR)
def quantized_checkpoint_trained(job: Job) -> Findings:
    """A quantized checkpoint is used with a method other than LoRA or OFT, or with PiSSA.

    Why: fails when the adapter is made, after the data is tokenized and the model loaded on every rank.
    Source: llamafactory/model/adapter.py:init_adapter
    Fix: `finetuning_type: lora`, or the unquantized model.
    """
    kind = job.quantization.kept if job.task.trains and not job.quantization.asked else None
    if kind and not job.task.uses_adapter:
        yield "finetuning_type", f"the checkpoint is {kind}-quantized, so its weights cannot be trained; use lora"
    elif kind and job.args.flag("pissa_init"):
        yield "pissa_init", f"the checkpoint is {kind}-quantized; PiSSA needs the original weights"


@rule("TRA308", WARNING)
def nothing_quantized(job: Job) -> Findings:
    """The quantization method does not quantize while loading, or not this model.

    Why: `quantization_bit` then has no effect, and the full weights are loaded: out of memory, or no saving at all.
    GPTQ, AWQ and the like are for checkpoints that are quantized already; bitsandbytes replaces plain linear layers
    only since transformers 5.6, and not those of a class of its own that a model has, as Falcon's.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization,
    transformers/integrations/bitsandbytes.py:replace_with_bnb_linear
    Fix: `quantization_method: bnb`, or the quantized checkpoint without `quantization_bit`; for such a model
    transformers 5.2.
    """
    asked = job.quantization
    if asked.loads and not asked.works:
        key = "quantization_method" if "quantization_method" in job.args.values else "quantization_bit"
        text = f"`quantization_method: {asked.method}` quantizes nothing while loading; use bnb"
        yield key, text, set_value("quantization_method", "bnb", safe=False)
    elif asked.works and asked.spared and job.model:
        found = f"this transformers quantizes no linear layer of {job.model.kind}"
        yield "quantization_bit", f"{found}; install transformers 5.2.0, which does"


@rule("TRA309", WARNING)
def quantized_twice(job: Job) -> Findings:
    """`quantization_bit` is set for a checkpoint that is quantized already.

    Why: it has no effect; the checkpoint's own quantization is used.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization
    Fix: remove it.
    """
    kind = job.quantization.checkpoint
    if kind and job.quantization.asked and job.task.uses_adapter:
        yield "quantization_bit", f"the checkpoint is {kind}-quantized already; `quantization_bit` has no effect"


@rule("TRA310", ERROR)
def dora_on_quantized(job: Job) -> Findings:
    """DoRA is put on quantized weights.

    Why: refused when the adapter is made, after the data is tokenized and the model loaded on every rank; bitsandbytes
    too, as LLaMA-Factory compares the method's name with another spelling.
    Source: llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: LoRA without `use_dora`, or unquantized weights.
    """
    quantized = job.quantization.works or job.quantization.kept
    if job.task.method == "lora" and job.args.flag("use_dora") and quantized:
        yield "use_dora", "`use_dora` is refused on quantized weights, bnb included; remove one"


@rule("TRA311", WARNING, about=subjects.model)
def experts_not_quantized(job: Job, model: Model) -> Findings:
    """A mixture-of-experts model is quantized while loading.

    Why: transformers 5 keeps the experts as fused tensors that bitsandbytes leaves in 16 bits, so most of the model
    is not shrunk.
    Source: transformers/integrations/bitsandbytes.py:replace_with_bnb_linear
    Fix: transformers 4, whose experts are linear modules; else shard over several devices with ZeRO-3, or use a
    checkpoint that is quantized already.
    """
    fused = model.arch.ffn.experts and model.family.fuses(job.header) and not _has_quantized_router(job)
    if fused and job.quantization.loads and job.quantization.method == "bnb":  # TRA313 and TRA314 say worse of a router
        older = model.family.forms({}).get(False)
        cures = [f"install transformers {older}, which quantizes them"] if older else []
        if job.machine is None or job.batch.world_size > 1:  # else ZeRO-3 has nothing to shard over
            cures.append("shard with ZeRO-3")
        remedy = ", or ".join(cures) or "take a checkpoint that is quantized already"
        yield "quantization_bit", f"the experts of {model.kind} stay in 16 bits; {remedy}"


@rule("TRA312", ERROR)
def other_model_bits(job: Job) -> Findings:
    """The reference or reward model is to be quantized to a number of bits that is not known.

    Why: an assertion at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: 4 or 8.
    """
    for key in ("ref_model_quantization_bit", "reward_model_quantization_bit"):
        if job.args.is_set(key) and job.args.get(key) not in (4, 8):
            yield key, f"`{key}` is {job.args.get(key)}, only 4 and 8 are accepted"


@rule("TRA313", ERROR, since="transformers 5.0.0")
def router_packed(job: Job) -> Findings:
    """A model whose router reads the weight of a plain linear layer is quantized to 4 bits.

    Why: the router multiplies by the packed weight: "mat1 and mat2 shapes cannot be multiplied" at the first step,
    after the data is tokenized and the model loaded on every rank (seen in a run).
    Source: transformers/models/deepseek_v2/modeling_deepseek_v2.py:DeepseekV2Moe.forward
    Fix: LoRA on 16-bit weights, sharded with ZeRO-3 where they do not fit.
    """
    if _has_quantized_router(job) and job.quantization.bits == 4:
        yield "quantization_bit", "the router of this model cannot read 4-bit weights; remove `quantization_bit`"


@rule("TRA314", WARNING, since="transformers 5.0.0")
def router_rounded(job: Job) -> Findings:
    """A model whose router reads the weight of a plain linear layer is quantized to 8 bits.

    Why: the run goes on, but the router takes the stored integers for weights and sends tokens to other experts than
    the model learned.
    Source: transformers/models/deepseek_v2/modeling_deepseek_v2.py:DeepseekV2Moe.forward
    Fix: LoRA on 16-bit weights, sharded with ZeRO-3 where they do not fit.
    """
    if _has_quantized_router(job) and job.quantization.bits == 8:
        yield "quantization_bit", "the router of this model takes 8-bit integers for weights; remove it"


def _has_quantized_router(job: Job) -> bool:
    quantized = job.quantization.loads and job.quantization.method == "bnb"
    return quantized and job.task.trains and job.model is not None and job.model.family.router == "linear"
