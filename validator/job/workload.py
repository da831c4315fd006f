"""Job -> Workload: what LLaMA-Factory 0.9.5 would really execute, in the terms of the memory formulas.

Facts about precision, which parameters are trained in what type, batches and stages follow LLaMA-Factory's source
(model/adapter.py, model/loader.py, train/*/workflow.py, v0.9.5); each is named where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from validator.job import zero
from validator.memory import Adapter, Sharding, Workload, linear_roles
from validator.memory.workload import Attention, Checkpointing, Precision
from validator.tables.models import Model

if TYPE_CHECKING:
    from validator.job.job import Job

_ROLES = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "gate_proj": "gate", "up_proj": "up",
    "down_proj": "down", "qkv_proj": "qkv", "gate_up_proj": "gate_up", "c_attn": "qkv", "wqkv": "qkv", "wo": "o",
    "w1": "gate", "w3": "up", "w2": "down", "c_proj": "o", "q_a_proj": "q_a", "q_b_proj": "q_b",
    "kv_a_proj_with_mqa": "kv_a", "kv_b_proj": "kv_b",
}  # fmt: skip
# Names of transformers 5.6 (trainer_optimizer.py); those that are not here are counted as AdamW. PyTorch's own steps go
# over all tensors at once; apex and anyprecision keep fp32 moments, as bitsandbytes' 32-bit ones are.
_OPTIMIZERS = {
    "adamw_torch": "adamw_foreach", "adamw_torch_fused": "adamw", "adamw_torch_npu_fused": "adamw_foreach",
    "adamw_apex_fused": "adamw_32bit", "adamw_anyprecision": "adamw_32bit", "adamw_torch_8bit": "adamw_8bit",
    "adamw_torch_4bit": "adamw_4bit", "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit",
    "paged_adamw_32bit": "paged_adamw_32bit", "paged_adamw": "paged_adamw_32bit",
    "paged_adamw_8bit": "paged_adamw_8bit", "ademamix": "ademamix", "ademamix_8bit": "ademamix_8bit",
    "paged_ademamix_32bit": "paged_ademamix", "paged_ademamix_8bit": "paged_ademamix_8bit", "grokadamw": "ademamix",
    "lion_32bit": "lion", "lion_8bit": "lion_8bit", "paged_lion_32bit": "paged_lion",
    "paged_lion_8bit": "paged_lion_8bit", "rmsprop": "rmsprop", "rmsprop_bnb": "rmsprop_32bit",
    "rmsprop_bnb_32bit": "rmsprop_32bit", "rmsprop_bnb_8bit": "rmsprop_8bit", "adagrad": "adagrad",
    "adafactor": "adafactor", "sgd": "sgd", "schedule_free_adamw": "adamw_foreach",
    "schedule_free_radam": "adamw_foreach", "schedule_free_sgd": "momentum", "stable_adamw": "adamw_foreach",
    "lomo": "sgd", "adalomo": "adafactor",
}  # fmt: skip
_LIGER = {
    "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4", "gpt_oss", "llama", "mistral", "mixtral", "phi3",
    "qwen2", "qwen3", "qwen3_moe",
}  # fmt: skip
_ATTENTION: dict[str, Attention] = {"disabled": "eager", "fa2": "flash"}


def workload(job: Job, model: Model) -> Workload:
    """What is trained and how. Settings the formulas do not model take their nearest costlier neighbour."""
    method = job.method if job.method in ("full", "freeze", "lora", "oft") else "lora"
    pairs = job.stage in ("rm", "dpo")
    reference = _compares(job)
    return Workload(
        method=method,  # type: ignore[arg-type]
        precision=_precision(job),
        half="fp16" if job.flag("fp16") else "bf16",
        base_bytes=model.dtype_bytes,
        quant_bits=_bits(job, model),
        double_quant=job.flag("double_quantization"),
        quant_grouped=model.quantized in ("gptq", "awq"),
        upcast_norms=job.flag("upcast_layernorm"),
        adapter=_adapter(job, model),
        trainable_layers=min(abs(int(job.number("freeze_trainable_layers"))), model.arch.layers),
        optimizer=_optimizer(job),
        optimizer_rank=int(job.number("galore_rank" if job.flag("use_galore") else "apollo_rank")),
        layerwise_update=_layerwise(job),
        micro_batch=max(int(job.number("per_device_train_batch_size")), 1),
        sequences_per_sample=2 if pairs else 1,
        length=max(int(job.number("cutoff_len")), 1),
        accumulation=max(int(job.number("gradient_accumulation_steps")), 1),
        checkpointing=_checkpointing(job),
        attention=_ATTENTION.get(str(job.get("flash_attn")), "sdpa"),
        padded=not packs(job) or job.flag("neat_packing"),
        loss="fused" if _fused(job, model) and job.stage in ("pt", "sft") else "upcast",
        fused_kernels=_fused(job, model),
        needs_full_logits=job.stage in ("dpo", "kto", "ppo"),
        value_head=job.stage == "rm",
        reference_copies=_copies(job, reference),
        reference_logits=reference,
        estimates_kl=job.stage == "kto",
        eval_batch=int(job.number("per_device_eval_batch_size")) if evaluates(job) else 0,
        eval_length=max(int(job.number("cutoff_len")), 1),
        loader_workers=int(job.number("dataloader_num_workers")),
        dataset_tokens=(job.samples or 0) * max(int(job.number("cutoff_len")), 1),
        sharding=_sharding(job, model),
    )


def _compares(job: Job) -> bool:
    """Whether a reference's log-probabilities are computed beside the policy's."""
    return job.stage in ("kto", "ppo") or (job.stage == "dpo" and job.get("pref_loss") not in ("orpo", "simpo"))


def _copies(job: Job, reference: bool) -> int:
    """Frozen models beside the trained one: LoRA's reference is the model without its adapter unless another is named,
    PPO's rewards come from one more unless an adapter or a server gives them (train/trainer_utils.py)."""
    rewards = job.stage == "ppo" and job.get("reward_model_type") == "full"
    return int(reference and (job.method != "lora" or job.has("ref_model"))) + int(rewards)


def packs(job: Job) -> bool:
    """Whether every sequence is filled up to the full length; pre-training does so by default."""
    return job.flag("packing") or job.flag("neat_packing") or (job.get("packing") is None and job.stage == "pt")


def evaluates(job: Job) -> bool:
    """Whether the run evaluates while training: asked for, or switched on by an evaluation strategy."""
    return job.flag("do_eval") or job.get("eval_strategy") not in (None, "no", False)


def expandable(job: Job) -> bool:
    """LLaMA-Factory sets expandable_segments under torchrun only, and only CUDA reads it (launcher.py, v0.9.5)."""
    vendor = job.machine.device.vendor if job.machine else None
    return vendor == "nvidia" and (job.world > 1 or job.zero is not None)


def _precision(job: Job) -> Precision:
    if job.flag("pure_bf16") or job.flag("use_badam"):
        return "pure"
    half = job.flag("bf16") or job.flag("fp16")
    if not half:
        return "fp32"
    return "engine" if job.zero else "amp"


def _bits(job: Job, model: Model) -> int:
    """bitsandbytes at load, or the bits of a quantized checkpoint; mxfp4 is expanded to bf16 before training."""
    if model.quantized and model.quantized != "mxfp4":
        return model.quantized_bits or 4
    named = job.get("quantization_method") in ("bnb", "hqq", "eetq")
    return int(job.number("quantization_bit")) if named else 0


def _adapter(job: Job, model: Model) -> Adapter:
    resized = job.flag("resize_vocab") or job.has("add_tokens") or job.has("add_special_tokens")
    saved = job.words("additional_target")
    return Adapter(
        rank=max(int(job.number("lora_rank")), 1),
        targets=targets(job, model),
        dora=job.flag("use_dora"),
        block=max(int(job.number("oft_block_size")), 1),
        dropout=job.number("lora_dropout") > 0,
        full_embedding=resized or any("embed" in name or name == "wte" for name in saved),
        full_head=resized or any("head" in name or name == "output" for name in saved),
    )


def targets(job: Job, model: Model) -> tuple[str, ...]:
    """Roles of the adapted modules. Names the formulas do not know count as all linear modules."""
    names = job.words("oft_target" if job.method == "oft" else "lora_target")
    if "all" in names or not names:
        return linear_roles(model.arch)
    known = tuple(_ROLES[name] for name in names if name in _ROLES)
    if "c_proj" in names:
        known = (*known, "down")
    return known or linear_roles(model.arch)


def _optimizer(job: Job) -> str:
    """What keeps the states: LLaMA-Factory's own optimizers come before the one that `optim` names
    (train/trainer_utils.py); one of the DeepSpeed file, and offload, before both: accelerate 1.11 makes AdamW and all
    else DeepSpeed's CPU Adam, 32-bit Lion its CPU Lion (utils/deepspeed.py)."""
    name = str(job.get("optim"))
    if job.zero and (job.zero.offload("offload_optimizer") or "optimizer" in job.zero.config):
        return "lion" if name.endswith("lion_32bit") else "adamw"
    switches = [("use_adam_mini", "adam_mini"), ("use_muon", "muon")]
    if job.method in ("full", "freeze"):  # LLaMA-Factory refuses the others beside adapters
        switches = [("use_galore", _galore(job, name)), ("use_apollo", "apollo"), ("use_badam", "badam"), *switches]
    for key, found in switches:
        if job.flag(key):
            return found
    return _OPTIMIZERS.get(name, "adamw")


def _galore(job: Job, name: str) -> str:
    """Where not all linear modules are projected, the others' moments are ordinary."""
    targets = set(job.words("galore_target"))
    if not (targets & {"all", "proj"} or targets >= {"mlp", "self_attn"}):
        return "adamw"
    return "galore_8bit" if "8bit" in name else "galore_adafactor" if name == "adafactor" else "galore"


def _layerwise(job: Job) -> bool:
    """Whether each gradient is used and dropped as soon as it is there."""
    lomo = job.get("optim") in ("lomo", "adalomo")
    return lomo or any(job.flag(f"use_{name}") and job.flag(f"{name}_layerwise") for name in ("galore", "apollo"))


def _fused(job: Job, model: Model) -> bool:
    """LLaMA-Factory 0.9.5 warns and goes on without Liger's kernels for other models (model_utils/liger_kernel.py)."""
    return job.flag("enable_liger_kernel") and model.kind in _LIGER


def _checkpointing(job: Job) -> Checkpointing:
    """On by default; off needs disable_gradient_checkpointing, and gradient_checkpointing turns it on again."""
    if job.flag("disable_gradient_checkpointing") and not job.flag("gradient_checkpointing"):
        return "off"
    return "offloaded" if job.flag("use_unsloth_gc") else "layer"


def _sharding(job: Job, model: Model) -> Sharding:
    nodes, devices = (job.machine.nodes, job.machine.devices) if job.machine else (1, 1)
    if job.zero:
        return zero.sharding(job.zero, nodes, devices, model.arch.hidden)
    return _fsdp(job, nodes, devices) if job.fsdp else Sharding(nodes, devices)


def _fsdp(job: Job, nodes: int, devices: int) -> Sharding:
    """FSDP by the recipe's own keys. ACCELERATE_USE_FSDP is set when the trainer is made, after loading, so the whole
    model has gone to every device (patcher.py, device_map; transformers 5.6 integrations/fsdp.py): only `accelerate
    launch` sets it before. Hybrid sharding is that of one node, on each; without auto_wrap the whole model is one
    unit."""
    words = " ".join(job.words("fsdp")).split()
    if "no_shard" in words:
        return Sharding(nodes, devices)
    offload, hybrid = "offload" in words, any(word.startswith("hybrid_shard") for word in words)
    resharded = "auto_wrap" in words and not {"shard_grad_op", "hybrid_shard_zero2"} & set(words)
    return Sharding(1 if hybrid else nodes, devices, stage=3 if resharded else 2, fsdp=True, sharded_load=False,
                    offload_optimizer=offload, offload_parameters=offload, pin_memory=False)  # fmt: skip
