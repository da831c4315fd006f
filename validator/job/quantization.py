"""Quantized base weights: of the checkpoint itself, or while loading (model/model_utils/quantization.py)."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.job.settings import Settings
from validator.tables import releases
from validator.tables.models import Model

# Methods that quantize while loading, and the bits they take
TAKEN = {"bnb": (4, 8), "hqq": (1, 2, 3, 4, 5, 6, 8), "eetq": (8,)}
# Quantized checkpoints that are loaded in 16 bits
_DEQUANTIZED = ("mxfp4", "fp8")


class Quantization(NamedTuple):
    """`asked`: the recipe sets `quantization_bit`, here `bits`, with `method`. `checkpoint` is how the checkpoint
    itself is quantized, to `checkpoint_bits`; it then stays so, whatever is asked. `spared`: the model's linear layers
    are of a class of their own, which bitsandbytes does not replace."""

    asked: bool
    method: str
    bits: int
    checkpoint: str | None = None
    checkpoint_bits: int = 0
    spared: bool = False

    @property
    def loads(self) -> bool:
        """Whether the recipe asks for quantizing while loading, and nothing stands against it."""
        return self.asked and not self.checkpoint

    @property
    def works(self) -> bool:
        """Whether weights are really quantized while loading: the other methods are for checkpoints."""
        return self.loads and self.method in TAKEN

    @property
    def unpacked(self) -> bool:
        """Whether the checkpoint is quantized, and its weights are made 16 bits wide while it loads."""
        return self.checkpoint in _DEQUANTIZED

    @property
    def kept(self) -> str | None:
        """How the weights of the checkpoint stay quantized in the run."""
        return None if self.unpacked else self.checkpoint

    @property
    def weights(self) -> int:
        """Bits of the frozen linear layers in the run; 0 where they are not quantized."""
        return (self.checkpoint_bits or 4) if self.kept else max(self.bits, 0) if self.works and not self.spared else 0


def quantization(settings: Settings, model: Model | None) -> Quantization:
    """What a recipe and its model say of quantized weights."""
    return Quantization(
        settings.has("quantization_bit"),
        method := str(settings.get("quantization_method")),
        int(settings.number("quantization_bit")),
        model.quantized if model else None,
        model.quantized_bits if model else 0,
        spared=method == "bnb" and model is not None and _spared(model, settings.header),
    )


def _spared(model: Model, header: Mapping[str, Any]) -> bool:
    """Since transformers 5.6 only plain linear modules are replaced, and no subclass of them
    (integrations/bitsandbytes.py, replace_with_bnb_linear)."""
    return model.family.own_linear and releases.holds(header, "transformers 5.6.0")
