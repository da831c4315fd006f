"""Job -> Cell: what a simulation of the job's run is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from validator.diagnostic import RecipeError
from validator.job import workload
from validator.job.job import Job
from validator.job.quantization import quantization
from validator.simulate.cell import OPTIMIZERS, Cell
from validator.tables import families
from validator.tables.architecture import architecture

_PRECISION = {"amp": "bf16", "pure": "pure_bf16", "engine": "engine", "fp32": "fp32"}
_ATTENTION = {"disabled": "eager", "fa2": "fa2"}
# What changes the model or the step in ways that the simulator does not follow.
_UNLIKE = ("use_unsloth", "use_kt", "mixture_of_depths", "shift_attn", "use_llama_pro", "resize_vocab", "add_tokens",
           "add_special_tokens", "use_asft_loss", "use_galore", "use_apollo", "use_badam", "use_muon",
           "use_adam_mini", "ref_model", "adapter_name_or_path", "freeze_extra_modules")  # fmt: skip


def cell(job: Job, config: Mapping[str, Any], length: int, stored_bytes: float = 2.0) -> Cell:
    """One warm step of the job on one device, with sequences of a length in tokens and a checkpoint of so many bytes
    per element.

    Raises RecipeError for what is not simulated, with the reason."""
    for problem in _problems(job, config):
        raise RecipeError(f"is not simulated: {problem}")
    optimizer = workload.optimizer(job, job.zero)
    return Cell(
        model=config,
        method=_method(job),
        lora_rank=max(int(job.number("lora_rank")), 1),
        lora_targets=",".join(job.words("lora_target")) or "all",
        precision_mode=_PRECISION[job.precision],
        seq_len=length,
        micro_batch=1 if job.stage == "kto" else job.micro_batch,
        grad_ckpt=job.checkpointing != "off",
        attn=_ATTENTION.get(str(job.get("flash_attn")), "sdpa"),
        optimizer=optimizer if optimizer in OPTIMIZERS and not _spread(job) else "sgd",
        grad_accum=min(job.accumulation, 2),
        freeze_layers=int(job.number("freeze_trainable_layers")),
        stage=_stage(job),
        padded=not job.packs or job.neat,
        liger=_fused(job, config),
        additional_target=",".join(job.words("additional_target")),
        dora=job.flag("use_dora"),
        lora_dropout=job.number("lora_dropout"),
        upcast_layernorm=job.flag("upcast_layernorm"),
        freeze_vision_tower=job.flag("freeze_vision_tower"),
        freeze_multi_modal_projector=job.flag("freeze_multi_modal_projector"),
        freeze_language_model=job.flag("freeze_language_model"),
        base_bytes=int(workload.loaded_bytes(job, stored_bytes)),
        steps=1,
        warm=True,
    )


def _spread(job: Job) -> bool:
    """Whether the states are an engine's or spread over devices, which only the formulas tell."""
    return job.engine or job.world > 1


def _problems(job: Job, config: Mapping[str, Any]) -> Iterator[str]:
    if job.stage not in ("pt", "sft", "rm", "dpo", "kto"):
        yield f"the stage `{job.stage}`"
    if job.method not in ("full", "freeze", "lora", "oft"):
        yield f"`finetuning_type: {job.method}`"
    if job.stage == "kto" and job.micro_batch > 1:
        yield "KTO with more than one sample in a batch"
    if config.get("quantization_config"):
        yield "a checkpoint that is quantized already"
    if any(part in config for part in families.PARTS) and not _shaped(config):
        yield "pictures and sounds of a type that the formulas do not know"
    asked = quantization(job, None)
    if asked.asked and (asked.method != "bnb" or asked.bits not in (4, 8)):
        yield f"quantization by {asked.method} to {asked.bits} bits"
    yield from (f"`{key}`" for key in _UNLIKE if job.flag(key))
    if _fused(job, config) and find_spec("liger_kernel") is None:
        yield "`enable_liger_kernel` needs a package that is not installed: pip install liger-kernel"


def _fused(job: Job, config: Mapping[str, Any]) -> bool:
    """Whether LLaMA-Factory fuses kernels for this type of model."""
    return job.flag("enable_liger_kernel") and str(config.get("model_type")) in families.listed("liger")


def _shaped(config: Mapping[str, Any]) -> bool:
    """Whether the formulas know its shapes, and judge by them; then what is simulated is only shown beside."""
    try:
        return bool(architecture(config))
    except RecipeError:
        return False


def _method(job: Job) -> str:
    asked = quantization(job, None)
    return f"qlora{asked.bits}" if asked.asked and job.method == "lora" else job.method


def _stage(job: Job) -> str:
    """The stage by its loss; continued pre-training has that of sft."""
    if job.stage == "dpo":
        loss = str(job.get("pref_loss"))
        return loss if loss in ("orpo", "simpo") else "dpo"
    return "sft" if job.stage == "pt" else job.stage
