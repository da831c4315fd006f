"""What is simulated: a model and the settings of one run on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

METHODS = ("full", "freeze", "lora", "qlora4", "qlora8", "dora", "oft")
PRECISIONS = ("bf16", "pure_bf16", "engine", "fp32")
ATTENTIONS = ("sdpa", "fa2", "eager")
# Of others the formulas tell the states.
OPTIMIZERS = ("adamw", "adamw_foreach", "adamw_8bit", "adafactor", "sgd")
ADAPTED = ("lora", "qlora4", "qlora8", "dora", "oft")


@dataclass(frozen=True)
class Cell:
    """`model`: config.json's names and values. `precision_mode`: bf16 is autocast over fp32 trained weights, pure_bf16
    and engine keep them in bf16 (an engine has no autocast; its fp32 master weights are not made), fp32 mixes nothing.

    `depth`: so many layers instead of all; 0: all.

    `pixels`: of the one picture in each sequence of a model that sees.

    `seconds`: of the one sound in each sequence of an omni model; 0: no sound.

    `warm`: optimizer states are made before the first step, so that one step is already the steady state."""

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
