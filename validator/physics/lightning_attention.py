"""Lightning attention (arXiv 2401.04658): shapes, bytes saved for the backward pass, temporary bytes in the backward
pass, FLOP and kernels, all per micro batch.

The formulas count what autograd saves in transformers, models/minimax/modeling_minimax.py, MiniMaxLightningAttention,
which uses no fused kernels. They are checked against the simulation, which runs the real model on tensors without
values."""

from __future__ import annotations

from dataclasses import dataclass

from validator.physics.architecture import FUSED_MIXER_KERNELS, Linear, Mixer, MixerEvidence, MixerFacts
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.saved_inputs import saved_by_dora, saved_by_norm, saved_input
from validator.physics.training_step import TrainingStep

# Kernels that the loop over chunks launches for each: counted as those of a gated delta net.
_KERNELS_PER_CHUNK = 12


@dataclass(frozen=True)
class LightningAttention(Mixer):
    """Shapes of one layer of lightning attention (arXiv 2401.04658), whose time is linear in the sequence length."""

    heads: int
    head_dim: int
    chunk: int  # tokens that see each other directly
    facts = MixerFacts(MixerEvidence("lightning attention"))

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        inputs = Linear("in", hidden, 3 * self.width), Linear("in_gate", hidden, self.width)
        return *inputs, Linear("out", self.width, hidden)

    def vectors(self, _hidden: int) -> int:
        """Number of elements of the norm over the attention result."""
        return self.width

    @property
    def buffer_elements(self) -> int:
        """Elements of the buffers (tensors that are not parameters) of one layer, which every device holds. Each head
        has a slope, a decay for each pair of tokens in a chunk, and for each token of a chunk one decay of its query
        and one of its key."""
        return self.heads * (self.chunk * (self.chunk + 2) + 1)

    def saved_bytes(self, step: TrainingStep, layer: DecoderLayer) -> float:
        """Bytes that one layer saves for the backward pass, per micro batch. The norm before the layer is not
        included."""
        readers, out = layer.by_role("in", "in_gate"), layer.by_role("out")
        per_token = saved_input(step, step.arch.hidden, readers) + saved_by_dora(step, (*readers, *out))
        per_token += saved_input(step, self.width, out, "product")
        per_token += saved_by_norm(step, self.width, step.sizes.compute)
        return step.tokens * (per_token + self._core_saved_bytes(step))

    def _core_saved_bytes(self, step: TrainingStep) -> float:
        """Bytes per token saved between the linear modules: queries, keys and values before and after their activation;
        the values with padding masked out; the gate and the tensor that it scales; the scores of each chunk and head
        (tokens x tokens) and its state; decayed queries of all chunks but the first, and decayed keys of all chunks but
        the last."""
        chunk = min(self.chunk, step.work.length)
        decay = 2 * self.width * (1 - 1 / -(-step.work.length // chunk))
        squares, states = chunk * self.heads, self.width * self.head_dim / chunk
        return step.sizes.compute * (9 * self.width + decay + squares + states)

    def backward_workspace(self, step: TrainingStep) -> float:
        """Temporary bytes of one layer's backward pass, per micro batch: gradients of queries, keys and values, of the
        result and its gate, and of a chunk's scores."""
        gradients = step.sizes.compute * 6 * self.width
        return step.tokens * (gradients + step.sizes.residual * step.arch.hidden)

    def matmul_flops(self, step: TrainingStep) -> float:
        """FLOP of one layer's matmuls outside its linear modules, in the forward pass: products of each chunk's tokens
        with each other and with the state (arXiv 2401.04658)."""
        pairs = 2 * self.head_dim * (self.chunk + self.head_dim)
        return 2.0 * step.tokens * self.heads * pairs

    def kernel_count(self, step: TrainingStep) -> float:
        """Number of kernels that one layer launches in the forward pass."""
        return FUSED_MIXER_KERNELS + _KERNELS_PER_CHUNK * step.work.length / self.chunk
