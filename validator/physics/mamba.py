"""Mamba (arXiv 2312.00752) and Mamba-2 (arXiv 2405.21060) layers: shapes, bytes saved for the backward pass, temporary
bytes in the backward pass, FLOP and kernels, all per micro batch.

Without mamba-ssm and causal-conv1d, which LLaMA-Factory does not ask for, transformers computes Mamba and Mamba-2 with
torch's own operators. Mamba-2 runs in chunks of tokens and in fp32
(models/granitemoehybrid/modeling_granitemoehybrid.py, torch_forward). Mamba runs token by token and keeps the state of
every channel at every token (models/jamba/modeling_jamba.py, slow_forward). The formulas count what autograd saves
there, and are checked against the simulation, which runs the real model on tensors without values."""

from __future__ import annotations

from dataclasses import dataclass

from validator.physics.architecture import Linear, Mixer, MixerEvidence, MixerFacts
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.saved_inputs import saved_by_dora, saved_by_norm, saved_input
from validator.physics.training_step import TrainingStep

_FP32 = 4.0  # bytes per element
_FACTS = MixerFacts(
    MixerEvidence("state spaces"),
    MixerEvidence("state spaces (far less is needed with mamba-ssm and causal-conv1d)"),
    ("mamba-ssm", "causal-conv1d"),
)


@dataclass(frozen=True)
class Mamba2(Mixer):
    """Shapes of one Mamba-2 layer (arXiv 2405.21060)."""

    heads: int
    head_dim: int
    state: int  # of each channel
    groups: int  # of heads that share what goes into the state and out of it
    kernel: int  # tokens that the convolution before it sees
    chunk: int  # tokens that see each other directly
    bias: bool = False  # of its linear modules
    convolution_bias: bool = True
    normed: bool = True  # the gated result goes through a norm
    kernels: bool = False  # mamba-ssm computes it, which keeps little more than inputs and output
    facts = _FACTS

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Number of channels that the convolution reads."""
        return self.width + 2 * self.groups * self.state

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        inputs = Linear("in", hidden, self.width + self.convolved + self.heads, bias=self.bias)
        return inputs, Linear("out", self.width, hidden, bias=self.bias)

    def vectors(self, _hidden: int) -> int:
        """Number of elements of the parameters outside linear modules: the convolution, three numbers for each head,
        and a norm."""
        norm = self.width if self.normed else 0
        return (self.kernel + int(self.convolution_bias)) * self.convolved + 3 * self.heads + norm

    def _chunk_count(self, step: TrainingStep) -> int:
        return -(-step.work.length // self.chunk)

    def _padding_factor(self, step: TrainingStep) -> float:
        """Number of tokens in all chunks, divided by the number of real tokens. The factor exceeds 1 if the last chunk
        is partly empty."""
        return self._chunk_count(step) * self.chunk / step.work.length

    def saved_bytes(self, step: TrainingStep, layer: DecoderLayer) -> float:
        """Bytes that one layer saves for the backward pass, per micro batch. The norm before the layer is not
        included."""
        readers, out = layer.by_role("in"), layer.by_role("out")
        per_token = saved_input(step, step.arch.hidden, readers) + saved_by_dora(step, (*readers, *out))
        per_token += saved_input(step, self.width, out, "product")
        return step.tokens * (
            per_token + (self._fused_saved_bytes(step) if self.kernels else self._unfused_saved_bytes(step))
        )

    def _unfused_saved_bytes(self, step: TrainingStep) -> float:
        """Bytes per token that torch's own operators save between the linear modules: B and C (what enters and leaves
        the state) for each head, three matrices of tokens x tokens for each chunk and head, the values in five steps,
        and the states before and after each chunk, one of which is empty."""
        expansion = self.heads * self.state
        squares = self.chunk * self.heads
        states = 2 * expansion * self.head_dim / self.chunk * (1 + 1 / self._chunk_count(step))
        values = 3 * self.width + (0 if step.trains_adapter else self.width)
        rest = step.sizes.compute * (self.width + 2 * self.convolved) + 18.0 * self.heads
        return (
            rest
            + self._gated_norm_saved_bytes(step)
            + self._padding_factor(step) * _FP32 * (3 * expansion + 3 * squares + states + values)
        )

    def _gated_norm_saved_bytes(self, step: TrainingStep) -> float:
        """Bytes per token that the norm over the gated result saves for backward. The norm works on fp32 copies, and
        keeps its result if its weight trains."""
        if not self.normed:
            return (_FP32 + step.sizes.compute) * self.width
        return _FP32 * self.width * (4 if step.trains_adapter else 5)

    def _fused_saved_bytes(self, step: TrainingStep) -> float:
        """Bytes per token that the fused kernel saves: the results of the first linear module, and the input of the
        second (mamba-ssm 2.2, ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn)."""
        return step.sizes.compute * (2 * self.width + self.convolved + self.heads)

    def backward_workspace(self, step: TrainingStep) -> float:
        """Temporary bytes of one layer's backward pass, per micro batch. torch's own operators hold two gradients of
        the products of B and C, for all pairs of tokens of a chunk, before the pairs are summed up. If a gradient of
        each channel's state at each token is larger, two of these gradients count instead."""
        gradients = step.sizes.residual * step.arch.hidden
        if self.kernels:
            states = 2 * self.heads * self.state * self.head_dim / self.chunk
            size = step.sizes.compute * (4 * self.width + 2 * self.convolved) + _FP32 * states
            return step.tokens * (size + gradients)
        pairs = 2 * self.heads * self.state * max(self.chunk, self.head_dim)
        return step.tokens * (self._padding_factor(step) * _FP32 * pairs + gradients)


@dataclass(frozen=True)
class Mamba(Mixer):
    """Shapes of one Mamba layer (arXiv 2312.00752) that has norms on the time step (dt), B and C."""

    width: int
    state: int  # of each channel
    rank: int  # of the step in time
    kernel: int  # tokens that the convolution before it sees
    bias: bool = False  # of its first and last linear module
    convolution_bias: bool = True
    kernels: bool = False  # mamba-ssm and causal-conv1d compute it, which keep no states
    facts = _FACTS

    def linears(self, hidden: int) -> tuple[Linear, ...]:
        selection = Linear("x", self.width, self.rank + 2 * self.state), Linear("dt", self.rank, self.width, bias=True)
        first, last = (
            Linear("in", hidden, 2 * self.width, bias=self.bias),
            Linear("out", self.width, hidden, bias=self.bias),
        )
        return first, *selection, last

    def vectors(self, _hidden: int) -> int:
        """Number of elements of the parameters outside linear modules: the convolution, decays and a bias for each
        channel, and three norms."""
        convolution = self.kernel + int(self.convolution_bias)
        return self.width * (convolution + self.state + 1) + self.rank + 2 * self.state

    @property
    def _state_bytes(self) -> float:
        """Bytes per token of an fp32 tensor with one number for each state of each channel."""
        return _FP32 * self.width * self.state

    def saved_bytes(self, step: TrainingStep, layer: DecoderLayer) -> float:
        """Bytes that one layer saves for the backward pass, per micro batch. The norm before the layer is not
        included."""
        first, selecting, dt, out = (layer.by_role(role) for role in ("in", "x", "dt", "out"))
        per_token = saved_input(step, step.arch.hidden, first) + saved_by_dora(step, (*first, *selecting, *dt, *out))
        per_token += saved_input(step, self.width, selecting, "product") + saved_input(step, self.rank, dt)
        per_token += saved_input(step, self.width, out, "product")
        per_token += saved_by_norm(step, self.rank + 2 * self.state, step.sizes.compute)
        return step.tokens * (
            per_token + (self._fused_saved_bytes(step) if self.kernels else self._unfused_saved_bytes(step))
        )

    def _unfused_saved_bytes(self, step: TrainingStep) -> float:
        """Bytes per token that torch's own operators save between the linear modules: both results of the first module,
        the results of the convolution and of the time step (dt) before and after their activations, the results of the
        scan and of the gate, and the values in fp32. For each state of each channel they also save its decay, its
        input, the state itself, and the cast copy that the matmul reads."""
        compute = step.sizes.compute
        cast = compute * self.width * self.state if compute < _FP32 else 0.0
        return (7 * compute + _FP32) * self.width + 3 * self._state_bytes + cast

    def _fused_saved_bytes(self, step: TrainingStep) -> float:
        """Bytes per token that the fused kernels save: both results of the first linear module, and one result each of
        the convolution, the time step and the scan (mamba-ssm 2.2, ops/selective_scan_interface.py,
        SelectiveScanFn)."""
        return 6 * step.sizes.compute * self.width

    def backward_workspace(self, step: TrainingStep) -> float:
        """Temporary bytes of one layer's backward pass, per micro batch. torch's own operators hold three tensors with
        a number for every state: the gradients of decays and of inputs, and the gradient of a single token, which is
        allocated at full width. Fused kernels hold only the gradients of their inputs and outputs."""
        gradients = step.sizes.residual * step.arch.hidden + 6 * step.sizes.compute * self.width
        return step.tokens * (gradients + (0.0 if self.kernels else 3 * self._state_bytes))
