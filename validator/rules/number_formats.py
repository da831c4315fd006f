"""TRA701 to TRA706 and TRA711: bf16, fp16 and 32-bit weights, and the switches of attention, Liger kernels and
gradient checkpointing."""

from __future__ import annotations

from validator.knowledge import releases
from validator.rules.rule import ERROR, WARNING, Findings, remove_keys, rename_key, rule
from validator.run.prediction import Job


@rule("TRA701", ERROR)
def two_formats(job: Job) -> Findings:
    """Both fp16 and bf16 are set.

    Why: refused at parse, on every rank.
    Source: transformers/training_args.py:TrainingArguments._validate_args
    Fix: bf16 where the device has it (Ampere and later, Ascend 910B), else fp16.
    """
    for half, brain in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if job.args.flag(half) and job.args.flag(brain):
            yield half, f"`{half}` and `{brain}` exclude each other; keep one"


@rule("TRA702", ERROR)
def pure_format_sharded(job: Job) -> Findings:
    """Pure bf16 is combined with ZeRO-3.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: `bf16: true` instead of `pure_bf16`; ZeRO-3 keeps bf16 weights anyway.
    """
    if job.args.flag("pure_bf16") and job.zero_stage == 3:
        yield "pure_bf16", "`pure_bf16` is refused with DeepSpeed ZeRO-3; write `bf16: true`"


@rule("TRA703", WARNING)
def full_precision(job: Job) -> Findings:
    """Training computes in 32 bits.

    Why: full and freeze turn trained weights into fp32, and without bf16 or fp16 nothing computes in less: twice the
    memory for activations, and a fraction of the speed. `fp8` alone does not help: the Trainer fixes the precision
    before LLaMA-Factory asks for fp8, unless `fp8_backend: te` forces it.
    Source: llamafactory/model/adapter.py:init_adapter, llamafactory/train/fp8_utils.py:configure_fp8_environment
    Fix: `bf16: true` (fp16 on V100 and T4).
    """
    trains = job.task.trains and job.task.method in ("full", "freeze")
    if trains and job.precision.mode == "fp32" and not job.on_cpu and not fp32_weights_key(job):
        better = "fp16" if job.machine and not job.machine.device.bf16 else "bf16"
        yield "bf16", f"neither bf16 nor fp16 is set: training computes in 32 bits; set `{better}: true`"


@rule("TRA704", ERROR)
def attention_unknown(job: Job) -> Findings:
    """FlashAttention-3 is asked for, which LLaMA-Factory does not set up.

    Why: "unknown attention type" when the model is configured, after the whole data set is tokenized on every rank.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation
    Fix: `flash_attn: fa2`, or auto.
    """
    if job.args.get("flash_attn") == "fa3" and not (job.model and job.model.family.own_kernel):
        judged = releases.newest_pair()[0]
        yield "flash_attn", f"`flash_attn: fa3` is not set up by LLaMA-Factory {judged}; write fa2 or auto"


@rule("TRA705", WARNING)
def checkpointing_stays_on(job: Job) -> Findings:
    """Gradient checkpointing is switched off by a key that does not do it, or both on and off.

    Why: LLaMA-Factory switches it on itself; `gradient_checkpointing: false` leaves it on, and `gradient_checkpointing:
    true` brings it back where `disable_gradient_checkpointing` has removed it.
    Source: llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training
    Fix: `disable_gradient_checkpointing: true` alone switches it off; neither key leaves it on.
    """
    if not job.args.flag("disable_gradient_checkpointing"):
        if job.args.values.get("gradient_checkpointing") is False:
            text = "`gradient_checkpointing: false` leaves it on; write `disable_gradient_checkpointing: true`"
            fix = rename_key("gradient_checkpointing", "disable_gradient_checkpointing", safe=False, value=True)
            yield "gradient_checkpointing", text, fix
    elif job.args.flag("gradient_checkpointing"):
        text = "`gradient_checkpointing: true` switches back on what this key switches off; remove one"
        yield "disable_gradient_checkpointing", text


@rule("TRA706", WARNING)
def two_liger_switches(job: Job) -> Findings:
    """Liger kernels are switched on by transformers' key.

    Why: LLaMA-Factory's own key is `enable_liger_kernel`; transformers' patches the model a second time, after
    LLaMA-Factory decided whether the stage can do without logits.
    Source: transformers/trainer.py:Trainer.train, llamafactory/model/loader.py:load_model
    Fix: `enable_liger_kernel: true` alone.
    """
    own = job.args.flag("enable_liger_kernel")
    if job.args.flag("use_liger_kernel"):
        how = "remove it" if own else "write `enable_liger_kernel: true`"
        fix = remove_keys("use_liger_kernel") if own else rename_key("use_liger_kernel", "enable_liger_kernel", False)
        yield "use_liger_kernel", f"`use_liger_kernel` goes past LLaMA-Factory's own switch; {how}", fix


@rule("TRA711", ERROR)
def fp32_meets_bf16(job: Job) -> Findings:
    """Weights in 32 and in 16 bits meet in a run without mixed precision.

    Why: LLaMA-Factory trains in 32 bits what freeze tuning, `additional_target` or new tokens unfreeze, and
    `upcast_layernorm` widens the norms, beside a checkpoint in 16 bits. Only `bf16` or `fp16` lets the two be
    multiplied: "expected m1 and m2 to have the same dtype" at the first step, after the data is tokenized and the model
    loaded on every rank.
    Source: llamafactory/model/adapter.py:init_adapter, llamafactory/model/adapter.py:_setup_freeze_tuning,
    llamafactory/model/model_utils/checkpointing.py:prepare_model_for_training
    Fix: `bf16: true` (fp16 on V100 and T4).
    """
    key = fp32_weights_key(job)
    if key and job.task.trains and not job.precision.trains_in_16_bit and not job.precision.autocast:
        yield key, f"{KEEPS_FP32[key]} in 32 bits beside 16-bit weights needs mixed precision; set `bf16: true`"


# keys that make LLaMA-Factory keep some weights in 32 bits (model/adapter.py, model/model_utils/checkpointing.py)
KEEPS_FP32 = {
    "finetuning_type": "freeze tuning",
    "additional_target": "`additional_target`",
    "resize_vocab": "a new embedding",
    "add_tokens": "a new embedding",
    "add_special_tokens": "a new embedding",
    "upcast_layernorm": "`upcast_layernorm`",
}


def fp32_weights_key(job: Job) -> str | None:
    """The key that leaves weights in 32 bits beside others in 16; None where there is none, or it is not known."""
    if job.task.method == "full" or job.model is None or job.model.dtype_bytes != 2 or job.uses_deepspeed or job.fsdp:
        return None
    adapted = ("additional_target", "resize_vocab", "add_tokens", "add_special_tokens")
    trained = ["finetuning_type"] if job.task.method == "freeze" else [key for key in adapted if job.args.flag(key)]
    return next(iter([*trained, *(["upcast_layernorm"] if job.args.flag("upcast_layernorm") else [])]), None)
