"""The training step that LLaMA-Factory would execute, as a `Workload`: the terms of the memory and time formulas.

Facts about precision, the number formats of trained parameters, batches and stages follow LLaMA-Factory's source
(model/adapter.py, model/loader.py, train/*/workflow.py); each source is named where the fact is used."""

from __future__ import annotations

from collections.abc import Collection

from validator.knowledge.models import Model
from validator.knowledge.optimizers import OWN_OPTIMIZERS, optimizer_choice
from validator.physics import Adapter, Sharding, Workload
from validator.physics.workload import AttentionImplementation, ExpertsForm, Rollout, SdpaInputs
from validator.run import deepspeed, fsdp, model_parts, multimodal
from validator.run.adapted_modules import adapted_modules
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.launch_command import Launch
from validator.run.quantization import loaded_bytes
from validator.run.settings import RunSettings
from validator.run.unfrozen_modules import UnfrozenLayers, saved_modules, unfrozen_layers


def make_workload(
    run: RunSettings,
    model: Model,
    engine: DeepSpeedConfig | None,
    experts: ExpertsForm = "grouped",
) -> Workload:
    """Return the workload of a run for the memory and time formulas. If the formulas do not model a setting, the most
    similar setting that costs more stands for it. `engine`: the DeepSpeed configuration; None without DeepSpeed.
    `experts`: how the release of transformers runs the experts of a layer."""
    weights = run.quantization
    # Without Liger's kernels for a model LLaMA-Factory warns and goes on (model_utils/liger_kernel.py).
    fused = run.args.flag("enable_liger_kernel") and model.family.liger
    rollout = _rollout(run)
    length = run.batch.max_tokens + (rollout.new_tokens if rollout else 0)
    # The data that take the place of those named here may be as many as recommended.
    rows = max(run.data.rows or 0, run.declared.samples or 0)
    unfrozen = _unfrozen_layers(run, model, experts != "separate")
    workload = Workload(
        method=_trained_method(run, model),  # type: ignore[arg-type]
        precision=run.precision.mode,
        base_bytes=loaded_bytes(run.precision.compute_dtype, run.releases, model.dtype_bytes),
        quant_bits=weights.weights,
        dequantized_at_load=weights.dequantized_at_load,
        double_quant=run.args.flag("double_quantization"),
        quant_grouped=weights.kept_method in ("gptq", "awq"),
        experts=experts,
        experts_merged=experts == "grouped" and model.family.merges,
        upcast_norms=run.args.flag("upcast_layernorm"),
        adapter=_make_adapter(run, model, experts != "separate"),
        input_requires_grad=_asks_input_gradients(run),
        trainable_layers=unfrozen.layers,
        trains_first_layers=unfrozen.first,
        passed_layers=unfrozen.passed,
        trainable_roles=unfrozen.roles,
        optimizer=optimizer_states(run, engine),
        optimizer_rank=int(run.args.number("galore_rank" if run.args.flag("use_galore") else "apollo_rank")),
        layerwise_update=_updates_by_layer(run),
        micro_batch=run.batch.micro_batch,
        sequences_per_sample=2 if run.task.uses_preference_pairs else 1,
        length=length,
        accumulation=run.batch.accumulation,
        checkpointing=run.activation_checkpointing.mode,
        reentrant=run.activation_checkpointing.reentrant,
        attention=attention(run),
        pads_batches=not run.batch.packing or run.batch.neat_packing,
        loss="fused" if fused and run.task.stage in ("pt", "sft") else "upcast",
        compiled=_is_compiled(run),
        fused_kernels=fused,
        needs_full_logits=run.task.stage in ("dpo", "kto", "ppo") or run.task.uses_asft_loss,
        value_head=run.task.stage == "rm",
        reference_copies=run.task.frozen_model_copies,
        reference_logits=run.task.needs_reference_logprobs and rollout is None,
        estimates_kl=run.task.stage == "kto",
        rollout=rollout,
        eval_batch=int(run.args.number("per_device_eval_batch_size")) if run.evaluation.runs else 0,
        eval_length=length,
        loader_workers=run.batch.dataloader_workers,
        dataset_tokens=rows * min(length, run.declared.lengths.typical or length),
        towers=multimodal.tower_encodings(run, model, run.data.datasets) if model.modules else (),
        sharding=_make_sharding(run, model, engine),
    )
    old = run.releases.older_effects
    return with_older_effects(workload, old, run.task.stage) if old else workload


def attention(run: RunSettings) -> AttentionImplementation:
    """Return how the run computes attention."""
    eager = run.args.get("flash_attn") == "disabled"
    return "flash" if run.uses_flash_attention else "eager" if eager else "sdpa"


def _rollout(run: RunSettings) -> Rollout | None:
    """Return what a PPO run generates before it trains; None in other stages. `max_new_tokens` wins over `max_length`,
    which counts the prompt, too (hparams/generating_args.py, to_dict)."""
    if run.task.stage != "ppo":
        return None
    new_tokens = int(run.args.number("max_new_tokens"))
    if new_tokens <= 0:
        new_tokens = int(run.args.number("max_length")) - run.batch.max_tokens
    epochs = int(run.args.number("ppo_epochs"))
    return Rollout(max(new_tokens, 1), run.batch.ppo_buffer, max(epochs, 1))


def _is_compiled(run: RunSettings) -> bool:
    """True if torch compiles the model. Each of three keys turns that on (transformers, training_args.py)."""
    return run.args.flag("torch_compile") or any(
        run.args.is_set(f"torch_compile_{each}") for each in ("backend", "mode")
    )


def _trained_method(run: RunSettings, model: Model) -> str:
    """Return the method by which the formulas count what trains. Full tuning that leaves the decoder frozen counts as
    freeze tuning of no layer."""
    if run.task.method == "full" and not model_parts.is_decoder_trained(run, model):
        return "freeze"
    return run.task.method if run.task.method in ("full", "freeze", "lora", "oft") else "lora"


def _unfrozen_layers(run: RunSettings, model: Model, fused: bool) -> UnfrozenLayers:
    """Return the layers that freeze tuning trains; none with another method, or if the decoder is frozen. `fused`: all
    experts of a layer are one tensor."""
    is_freezing = run.task.method == "freeze" and model_parts.is_decoder_trained(run, model)
    return unfrozen_layers(run, model, fused) if is_freezing else UnfrozenLayers(0)


def with_older_effects(work: Workload, old: Collection[str], stage: str) -> Workload:
    """Return the workload with the extra tensors that older package releases allocate. `old`: names of these tensors'
    causes, such as "shifted" for a copy of the logits. That copy is made only in batches of several sequences, because
    the logits of a single sequence are shifted without a copy."""
    several = work.micro_batch * work.sequences_per_sample > 1
    return work._replace(
        sdpa_inputs=SdpaInputs("repeated" in old, "copied" in old, "added" in old),
        loss="shifted" if "shifted" in old and several and work.loss == "upcast" else work.loss,
        logits_upcast="raised" in old,
        adds_supervised_loss=stage == "dpo" and "supervised" in old,
    )


def uses_expandable_segments(run: RunSettings) -> bool:
    """True if torch's CUDA allocator uses expandable segments. LLaMA-Factory sets this option if it starts torchrun,
    and only CUDA reads the option (launcher.py)."""
    vendor = run.machine.device.vendor if run.machine else None
    return vendor == "nvidia" and Launch(run).launcher == "torchrun"


def _make_adapter(run: RunSettings, model: Model, fused: bool) -> Adapter:
    """Return the adapter of LoRA or OFT. With the method freeze only its fields that say what else trains count.
    `fused`: True if all experts of a layer are one tensor."""
    if run.task.method == "freeze":
        extra = run.args.words("freeze_extra_modules")
        return Adapter(full_embedding=model.family.embedding in extra, full_head=model.family.head in extra)
    resized = run.args.flag("resize_vocab") or run.args.is_set("add_tokens") or run.args.is_set("add_special_tokens")
    saved = saved_modules(run, model, fused)
    adapted = adapted_modules(run, model, fused)
    return Adapter(
        rank=max(int(run.args.number("lora_rank")), 1),
        targets=adapted.roles,
        layers=adapted.layers,
        experts=adapted.experts,
        dora=run.args.flag("use_dora"),
        block_size=max(int(run.args.number("oft_block_size")), 1),
        dropout=run.args.number("lora_dropout") > 0,
        full_embedding=resized or saved.embedding,
        full_head=resized or saved.head,
        full_elements=saved.elements,
    )


def _asks_input_gradients(run: RunSettings) -> bool:
    """True if gradients run through all layers of a run with adapters, whichever layers have one. If layers are
    checkpointed and nothing is quantized, peft asks for gradients of the embedding's output (peft_model.py,
    prepare_model_for_gradient_checkpointing)."""
    return run.quantization.weights == 0 and run.activation_checkpointing.llamafactory_mode != "off"


def optimizer_states(run: RunSettings, engine: DeepSpeedConfig | None) -> str:
    """Return the name of the optimizer whose states the memory formulas count. If DeepSpeed's configuration names an
    optimizer or offloads the states, accelerate replaces 32-bit Lion by DeepSpeed's CPU Lion, and AdamW and every other
    optimizer by its CPU Adam (utils/deepspeed.py). Otherwise LLaMA-Factory's own optimizers come first, then `optim`
    (train/trainer_utils.py)."""
    name = str(run.args.get("optim"))
    chosen = optimizer_choice(name)
    if engine and (engine.steps_on_cpu or "optimizer" in engine.config):
        return "lion" if chosen.cpu_operator == "cpu_lion" else "adamw"
    own_optimizers = [OWN_OPTIMIZERS[key] for key in run.requested_optimizers]
    states = next((each.states for each in own_optimizers if not (run.task.uses_adapter and each.whole_weights)), "")
    return _galore_states(run, name) if states == "galore" else states or chosen.states


def _galore_states(run: RunSettings, name: str) -> str:
    """Return the optimizer states of GaLore's variant for the optimizer `name`. AdamW's states unless GaLore projects
    all linear modules, because the modules that are not projected keep ordinary moments."""
    targets = set(run.args.words("galore_target"))
    if not (targets & {"all", "proj"} or targets >= {"mlp", "self_attn"}):
        return "adamw"
    return "galore_8bit" if "8bit" in name else "galore_adafactor" if name == "adafactor" else "galore"


def _updates_by_layer(run: RunSettings) -> bool:
    """True if each weight is updated, and its gradient freed, as soon as the gradient is computed."""
    layerwise_switches = ((key, each.layerwise_key) for key, each in OWN_OPTIMIZERS.items() if each.layerwise_key)
    return optimizer_choice(run.args.get("optim")).updates_by_layer or any(
        run.args.flag(key) and run.args.flag(layerwise) for key, layerwise in layerwise_switches
    )


def _make_sharding(run: RunSettings, model: Model, engine: DeepSpeedConfig | None) -> Sharding:
    nodes, devices = (run.machine.nodes, run.machine.devices) if run.machine else (1, 1)
    if engine:
        strategy = deepspeed.sharding_strategy(engine, run.precision.compute_dtype, run.releases)
        return deepspeed.deepspeed_sharding(engine, nodes, devices, model.arch.hidden, strategy)
    if run.fsdp:
        copies = fsdp.host_copies(run.fsdp, devices, run.quantization.is_requested, run.releases)
        return fsdp.fsdp_sharding(run.fsdp, nodes, devices, copies)
    return Sharding(nodes, devices)
