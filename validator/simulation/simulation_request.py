"""The request to simulate a training step of a model with a run's settings on one device. Also says how the request
follows from a resolved recipe, and which recipes cannot be simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import families
from validator.knowledge.architectures import read_architecture
from validator.run import physics_inputs
from validator.run.quantization import Quantization, loaded_bytes, resolve_quantization
from validator.run.settings import RunSettings

# Optimizers whose states are simulated; the states of others follow from the formulas.
SIMULATED_OPTIMIZERS = ("adamw", "adamw_foreach", "adamw_8bit", "adafactor", "sgd")
ADAPTER_METHODS = ("lora", "qlora4", "qlora8", "dora", "oft")
# Stages whose samples are pairs of sequences, and stages that need a reference model.
PAIRED_STAGES, REFERENCE_STAGES = ("rm", "dpo", "orpo", "simpo"), ("dpo", "kto")
_PRECISION_WORDS = {"pure_bf16": " in bf16", "engine": " under DeepSpeed", "fp32": " in fp32"}


@dataclass(frozen=True)
class SimulationRequest:
    """Settings of the step to simulate. `model` holds the keys and values of config.json.

    `precision_mode` is one of four. bf16 is autocast over fp32 trained weights. pure_bf16 and engine keep trained
    weights in bf16; an engine (DeepSpeed) has no autocast, and its fp32 master weights are not created. fp32 has no
    mixed precision.

    `depth` is a number of layers instead of the model's own (0: all layers). `pixels` is the size of the one image in
    each sequence of a vision model. `seconds` is the length of the one sound in each sequence of an omni model (0: no
    sound). If `warm` is true, optimizer states are created before the first step, so that one step shows the steady
    state."""

    model: Mapping[str, Any]
    method: str = "lora"
    lora_rank: int = 8
    lora_targets: str = "all"
    precision_mode: str = "bf16"
    seq_len: int = 1024
    micro_batch: int = 1
    grad_ckpt: bool = True
    attn: str = "sdpa"
    optimizer: str = "adamw"
    grad_accum: int = 1
    freeze_layers: int = 2
    stage: str = "sft"
    padded: bool = False
    liger: bool = False
    additional_target: str = ""
    depth: int = 0
    dora: bool = False
    lora_dropout: float = 0.0
    base_bytes: int = 2
    upcast_layernorm: bool = False
    pixels: int = 768 * 768
    seconds: int = 0
    freeze_vision_tower: bool = True
    freeze_multi_modal_projector: bool = True
    freeze_language_model: bool = False
    steps: int = 2
    warm: bool = False

    @property
    def summary(self) -> str:
        """Short description that tells the simulations of one model apart by method, precision, batch and length, such
        as `lora at 2 x 1024 tokens`."""
        batch = "" if self.micro_batch == 1 else f"{self.micro_batch} x "
        ending = "" if self.grad_ckpt else ", all activations kept"
        return f"{self.method}{_PRECISION_WORDS.get(self.precision_mode, '')} at {batch}{self.seq_len} tokens{ending}"


_PRECISION_MODES = {"amp": "bf16", "pure": "pure_bf16", "engine": "engine", "fp32": "fp32"}
_LOSS_STAGES = {"pt": "sft", "dpo": "dpo", "rm": "rm", "kto": "kto", "sft": "sft"}
# Settings that change the model or the step in ways that the simulator does not follow.
_UNSUPPORTED_KEYS = (
    "use_unsloth",
    "use_kt",
    "mixture_of_depths",
    "shift_attn",
    "use_llama_pro",
    "resize_vocab",
    "add_tokens",
    "add_special_tokens",
    "use_asft_loss",
    "use_galore",
    "use_apollo",
    "use_badam",
    "use_muon",
    "use_adam_mini",
    "ref_model",
    "adapter_name_or_path",
    "freeze_extra_modules",
)


def request_for(
    run: RunSettings, config: Mapping[str, Any], length: int, stored_bytes: float = 2.0
) -> SimulationRequest:
    """Return the request to simulate one step of the run on one device, with its optimizer states already created.
    `config` is the model's config.json. Sequences have `length` tokens, and the checkpoint has `stored_bytes` per
    element. Raises RecipeError with the reason if the simulator does not support the recipe."""
    # The run's own quantization is not known before its model, which may have to be counted by this simulation.
    quantization = resolve_quantization(run.args, run.releases, None)
    liger = run.args.flag("enable_liger_kernel") and str(config.get("model_type")) in families.llamafactory_types(
        "liger"
    )
    for problem in _unsupported(run, config, quantization, liger):
        raise RecipeError(f"is not simulated: {problem}")
    optimizer = physics_inputs.optimizer_states(run, run.deepspeed)
    # States of an engine, or over several devices, follow from the formulas.
    if run.uses_deepspeed or run.batch.world_size > 1 or optimizer not in SIMULATED_OPTIMIZERS:
        optimizer = "sgd"
    quantized = quantization.is_requested and run.task.method == "lora"
    loss = str(run.args.get("pref_loss")) if run.task.stage == "dpo" else ""
    return SimulationRequest(
        model=config,
        method=f"qlora{quantization.bits}" if quantized else run.task.method,
        lora_rank=max(int(run.args.number("lora_rank")), 1),
        lora_targets=",".join(run.args.words("lora_target")) or "all",
        precision_mode=_PRECISION_MODES[run.precision.mode],
        seq_len=length,
        micro_batch=1 if run.task.stage == "kto" else run.batch.micro_batch,
        grad_ckpt=run.activation_checkpointing.mode != "off",
        attn="fa2" if run.uses_flash_attention else physics_inputs.attention(run),
        optimizer=optimizer,
        grad_accum=min(run.batch.accumulation, 2),
        freeze_layers=int(run.args.number("freeze_trainable_layers")),
        stage=loss if loss in ("orpo", "simpo") else _LOSS_STAGES[run.task.stage],
        padded=not run.batch.packing or run.batch.neat_packing,
        liger=liger,
        additional_target=",".join(run.args.words("additional_target")),
        dora=run.args.flag("use_dora"),
        lora_dropout=run.args.number("lora_dropout"),
        upcast_layernorm=run.args.flag("upcast_layernorm"),
        freeze_vision_tower=run.args.flag("freeze_vision_tower"),
        freeze_multi_modal_projector=run.args.flag("freeze_multi_modal_projector"),
        freeze_language_model=run.args.flag("freeze_language_model"),
        base_bytes=int(loaded_bytes(run.precision.compute_dtype, run.releases, stored_bytes)),
        steps=1,
        warm=True,
    )


def _unsupported(run: RunSettings, config: Mapping[str, Any], quantization: Quantization, liger: bool) -> Iterator[str]:
    """Yield the reasons why the simulator does not support the recipe, in words. `config` is the model's config.json.
    `liger` is true if the run uses Liger's kernels."""
    if run.task.stage not in _LOSS_STAGES:
        yield f"the stage `{run.task.stage}`"
    if run.task.method not in ("full", "freeze", "lora", "oft"):
        yield f"`finetuning_type: {run.task.method}`"
    if run.task.stage == "kto" and run.batch.micro_batch > 1:
        yield "KTO with more than one sample in a batch"
    if config.get("quantization_config"):
        yield "a checkpoint that is quantized already"
    if any(part in config for part in families.COMPOSITE_PARTS) and not _has_formula(config):
        yield "pictures and sounds of a type that the formulas do not know"
    if quantization.is_requested and (quantization.method != "bnb" or quantization.bits not in (4, 8)):
        yield f"quantization by {quantization.method} to {quantization.bits} bits"
    yield from (f"`{key}`" for key in _UNSUPPORTED_KEYS if run.args.flag(key))
    if liger and find_spec("liger_kernel") is None:
        yield "`enable_liger_kernel` needs a package that is not installed: pip install liger-kernel"


def _has_formula(config: Mapping[str, Any]) -> bool:
    """True if the formulas know the shapes of the model with this config.json, and predict its memory. The result of a
    simulation is then only shown next to that prediction."""
    try:
        return bool(read_architecture(config))
    except RecipeError:
        return False
