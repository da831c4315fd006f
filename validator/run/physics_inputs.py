"""Settings -> Workload: what LLaMA-Factory would really execute, in the terms of the memory and time formulas.

Facts about precision, which parameters are trained in what type, batches and stages follow LLaMA-Factory's source
(model/adapter.py, model/loader.py, train/*/workflow.py); each is named where it is used."""

from __future__ import annotations

from collections.abc import Collection

from validator.knowledge.models import Model
from validator.knowledge.releases import older_effects
from validator.physics import Adapter, Sharding, TowerWorkload, Workload, linear_roles
from validator.physics.workload import AttentionImplementation, SdpaInputs
from validator.run import deepspeed
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.hyperparameters import Settings
from validator.run.quantization import loaded_bytes, resolve_quantization

# Names of transformers (trainer_optimizer.py); those that are not here are counted as AdamW. PyTorch's own steps go
# over all tensors at once; apex and anyprecision keep fp32 moments, as bitsandbytes' 32-bit ones are.
_OPTIMIZER_STATES = {
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
_ATTENTION_KERNEL: dict[str, AttentionImplementation] = {"disabled": "eager", "fa2": "flash"}


# LLaMA-Factory's own optimizers, and the states of each; GaLore's are told by its targets, LoRA+ takes that of `optim`.
_OWN_OPTIMIZER_STATES = {"use_apollo": "apollo", "use_badam": "badam", "use_adam_mini": "adam_mini", "use_muon": "muon"}
# Those of whole weights, which do nothing for adapters.
_WHOLE_WEIGHT_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam")


def make_workload(
    settings: Settings,
    model: Model,
    engine: DeepSpeedConfig | None,
    encodings: tuple[TowerWorkload, ...] = (),
    rows: int | None = None,
    experts_fused: bool = True,
    decoder: bool = True,
) -> Workload:
    """What is trained and how. Settings the formulas do not model take their nearest costlier neighbour. `engine` is
    the DeepSpeed configuration, where there is one; `encodings` what is asked of the model's towers; `rows` those of
    the data sets. `experts_fused`: the release of transformers keeps all experts of a layer as one tensor. `decoder`:
    something of it trains."""
    method = settings.method if settings.method in ("full", "freeze", "lora", "oft") else "lora"
    if method == "full" and not decoder:
        method = "freeze"  # of no layer
    weights, fused = resolve_quantization(settings, model), _uses_liger(settings, model)
    length = settings.longest
    made = Workload(
        method=method,  # type: ignore[arg-type]
        precision=settings.precision,
        half=settings.half or "bf16",
        base_bytes=loaded_bytes(settings, model.dtype_bytes),
        quant_bits=weights.weights,
        unpacked=weights.unpacked,
        double_quant=settings.flag("double_quantization"),
        quant_grouped=weights.kept in ("gptq", "awq"),
        experts_fused=experts_fused,
        experts_merged=experts_fused and model.family.merges,
        upcast_norms=settings.flag("upcast_layernorm"),
        adapter=_make_adapter(settings, model, decoder, experts_fused),
        trainable_layers=min(abs(int(settings.number("freeze_trainable_layers"))), model.arch.layers) * decoder,
        optimizer=optimizer_states(settings, engine),
        optimizer_rank=int(settings.number("galore_rank" if settings.flag("use_galore") else "apollo_rank")),
        layerwise_update=_updates_by_layer(settings),
        micro_batch=settings.micro_batch,
        sequences_per_sample=2 if settings.pairs else 1,
        length=length,
        accumulation=settings.accumulation,
        checkpointing=settings.checkpointing,
        reentrant=settings.reentrant,
        attention=_ATTENTION_KERNEL.get(str(settings.get("flash_attn")), "sdpa"),
        padded=not settings.packs or settings.neat,
        loss="fused" if fused and settings.stage in ("pt", "sft") else "upcast",
        fused_kernels=fused,
        needs_full_logits=settings.stage in ("dpo", "kto", "ppo") or settings.anchors,
        value_head=settings.stage == "rm",
        reference_copies=settings.copies,
        reference_logits=settings.compares,
        estimates_kl=settings.stage == "kto",
        eval_batch=int(settings.number("per_device_eval_batch_size")) if settings.evaluates else 0,
        eval_length=length,
        loader_workers=settings.loaders,
        dataset_tokens=(rows or 0) * min(length, settings.lengths.typical or length),
        towers=encodings,
        sharding=_make_sharding(settings, model, engine),
    )
    old = older_effects(settings.header)
    return with_older_effects(made, old, settings.stage) if old else made


def with_older_effects(work: Workload, old: Collection[str], stage: str) -> Workload:
    """The same run with what older releases do otherwise. Logits of one sequence are shifted without a copy."""
    several = work.micro_batch * work.sequences_per_sample > 1
    return work._replace(
        sdpa_inputs=SdpaInputs("repeated" in old, "copied" in old, "added" in old),
        loss="shifted" if "shifted" in old and several and work.loss == "upcast" else work.loss,
        logits_upcast="raised" in old,
        adds_supervised_loss=stage == "dpo" and "supervised" in old,
    )


def uses_expandable_segments(settings: Settings) -> bool:
    """LLaMA-Factory's launcher sets expandable_segments under torchrun, not under `accelerate launch`, and only CUDA
    reads it (launcher.py)."""
    vendor = settings.machine.device.vendor if settings.machine else None
    return vendor == "nvidia" and (settings.world > 1 or settings.engine) and not settings.accelerate


def _make_adapter(settings: Settings, model: Model, decoder: bool, fused: bool) -> Adapter:
    """`decoder`: the language part is adapted, too."""
    resized = settings.flag("resize_vocab") or settings.has("add_tokens") or settings.has("add_special_tokens")
    saved = settings.words("additional_target")
    return Adapter(
        rank=max(int(settings.number("lora_rank")), 1),
        targets=adapted_roles(settings, model, fused) if decoder else (),
        dora=settings.flag("use_dora"),
        block_size=max(int(settings.number("oft_block_size")), 1),
        dropout=settings.number("lora_dropout") > 0,
        full_embedding=resized or any("embed" in name or name == "wte" for name in saved),
        full_head=resized or any("head" in name or name == "output" for name in saved),
    )


def adapted_roles(settings: Settings, model: Model, fused: bool = True) -> tuple[str, ...]:
    """Roles of the adapted modules, of LoRA and OFT alike by `lora_target`, of which `all` means all linear modules
    where it stands alone (model/adapter.py). Names the formulas do not know count as all."""
    names = () if settings.targets_all else settings.words("lora_target")
    known = tuple(role for name in names for role in model.family.roles.get(name, ()))
    return known or linear_roles(model.arch, fused)


def optimizer_states(settings: Settings, engine: DeepSpeedConfig | None) -> str:
    """What keeps the states: LLaMA-Factory's own optimizers come before the one that `optim` names
    (train/trainer_utils.py); one of the DeepSpeed file, and offload, before both: accelerate makes AdamW and all
    else DeepSpeed's CPU Adam, 32-bit Lion its CPU Lion (utils/deepspeed.py)."""
    name = str(settings.get("optim"))
    if engine and (engine.steps_on_cpu or "optimizer" in engine.config):
        return "lion" if name.endswith("lion_32bit") else "adamw"
    own = next((key for key in settings.optimizers if not (settings.adapts and key in _WHOLE_WEIGHT_OPTIMIZERS)), None)
    if own == "use_galore":
        return _galore_states(settings, name)
    return _OWN_OPTIMIZER_STATES.get(str(own)) or _OPTIMIZER_STATES.get(name, "adamw")


def _galore_states(settings: Settings, name: str) -> str:
    """Where not all linear modules are projected, the others' moments are ordinary."""
    targets = set(settings.words("galore_target"))
    if not (targets & {"all", "proj"} or targets >= {"mlp", "self_attn"}):
        return "adamw"
    return "galore_8bit" if "8bit" in name else "galore_adafactor" if name == "adafactor" else "galore"


def _updates_by_layer(settings: Settings) -> bool:
    """Whether each gradient is used and dropped as soon as it is there."""
    lomo = settings.get("optim") in ("lomo", "adalomo")
    return lomo or any(
        settings.flag(f"use_{name}") and settings.flag(f"{name}_layerwise") for name in ("galore", "apollo")
    )


def _uses_liger(settings: Settings, model: Model) -> bool:
    """LLaMA-Factory warns and goes on without Liger's kernels for other models (model_utils/liger_kernel.py)."""
    return settings.flag("enable_liger_kernel") and model.family.liger


def _make_sharding(settings: Settings, model: Model, engine: DeepSpeedConfig | None) -> Sharding:
    nodes, devices = (settings.machine.nodes, settings.machine.devices) if settings.machine else (1, 1)
    if engine:
        return deepspeed.deepspeed_sharding(engine, nodes, devices, model.arch.hidden)
    if settings.fsdp:
        from . import fsdp  # which few recipes ask for

        copies = fsdp.host_copies(settings.fsdp, devices, resolve_quantization(settings, model).asked, settings.header)
        return fsdp.fsdp_sharding(settings.fsdp, nodes, devices, copies)
    return Sharding(nodes, devices)
