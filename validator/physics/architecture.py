"""The shapes of a model: linear modules, attention, feed-forward block, vision and audio towers, decoder.

All sizes are numbers of elements, never bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

from validator.physics.estimate import EvidenceGap


class Linear(NamedTuple):
    """`number` linear modules of the same role and shape in one layer. `routed` marks the modules of experts, which
    only the tokens routed to them reach."""

    role: str
    inputs: int
    outputs: int
    number: int = 1
    bias: bool = False
    routed: bool = False

    @property
    def elements(self) -> int:
        return self.number * self.inputs * self.outputs

    @property
    def bias_elements(self) -> int:
        return self.number * self.outputs if self.bias else 0

    def has_role(self, roles: Collection[str]) -> bool:
        """True if the module has one of `roles`. A role such as `routed gate` is that of the modules of experts alone,
        `shared gate` that of all others."""
        return self.role in roles or f"{'routed' if self.routed else 'shared'} {self.role}" in roles


def element_count(linears: Iterable[Linear]) -> int:
    """Elements of the matrices of linear modules, without biases."""
    return sum(linear.elements for linear in linears)


class Tower(NamedTuple):
    """A vision or audio tower and its projector, which turns the tower's outputs into embeddings for the decoder. All
    counts are elements.

    A tower token is a patch of an image or a time step of sound; `merge` tower tokens become one token of the
    decoder."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    width: int  # of the feed-forward block
    linears: tuple[Linear, ...]  # of one layer
    vectors: int  # of one layer: norms, biases, scales
    gated: bool = False
    quick_gelu: bool = False
    rms: bool = False  # norms are RMSNorm, else LayerNorm
    fp32: Literal["never", "trained", "always"] = "never"  # when hidden states between layers are under autocast
    outside: tuple[Linear, ...] = ()  # further linear modules, which train with the layers
    others: int = 0  # other elements that train with the layers: embeddings of patches and positions, norms, biases
    never_frozen: int = 0  # elements that full fine-tuning never freezes
    never_frozen_first: bool = False  # some of them stand before the layers
    projector: tuple[Linear, ...] = ()
    projector_others: int = 0
    merge: int = 1
    has_input_embeddings: bool = True  # the class has get_input_embeddings, so that its output can require grad
    input_values: int = 0  # elements that the processor hands over for one tower token
    patch_size: int = 0  # pixels along one side of a patch; 0: no pictures
    min_pixels: int = 0  # pixels of the smallest picture that its processor hands over
    temporal_patch_size: int = 1  # frames of a video in a patch
    fixed_tokens: int = 0  # tokens of one picture or sound, if each is brought to one size
    max_tiles: int = 0  # tiles of a picture at most, with the whole picture, if config.json lists their grids
    output_hidden_states: bool = False  # the results of all layers stay until the last has run
    qk_norm: bool = False  # heads of queries and keys have norms
    own_rotary_tables: bool = False  # each layer computes cosines and sines, for queries and again for keys

    @property
    def elements(self) -> int:
        """Elements of the tower without its projector."""
        layer_elements = self.layers * (element_count(self.linears) + self.vectors)
        return layer_elements + element_count(self.outside) + self.others + self.never_frozen

    @property
    def projector_elements(self) -> int:
        return element_count(self.projector) + self.projector_others

    @property
    def all_elements(self) -> int:
        """Elements of the tower and its projector."""
        return self.elements + self.projector_elements

    @property
    def linear_elements(self) -> int:
        """Elements of all linear modules of the tower and its projector. Quantization applies to these weights."""
        return self.layers * element_count(self.linears) + element_count((*self.outside, *self.projector))


NormKind = Literal["rms", "rms_fp32", "layer", "layer_back", "layer_fp32", "bare"]


class Norm(NamedTuple):
    """How transformers computes one kind of norm: its parameters, whether one kernel runs it, and which copies it saves
    for backward."""

    vectors: int = 1  # parameters, in vectors of the norm's width
    one_kernel: bool = False  # a kernel of PyTorch; else written out, operator by operator
    saved_fp32: int = 1  # fp32 copies of its input that a written-out norm saves
    normalizes_fp32: bool = False  # the weight scales the fp32 value, else one rounded to the input's precision
    returns_input_dtype: bool = False  # whatever its weight is


# By kind: RMSNorm with the weight applied before (rms) or after (rms_fp32) the result is rounded; nn.LayerNorm; one
# without bias, whose result is brought back to its input's precision; a LayerNorm without bias that is written out in
# fp32 and keeps the centred input, too; one without any weight.
NORMS: dict[NormKind, Norm] = {
    "rms": Norm(),
    "rms_fp32": Norm(normalizes_fp32=True, returns_input_dtype=True),
    "layer": Norm(vectors=2, one_kernel=True),
    "layer_back": Norm(one_kernel=True, returns_input_dtype=True),
    "layer_fp32": Norm(saved_fp32=2, normalizes_fp32=True, returns_input_dtype=True),
    "bare": Norm(vectors=0, one_kernel=True, returns_input_dtype=True),
}


class AttentionShape(NamedTuple):
    """Shapes of one attention block. Multi-head latent attention (MLA) sets the `*_rank` and `rope_dim` fields."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0  # 0: head_dim
    q_rank: int = 0  # low-rank query projection (MLA); 0: none
    kv_rank: int = 0  # latent key/value width (MLA); 0: ordinary attention
    rope_dim: int = 0  # rotary part of each MLA key
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # a norm weight of head_dim on queries and on keys
    full_width_qk_norm: bool = False  # a norm weight over all queries and one over all keys
    weightless_qk_norm_share: float = (
        0.0  # share of the layers with norms without weights over each head of queries and keys
    )
    softmax_in_half: bool = False  # eager attention computes its softmax in half precision
    sinks: bool = False  # one learned scalar for each head
    window: int = 0  # sliding window in tokens; 0: none
    window_share: float = 0.5  # of the layers that have it
    fused_qkv: bool = False  # one linear module makes q, k and v
    contiguous_copies: bool = False  # which are copied out of its result, not read there as views
    kv_repeated: bool = False  # keys and values exist once for each head of the queries
    always_masked: bool = False  # sdpa gets a mask even without padding
    unbatched: bool = False  # sdpa gets no batch dimension, which no kernel of PyTorch takes
    broadcasts_kv: bool = False  # heads share keys by broadcasting, which no kernel of PyTorch knows
    alibi: bool = False  # biases by distance: no kernel is used, all scores are materialized
    clip_qkv: bool = False  # the result of that linear module is clipped
    concatenated: bool = False  # rotated and plain parts are joined head by head, so the output is copied once more
    output_gate: bool = False  # a gate as wide as the queries, whose sigmoid scales the result of attention
    v_norm: bool = False  # a norm without weights over each head of values
    k_eq_v: bool = False  # one linear module makes keys and values
    shares_kv: bool = False  # keys and values are those of an earlier layer
    cross_attention: bool = False  # keys and values come from the towers; two gates scale what is added

    # Elements per token of queries, keys, values and the result. Latent attention expands values to every head.
    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        return (self.heads if self.kv_rank else self.kv_heads) * (self.value_dim or self.head_dim)

    @property
    def output_width(self) -> int:
        return self.heads * (self.value_dim or self.head_dim)


class FeedForwardShape(NamedTuple):
    """Shapes of one feed-forward block. The block is a mixture of experts if `experts` is above 0."""

    width: int
    gated: bool = True
    quick_gelu: bool = False  # the input times a sigmoid, which saves both
    fused_gate_up: bool = False
    bias: bool = False
    new_gelu: bool = False  # GELU written out operator by operator, each of which saves its input
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_width: int = 0  # width of the always-on expert; 0: none
    shared_gate: bool = False
    router_bias: bool = False
    router_linear: bool = False  # the router is an ordinary linear module, which adapters reach
    separate_router_linear: bool = True  # the same, where the experts are linear modules themselves
    router_bias_fixed: bool = False  # the router's bias is a parameter that never trains
    expert_bias: bool = False
    clamped_swiglu: bool = False  # experts clamp the results of gate and up
    index_add: bool = False  # results of the chosen experts are added up by index_add, which saves each
    experts_as_stored: bool = False  # matmuls take the experts' tensor itself, not a transposed view of it
    dense_layers: int = 0  # leading layers with an ordinary block of `width`
    vision_expert_width: int = 0  # of as many experts for pictures, which no token reaches
    router_scaled: bool = False  # the router has a norm of its own and scales for its input and for each expert


class MixerTraffic(NamedTuple):
    """Memory traffic of a mixer (Mamba, linear attention or a convolution) in one layer: `size` bytes are moved
    `forward` times in the forward pass and `backward` times in the backward pass.

    By default `size` is the bytes that the mixer saves for the backward pass. The default of `forward` counts that each
    saved tensor is written once and read about once by the operators that follow; the default of `backward` is twice
    that."""

    size: float
    forward: float = 2.5
    backward: float = 5.0


# Kernels that the forward pass of a mixer launches if fused kernels compute it.
FUSED_MIXER_KERNELS = 12


class MixerEvidence(NamedTuple):
    """How well published measurements cover a mixer such as Mamba. `memory_gap` names the mixer in the message "few
    measurements of ..." about memory. `time_gap` holds the shares by which a step may be faster or slower than
    predicted, because few runs with this mixer have a published time."""

    memory_gap: str
    time_gap: EvidenceGap = EvidenceGap("layers without attention", 0.3, 0.3)


class MixerFacts(NamedTuple):
    """Facts about one kind of mixer, such as Mamba. `fused`: what was measured with the mixer's fused kernels, or of a
    mixer for which no fused kernels exist. `unfused`: what was measured without fused kernels; None: no fused kernels
    exist. `packages`: the Python packages of the fused kernels, which run only if all of these packages are
    installed."""

    fused: MixerEvidence
    unfused: MixerEvidence | None = None
    packages: tuple[str, ...] = ()


class Mixer(ABC):
    """The part of a layer that replaces attention or runs beside it, such as a state space (Mamba). Its time is linear
    in the sequence length. Each subclass is a frozen dataclass that holds the shape of one kind of mixer.

    Parameters called `step` take a TrainingStep and parameters called `layer` a DecoderLayer. This module cannot name
    these types, because their modules import it."""

    facts: ClassVar[MixerFacts]
    kernels: bool = True  # fused kernels compute the mixer, or there are none for it

    @property
    def evidence(self) -> MixerEvidence:
        """What published measurements say about the mixer: the facts about its fused kernels if the run uses these
        kernels, or if the mixer has none; else the facts about the mixer without fused kernels."""
        return self.facts.fused if self.kernels or self.facts.unfused is None else self.facts.unfused

    def with_kernels(self) -> Self:
        return replace(self, kernels=True)  # type: ignore[type-var]

    @property
    def buffer_elements(self) -> int:
        """Elements of the mixer's buffers (tensors that are not parameters) in one layer, which every device holds."""
        return 0

    @abstractmethod
    def linears(self, hidden: int) -> tuple[Linear, ...]:
        """Return the mixer's linear modules in one layer."""

    @abstractmethod
    def vectors(self, hidden: int, /) -> int:
        """Number of elements of the mixer's parameters in one layer that belong to no linear module."""

    @abstractmethod
    def saved_bytes(self, step: Any, layer: Any) -> float:
        """Bytes that the mixer of one layer saves for the backward pass, per micro batch. The norm before the mixer is
        not included."""

    @abstractmethod
    def backward_workspace(self, step: Any) -> float:
        """Bytes of temporary tensors in the mixer's backward pass, for one layer and one micro batch."""

    def matmul_flops(self, _step: Any, /) -> float:
        """FLOP of the mixer's matmuls outside its linear modules, in the forward pass of one layer. The default 0 means
        that these matmuls are not counted."""
        return 0.0

    def matmul_element_size(self, step: Any) -> float:
        """Bytes per element in the matmuls that `matmul_flops` counts."""
        return float(step.sizes.compute)

    def traffic(self, step: Any, layer: Any) -> MixerTraffic:
        """Return the memory traffic of the mixer in one layer, without the traffic of its matmuls. By default the
        traffic follows from the bytes that the mixer saves for backward."""
        return MixerTraffic(self.saved_bytes(step, layer))

    def kernel_count(self, _step: Any, /) -> float:
        """Number of kernels that the mixer of one layer launches in the forward pass."""
        return FUSED_MIXER_KERNELS


class CountedLayers(NamedTuple):
    """`number` identical layers of a model whose architecture no formula knows, with the sizes counted on the model's
    Python class. `linears`: name, inputs, outputs, number of modules, and whether they have a bias, for each kind of
    linear module in one layer. `experts`: elements of one layer's fused expert tensors; `vectors`: elements of its
    other parameters."""

    number: int
    linears: tuple[tuple[str, int, int, int, bool], ...]
    experts: int
    vectors: int


class LayerKind(NamedTuple):
    """The parts of one layer: whether it has attention, a mixer such as Mamba, and experts."""

    attends: bool = True
    mixes: bool = False
    experts: bool = False


class Architecture(NamedTuple):
    """The shapes of a decoder and of the towers before it. All widths are numbers of elements, never bytes."""

    hidden: int
    layers: int
    vocab: int
    attn: AttentionShape
    ffn: FeedForwardShape
    tied: bool = False
    norms_per_layer: int = 2  # 1: parallel halves share it; 4: each half norms its result, too
    norm: NormKind = "rms"
    parallel: bool = False  # attention and feed-forward block read the same hidden state
    dropout: bool = False  # on what each half of a layer adds
    head_bias: bool = False
    embedding_norm: bool = False  # a norm over the embedding
    position_rows: int = 0  # rows of a position embedding
    recasts_weights: bool = False  # autocast copies the weights of linear modules anew for each product
    logit_softcap: bool = False
    towers: tuple[Tower, ...] = ()  # encoders of images, video or sound before the decoder
    counted_layers: tuple[CountedLayers, ...] = ()  # layers of an unknown model, in place of `attn` and `ffn`
    mixer: Mixer | None = None  # of some layers, in place of `attn` or beside it
    kinds: tuple[LayerKind, ...] = ()  # of each layer; none: all attend, and all but the first have experts if any do
    layer_groups: tuple[tuple[int, Architecture], ...] = ()  # (layers, decoder of such layers), if shapes differ
    per_layer_input_width: int = 0  # of the embedding that each layer has of its own
    per_layer_vocab: int = 0  # rows of that embedding
    extra_embedding_rows: int = 0  # that the output layer lacks
    mtp_layers: int = 0  # multi-token-prediction layers, which are loaded and never run

    def with_mixer_kernels(self) -> Architecture:
        """Return the same architecture with fused kernels that compute its mixer, if it has one."""
        return self._replace(mixer=self.mixer.with_kernels()) if self.mixer else self

    @property
    def norm_elements(self) -> int:
        """Number of parameters of one norm over the hidden state."""
        return NORMS[self.norm].vectors * self.hidden

    @property
    def has_cross_attention(self) -> bool:
        """True if some layers read the outputs of towers by cross-attention."""
        return any(decoder.attn.cross_attention for _, decoder in self.layer_groups)

    @property
    def shares_kv(self) -> bool:
        """True if the last layers use the keys and values of earlier layers."""
        return any(decoder.attn.shares_kv for _, decoder in self.layer_groups)

    @property
    def moe_layers(self) -> int:
        """Number of layers with experts."""
        if self.kinds:
            return sum(kind.experts for kind in self.kinds)
        return self.layers - self.ffn.dense_layers if self.ffn.experts else 0
