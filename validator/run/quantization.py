"""Quantized base weights: quantized in the checkpoint itself, or while loading (model/model_utils/quantization.py).
Also the bytes per weight after loading."""

from __future__ import annotations

from typing import NamedTuple

from validator.knowledge.models import Model
from validator.knowledge.releases import ReleaseRange
from validator.run.recipe_arguments import Arguments

# Methods that quantize while loading, and the bits they take
ON_LOAD_BITS = {"bnb": (4, 8), "hqq": (1, 2, 3, 4, 5, 6, 8), "eetq": (8,)}
# Quantized checkpoints that are loaded in 16 bits
_DEQUANTIZED = ("mxfp4", "fp8")


class Quantization(NamedTuple):
    """Quantization of a run's base weights. `is_requested`: the recipe sets `quantization_bit`; `bits` and `method` are
    its values. `checkpoint`: the method by which the checkpoint itself is quantized, with `checkpoint_bits` bits; None
    if the checkpoint is not quantized. A quantized checkpoint keeps its method, whatever the recipe asks for.
    `skipped_by_bnb`: bitsandbytes does not replace the model's linear layers, because they are of a class of their
    own."""

    is_requested: bool
    method: str
    bits: int
    checkpoint: str | None = None
    checkpoint_bits: int = 0
    skipped_by_bnb: bool = False

    @property
    def is_quantized(self) -> bool:
        """True if the checkpoint is quantized, or the recipe asks for quantization."""
        return self.is_requested or self.checkpoint is not None

    @property
    def quantizes_at_load(self) -> bool:
        """True if the recipe asks for quantization while loading and the checkpoint is not quantized already."""
        return self.is_requested and not self.checkpoint

    @property
    def works(self) -> bool:
        """True if the weights are quantized while loading. False if the recipe's method is only for quantized
        checkpoints, such as gptq."""
        return self.quantizes_at_load and self.method in ON_LOAD_BITS

    @property
    def dequantized_at_load(self) -> bool:
        """True if the checkpoint is quantized and loading converts its weights to 16 bits (mxfp4, fp8)."""
        return self.checkpoint in _DEQUANTIZED

    @property
    def kept_method(self) -> str | None:
        """The checkpoint's quantization method if its weights stay quantized in the run; else None."""
        return None if self.dequantized_at_load else self.checkpoint

    @property
    def bnb_bits(self) -> int:
        """Bits of the weights that bitsandbytes quantizes while loading, or has quantized in the checkpoint; 0 if it
        does neither."""
        if self.checkpoint:
            return (self.checkpoint_bits or 4) if self.checkpoint == "bitsandbytes" else 0
        return self.bits if self.is_requested and self.method == "bnb" else 0

    @property
    def weights(self) -> int:
        """Bits per weight of the frozen linear layers during the run; 0 if these layers are not quantized."""
        return (
            (self.checkpoint_bits or 4)
            if self.kept_method
            else max(self.bits, 0)
            if self.works and not self.skipped_by_bnb
            else 0
        )


def resolve_quantization(args: Arguments, releases: ReleaseRange, model: Model | None) -> Quantization:
    """Return how the base weights are quantized, by the recipe's keys and by the model's checkpoint."""
    return Quantization(
        args.is_set("quantization_bit"),
        method := str(args.get("quantization_method")),
        int(args.number("quantization_bit")),
        model.quantized if model else None,
        model.quantized_bits if model else 0,
        skipped_by_bnb=method == "bnb" and model is not None and _is_skipped_by_bnb(model, releases),
    )


def _is_skipped_by_bnb(model: Model, releases: ReleaseRange) -> bool:
    """True if bitsandbytes does not replace the model's linear layers. Since transformers 5.6 it replaces modules of
    the class nn.Linear only, and no subclass (integrations/bitsandbytes.py, replace_with_bnb_linear)."""
    return model.family.own_linear_class and releases.requires("transformers 5.6.0")


def loaded_bytes(compute_dtype: str | None, releases: ReleaseRange, stored: float) -> float:
    """Return the bytes per element of the weights after loading. `stored`: bytes per element in the checkpoint, whose
    format the weights keep. LLaMA-Factory before 0.9.4 loads weights in the 16-bit compute dtype instead
    (model/loader.py; before, model/patcher.py)."""
    halved = compute_dtype and not releases.requires("llamafactory 0.9.4")
    return min(stored, 2.0) if halved else stored
