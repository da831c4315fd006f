"""LFM2's gated short convolution: shapes, bytes saved for the backward pass, temporary bytes in the backward pass and
kernels, all per micro batch.

The formulas count what autograd saves in transformers, models/lfm2/modeling_lfm2.py, Lfm2ShortConv, whether or not
causal-conv1d computes it. They are checked against the simulation, which runs the real model on tensors without
values."""

from __future__ import annotations

from dataclasses import dataclass

from validator.physics.architecture import Linear, Mixer, MixerEvidence, MixerFacts
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.saved_inputs import saved_by_dora, saved_input
from validator.physics.training_step import TrainingStep


@dataclass(frozen=True)
class ShortConvolution(Mixer):
    """A gated convolution over each channel of the hidden state."""

    kernel: int  # tokens that it sees
    bias: bool = False
    facts = MixerFacts(MixerEvidence("short convolutions"))

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        return Linear("in", hidden, 3 * hidden, bias=self.bias), Linear("out", hidden, hidden, bias=self.bias)

    def vectors(self, hidden: int) -> int:
        """Number of elements of the convolution's weight and bias."""
        return (self.kernel + int(self.bias)) * hidden

    def saved_bytes(self, step: TrainingStep, layer: DecoderLayer) -> float:
        """Bytes that one layer saves for the backward pass, per micro batch: the three parts of the projected input,
        the first product, and the convolution's result. The norm before the layer is not included."""
        hidden, readers, out = step.arch.hidden, layer.by_role("in"), layer.by_role("out")
        per_token = saved_input(step, hidden, readers) + saved_by_dora(step, (*readers, *out))
        per_token += saved_input(step, hidden, out, "product")
        return step.tokens * (per_token + 5 * step.sizes.compute * hidden)

    def backward_workspace(self, step: TrainingStep) -> float:
        """Temporary bytes of one layer's backward pass, per micro batch: gradients of the result, of both products, and
        of their factors."""
        return step.tokens * step.arch.hidden * (6 * step.sizes.compute + step.sizes.residual)
