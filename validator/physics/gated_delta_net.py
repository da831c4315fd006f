"""Gated delta nets (arXiv 2412.06464), a linear attention: shapes, bytes saved for the backward pass, temporary bytes
in the backward pass, FLOP and kernels, all per micro batch.

Without flash-linear-attention and causal-conv1d, which LLaMA-Factory does not ask for, transformers computes gated
delta nets with torch's own operators, in chunks of 64 tokens and in fp32 (models/qwen3_5/modeling_qwen3_5.py,
torch_chunk_gated_delta_rule). The formulas count what autograd saves there, and are checked against the simulation,
which runs the real model on tensors without values."""

from __future__ import annotations

from dataclasses import dataclass

from validator.physics.architecture import FUSED_MIXER_KERNELS, Linear, Mixer, MixerEvidence, MixerFacts, MixerTraffic
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import EvidenceGap
from validator.physics.saved_inputs import saved_by_dora, saved_input
from validator.physics.training_step import TrainingStep

_CHUNK_TOKENS = 64
# The inverse of a chunk's triangle is made row by row, and each step keeps its row and all above it, in fp32.
_INVERSE_BYTES = 4.0 * sum(row * row + row for row in range(_CHUNK_TOKENS)) / _CHUNK_TOKENS
# Kernels of torch's own operators: for each row of a chunk's triangle, and for each chunk (transformers,
# models/qwen3_5/modeling_qwen3_5.py, torch_chunk_gated_delta_rule).
_KERNELS_PER_ROW, _KERNELS_PER_CHUNK = 6, 12
# What fused kernels move in the backward pass, over the forward: all of it again for what they did not keep, and each
# gradient with what it is made of.
_FUSED_BACKWARD_TRAFFIC = 2.5


@dataclass(frozen=True)
class GatedDeltaNet(Mixer):
    """Shapes of one gated delta net (arXiv 2412.06464), an attention whose time is linear in the sequence length."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int  # tokens that the convolution before it sees
    paired: bool = False  # two linear modules make all inputs, instead of four
    kernels: bool = False  # flash-linear-attention computes it, which keeps little more than inputs and output
    # Three runs of Qwen3.5-9B on B200 took 1.3 to 1.5 times as long as the prediction for fused kernels
    # (benchmarks/evidence/time/times.csv).
    facts = MixerFacts(
        MixerEvidence("linear attention", EvidenceGap("linear attention", 0.1, 0.45)),
        MixerEvidence(
            "linear attention (less is needed with flash-linear-attention)",
            EvidenceGap("linear attention (less time is needed with flash-linear-attention)", 0.8, 0.5),
        ),
        ("flash-linear-attention",),
    )

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def repeated_key_width(self) -> int:
        """Elements per token of the keys after they are repeated, so that each value head has a key head of its own."""
        return self.value_heads * self.key_dim

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        keys, values, heads = self.key_width, self.value_width, self.value_heads
        inputs = {"in_qkv": 2 * keys + values, "in_z": values, "in_b": heads, "in_a": heads}
        if self.paired:
            inputs = {"in_qkvz": 2 * (keys + values), "in_ba": 2 * heads}
        return (*(Linear(role, hidden, width) for role, width in inputs.items()), Linear("out", values, hidden))

    def vectors(self, _hidden: int) -> int:
        """Number of elements of the parameters outside linear modules: the convolution, a decay and a bias for each
        head, and a norm over one head."""
        convolved = 2 * self.key_width + self.value_width
        return self.kernel * convolved + 2 * self.value_heads + self.value_dim

    def saved_bytes(self, step: TrainingStep, layer: DecoderLayer) -> float:
        """Bytes that one layer saves for the backward pass, per micro batch. The norm before the layer is not
        included."""
        readers = layer.by_role("in_qkv", "in_z", "in_b", "in_a", "in_qkvz", "in_ba")
        out, values = layer.by_role("out"), self.value_width
        per_token = saved_input(step, step.arch.hidden, readers) + saved_by_dora(step, (*readers, *out))
        per_token += saved_input(step, values, out, "product")
        if not step.trains_adapter:  # what the norm's weight scales
            per_token += (4.0 if step.work.precision == "amp" else step.sizes.compute) * values
        return step.tokens * (
            per_token + (self._fused_saved_bytes(step) if self.kernels else self._unfused_saved_bytes(step))
        )

    def _unfused_saved_bytes(self, step: TrainingStep) -> float:
        """Bytes per token that torch's own operators save between the linear modules. Under autocast, matmuls keep
        half-precision copies of fp32 factors, so the states are kept twice."""
        is_amp = step.work.precision == "amp"
        values, keys, compute = self.value_width, self.key_width, step.sizes.compute
        squares = _CHUNK_TOKENS * (18.0 if is_amp else 24.0)
        state = (8.0 if is_amp else 4.0) * self.value_heads * self.key_dim * self.value_dim / _CHUNK_TOKENS
        copy = compute * values if self.value_heads == self.key_heads else 0.0
        convolution = 2 * compute * (2 * keys + values)
        core = (22.0 if is_amp else 26.0) * values + 32.0 * self.repeated_key_width
        return convolution + core + copy + self.value_heads * (_INVERSE_BYTES + squares + 44.0) + state

    def _fused_saved_bytes(self, step: TrainingStep) -> float:
        """Bytes per token that fused kernels save between the linear modules: the convolution's input and result, keys
        and queries of every head, a copy of the values, a triangular matrix of each chunk, the output and its gate
        (fla, ops/gated_delta_rule/chunk.py, save_for_backward)."""
        values, keys = self.value_width, self.key_width
        width = 2 * (2 * keys + values) + 2 * self.repeated_key_width + 3 * values + _CHUNK_TOKENS * self.value_heads
        return step.sizes.compute * width

    def backward_workspace(self, step: TrainingStep) -> float:
        """Temporary bytes of one layer's backward pass, per micro batch. torch's own operators hold fp32 gradients of
        queries, keys, values, decayed keys and results of all chunks, and gradients of each chunk's triangular matrix.

        Fused kernels recompute tensors of each chunk: the products of the chunk's inverse with keys and values, the
        values after the state's part is subtracted, and the states. The recomputed tensors and all gradients are held
        in compute precision until the kernels end (fla, chunk_gated_delta_rule_bwd)."""
        if self.kernels:
            states = self.value_heads * self.key_dim * self.value_dim / _CHUNK_TOKENS
            wide = step.sizes.compute * (5 * self.repeated_key_width + 5 * self.value_width + 2 * states)
            return step.tokens * (wide + step.sizes.residual * step.arch.hidden)
        wide = 4.0 * (5 * self.repeated_key_width + 4 * self.value_width)
        return step.tokens * (wide + 8.0 * _CHUNK_TOKENS * self.value_heads + step.sizes.residual * step.arch.hidden)

    def matmul_flops(self, step: TrainingStep) -> float:
        """FLOP of one layer's matmuls outside its linear modules, in the forward pass: products of each chunk's tokens
        with each other and with the state (arXiv 2412.06464)."""
        pairs = _CHUNK_TOKENS * (2 * self.key_dim + 2 * self.value_dim) + 4 * self.key_dim * self.value_dim
        return 2.0 * step.tokens * self.value_heads * pairs

    def matmul_element_size(self, step: TrainingStep) -> float:
        """Bytes per element in the matmuls that `matmul_flops` counts. torch's own operators compute these matmuls in
        fp32."""
        return step.sizes.compute if self.kernels else 4.0

    def traffic(self, step: TrainingStep, layer: DecoderLayer) -> MixerTraffic:
        """Return the memory traffic of one layer. Without fused kernels the traffic follows from the saved bytes.

        Fused kernels read and write these elements per token in the forward pass, where fp32 elements count twice: the
        convolution with the copy for its layout and its activation; heads repeated and scaled to length one; each
        chunk's triangular matrix and its inverse; the products of the inverse with keys and values; the states; the
        results; and the gated norm (transformers, models/qwen3_5/modeling_qwen3_5.py; fla,
        ops/gated_delta_rule/chunk.py)."""
        if not self.kernels:
            return MixerTraffic(self.saved_bytes(step, layer))
        keys, values = self.repeated_key_width, self.value_width
        triangle = _CHUNK_TOKENS * self.value_heads
        states = self.value_heads * self.key_dim * self.value_dim / _CHUNK_TOKENS
        before = 6 * (2 * self.key_width + values) + 2 * self.key_width + 6 * keys
        elements = before + 7 * keys + 9 * values + 7 * triangle + 2 * states
        return MixerTraffic(step.tokens * step.sizes.compute * elements, 1.0, _FUSED_BACKWARD_TRAFFIC)

    def kernel_count(self, step: TrainingStep) -> float:
        """Number of kernels that one layer launches in the forward pass."""
        if self.kernels:
            return FUSED_MIXER_KERNELS
        by_row = FUSED_MIXER_KERNELS + _KERNELS_PER_ROW * _CHUNK_TOKENS
        return by_row + _KERNELS_PER_CHUNK * step.work.length / _CHUNK_TOKENS
