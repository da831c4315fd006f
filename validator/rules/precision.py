"""TRA7xx: number formats, attention, gradient checkpointing and kernels."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules import edits
from validator.rules.rule import Finding, rule
from validator.tables import releases


@rule("TRA701", Severity.ERROR)
def two_formats(job: Job) -> Iterator[Finding]:
    """Both fp16 and bf16 are set.

    Why: refused at parse, on every rank.
    Source: transformers/training_args.py:TrainingArguments._validate_args
    Fix: bf16 where the device has it (Ampere and later, Ascend 910B), else fp16.
    """
    for half, brain in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if job.flag(half) and job.flag(brain):
            yield half, f"`{half}` and `{brain}` exclude each other; keep one"


@rule("TRA702", Severity.ERROR)
def pure_format_sharded(job: Job) -> Iterator[Finding]:
    """Pure bf16 is combined with ZeRO-3.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: `bf16: true` instead of `pure_bf16`; ZeRO-3 keeps bf16 weights anyway.
    """
    if job.flag("pure_bf16") and job.zero_stage == 3:
        yield "pure_bf16", "`pure_bf16` is refused with DeepSpeed ZeRO-3; write `bf16: true`"


@rule("TRA703", Severity.WARNING)
def full_precision(job: Job) -> Iterator[Finding]:
    """Training computes in 32 bits.

    Why: full and freeze turn trained weights into fp32, and without bf16 or fp16 nothing computes in less: twice the
    memory for activations, and a fraction of the speed. `fp8` alone does not help: the Trainer fixes the precision
    before LLaMA-Factory asks for fp8, unless `fp8_backend: te` forces it.
    Source: llamafactory/model/adapter.py:init_adapter, llamafactory/train/fp8_utils.py:configure_fp8_environment
    Fix: `bf16: true` (fp16 on V100 and T4).
    """
    trains = job.trains and job.method in ("full", "freeze")
    if trains and job.precision == "fp32" and not job.on_cpu and not widened(job):
        better = "fp16" if job.machine and not job.machine.device.bf16 else "bf16"
        yield "bf16", f"neither bf16 nor fp16 is set: training computes in 32 bits; set `{better}: true`"


@rule("TRA704", Severity.ERROR)
def attention_unknown(job: Job) -> Iterator[Finding]:
    """FlashAttention-3 is asked for, which LLaMA-Factory does not set up.

    Why: "unknown attention type" when the model is configured, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: `flash_attn: fa2`, or auto.
    """
    if job.get("flash_attn") == "fa3" and not (job.model and job.model.family.own_kernel):
        judged = releases.newest()[0]
        yield "flash_attn", f"`flash_attn: fa3` is not set up by LLaMA-Factory {judged}; write fa2 or auto"


@rule("TRA705", Severity.WARNING)
def checkpointing_stays_on(job: Job) -> Iterator[Finding]:
    """Gradient checkpointing is switched off by a key that does not do it, or both on and off.

    Why: LLaMA-Factory switches it on itself; `gradient_checkpointing: false` leaves it on, and `gradient_checkpointing:
    true` brings it back where `disable_gradient_checkpointing` has removed it.
    Source: llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training
    Fix: `disable_gradient_checkpointing: true` alone switches it off; neither key leaves it on.
    """
    if not job.flag("disable_gradient_checkpointing"):
        if job.values.get("gradient_checkpointing") is False:
            yield (
                "gradient_checkpointing",
                "`gradient_checkpointing: false` leaves it on; write `disable_gradient_checkpointing: true`",
                edits.rename("gradient_checkpointing", "disable_gradient_checkpointing", safe=False, value=True),
            )
    elif job.flag("gradient_checkpointing"):
        yield (
            "disable_gradient_checkpointing",
            ("`gradient_checkpointing: true` switches back on what this key switches off; remove one"),
        )


@rule("TRA706", Severity.WARNING)
def two_liger_switches(job: Job) -> Iterator[Finding]:
    """Liger kernels are switched on by transformers' key.

    Why: LLaMA-Factory's own key is `enable_liger_kernel`; transformers' patches the model a second time, after
    LLaMA-Factory decided whether the stage can do without logits.
    Source: transformers/trainer.py:Trainer.train, llamafactory/model/loader.py:load_model
    Fix: `enable_liger_kernel: true` alone.
    """
    if job.flag("use_liger_kernel"):
        how = "remove it" if job.flag("enable_liger_kernel") else "write `enable_liger_kernel: true`"
        own = job.flag("enable_liger_kernel")
        fix = edits.drop("use_liger_kernel") if own else edits.rename("use_liger_kernel", "enable_liger_kernel", False)
        yield "use_liger_kernel", f"`use_liger_kernel` goes past LLaMA-Factory's own switch; {how}", fix


@rule("TRA707", Severity.WARNING)
def no_liger_kernel(job: Job) -> Iterator[Finding]:
    """Liger kernels are asked for a model that has none.

    Why: LLaMA-Factory only warns and goes on: neither speed nor memory is gained, and long samples may run out of
    memory.
    Source: llamafactory/model/model_utils/liger_kernel.py:apply_liger_kernel
    Fix: remove `enable_liger_kernel`, and check memory without it.
    """
    if job.flag("enable_liger_kernel") and job.model and not job.model.family.liger:
        yield "enable_liger_kernel", f"LLaMA-Factory has no liger kernels for {job.model.kind}; nothing is saved"


@rule("TRA708", Severity.ERROR)
def shifted_attention_refused(job: Job) -> Iterator[Finding]:
    """S^2 attention is asked for with transformers 5.

    Why: its patch of llama needs transformers below 4.48: fails when the model is configured, after the whole data
    set is tokenized on every rank.
    Source: llamafactory/model/model_utils/longlora.py:_apply_llama_patch
    Fix: remove `shift_attn`.
    """
    asked = job.flag("shift_attn") and job.trains and job.stage != "ppo"
    if asked and job.model and job.model.family.shift_attention:
        yield "shift_attn", "`shift_attn` needs transformers below 4.48; remove it"


@rule("TRA709", Severity.WARNING)
def shifted_attention_unread(job: Job) -> Iterator[Finding]:
    """S^2 attention is asked for a model that has none.

    Why: LLaMA-Factory only warns and goes on with full attention, which needs far more memory on long samples.
    Source: llamafactory/model/model_utils/longlora.py:configure_longlora
    Fix: remove `shift_attn`.
    """
    if job.flag("shift_attn") and job.model and not job.model.family.shift_attention and job.stage != "ppo":
        yield "shift_attn", f"`shift_attn` is for llama models, not {job.model.kind}; it has no effect"


@rule("TRA710", Severity.ERROR)
def depths_refused(job: Job) -> Iterator[Finding]:
    """A model is to be converted to mixture-of-depths that cannot be.

    Why: fails while the model loads, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/mod.py:convert_pretrained_model_to_mod,
    llamafactory/extras/constants.py:MOD_SUPPORTED_MODELS
    Fix: remove `mixture_of_depths`.
    """
    if job.get("mixture_of_depths") == "convert" and job.model and not job.model.family.mixture_of_depths:
        yield "mixture_of_depths", f"{job.model.kind} cannot be converted to mixture-of-depths; remove it"


@rule("TRA711", Severity.ERROR)
def formats_meet(job: Job) -> Iterator[Finding]:
    """Weights in 32 and in 16 bits meet in a run without mixed precision.

    Why: LLaMA-Factory trains in 32 bits what freeze tuning, `additional_target` or new tokens unfreeze, and
    `upcast_layernorm` widens the norms, beside a checkpoint in 16 bits. Only `bf16` or `fp16` lets the two be
    multiplied: "expected m1 and m2 to have the same dtype" at the first step, after the data is tokenized and the model
    loaded on every rank.
    Source: llamafactory/model/adapter.py:init_adapter, llamafactory/model/adapter.py:_setup_freeze_tuning,
    llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training
    Fix: `bf16: true` (fp16 on V100 and T4).
    """
    key = widened(job)
    if key and job.trains and not job.pure and not job.casts:
        yield key, f"{_WIDENED[key]} in 32 bits beside 16-bit weights needs mixed precision; set `bf16: true`"


@rule("TRA712", Severity.WARNING)
def routers_without_loss(job: Job) -> Iterator[Finding]:
    """A coefficient of the routers' loss is set for a model that gets none.

    Why: LLaMA-Factory hands it on to some mixtures; elsewhere it has no effect, and experts are not balanced.
    Source: llamafactory/model/model_utils/moe.py:configure_moe
    Fix: remove `moe_aux_loss_coef`.
    """
    if job.flag("moe_aux_loss_coef") and job.trains and job.model and not job.model.family.aux_loss:
        yield "moe_aux_loss_coef", f"LLaMA-Factory gives the routers of {job.model.kind} no loss; it has no effect"


# keys that make LLaMA-Factory keep some weights in 32 bits (model/adapter.py, model/model_utils/checkpointing.py)
_WIDENED = {
    "finetuning_type": "freeze tuning",
    "additional_target": "`additional_target`",
    "resize_vocab": "a new embedding",
    "add_tokens": "a new embedding",
    "add_special_tokens": "a new embedding",
    "upcast_layernorm": "`upcast_layernorm`",
}


def widened(job: Job) -> str | None:
    """The key that leaves weights in 32 bits beside others in 16; None where there is none, or it is not known."""
    if job.method == "full" or job.model is None or job.model.dtype_bytes != 2 or job.engine or job.fsdp:
        return None
    adapted = ("additional_target", "resize_vocab", "add_tokens", "add_special_tokens")
    trained = ["finetuning_type"] if job.method == "freeze" else [key for key in adapted if job.flag(key)]
    return next(iter([*trained, *(["upcast_layernorm"] if job.flag("upcast_layernorm") else [])]), None)


@rule("TRA713", Severity.ERROR, since="transformers 5.6.0")
def flash_attention_without_sinks(job: Job) -> Iterator[Finding]:
    """FlashAttention-2 is asked for with the newest transformers, for a model without attention sinks.

    Why: that release converts the sinks even where a model has none: "'NoneType' object has no attribute 'to'" at the
    first step, after the data is tokenized and the model loaded on every rank (transformers issue 45588). It is the
    newest release that LLaMA-Factory admits, and so the one that pip installs.
    Source: transformers/integrations/flash_attention.py:flash_attention_forward
    Fix: the earlier transformers in the message, also in the header block; or `flash_attn: auto`.
    """
    model, device = job.model, job.machine.device if job.machine else None
    if device and not device.flash_attention:  # LLaMA-Factory goes on without it
        return
    if job.get("flash_attn") == "fa2" and model and not (model.family.sinks or model.remote_code):
        newest, earlier = (version for _, version in releases.known()[:2])
        text = f"`flash_attn: fa2` ends with transformers {newest} at the first step"
        yield "flash_attn", f"{text}; install {earlier} and write `# transformers: {earlier}`, or `flash_attn: auto`"
