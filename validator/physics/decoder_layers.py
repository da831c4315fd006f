"""The layers of a decoder: their linear modules and element counts, and multi-token-prediction layers, which are
loaded but never run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby

from validator.physics.architecture import (
    Architecture,
    AttentionShape,
    FeedForwardShape,
    LayerKind,
    Linear,
    Mixer,
    element_count,
)
from validator.physics.workload import DDP, AdaptedLayers, Workload


@dataclass(eq=False)
class DecoderLayer:
    """One kind of decoder layer. `linears`: the layer's linear modules. `experts`: elements of its fused 3-D expert
    parameters. `vectors`: elements of norms, biases, sinks, routers and convolutions. `mixture`: tokens are routed to
    experts, fused or not. `mixer`: the part, such as Mamba, that replaces attention or runs beside it. `attends`: the
    layer has attention.

    A layer is equal only to itself, so that caches find the results for a layer without comparing fields."""

    linears: tuple[Linear, ...]
    experts: int
    vectors: int
    mixture: bool = False
    mixer: Mixer | None = None
    attends: bool = True

    def by_role(self, *roles: str) -> tuple[Linear, ...]:
        return tuple(linear for linear in self.linears if linear.has_role(roles))

    @cached_property
    def matrices(self) -> int:
        """Number of elements of the layer's linear modules and fused experts."""
        return self.linear_elements + self.experts

    @cached_property
    def linear_elements(self) -> int:
        return element_count(self.linears)

    @cached_property
    def elements(self) -> int:
        return self.matrices + self.vectors

    @cached_property
    def down(self) -> tuple[Linear, ...]:
        """Linear modules whose results leave the feed-forward block (role `down`)."""
        return self.by_role("down")

    @cached_property
    def readers(self) -> tuple[Linear, ...]:
        """Linear modules that read the input of the feed-forward block, such as `gate` and `up`."""
        return self.by_role("gate", "up", "gate_up", "shared_gate")

    @cached_property
    def routed(self) -> DecoderLayer:
        """Return a layer that holds only the linear modules of this layer's routed experts. It is empty if the experts
        are fused."""
        return DecoderLayer(tuple(linear for linear in self.linears if linear.routed), 0, 0)

    @cached_property
    def unrouted(self) -> DecoderLayer:
        """Return a layer that holds only the linear modules outside this layer's routed experts."""
        return DecoderLayer(tuple(linear for linear in self.linears if not linear.routed), 0, 0)

    @cached_property
    def attention(self) -> tuple[Linear, ...]:
        """Linear modules outside the feed-forward block: those of attention and of a mixer such as Mamba."""
        return tuple(linear for linear in self.linears if linear not in (*self.down, *self.readers))


# (number of identical layers in a row, layer), first layers first
LayerCounts = tuple[tuple[int, DecoderLayer], ...]


def _latent_attention_linears(hidden: int, attn: AttentionShape) -> list[Linear]:
    expanded = attn.heads * (attn.head_dim - attn.rope_dim) + attn.value_width
    queries = (
        [Linear("q_a", hidden, attn.q_rank), Linear("q_b", attn.q_rank, attn.query_width)]
        if attn.q_rank
        else [Linear("q", hidden, attn.query_width)]
    )
    return [
        *queries,
        Linear("kv_a", hidden, attn.kv_rank + attn.rope_dim),
        Linear("kv_b", attn.kv_rank, expanded),
        Linear("o", attn.output_width, hidden, bias=attn.out_bias),
    ]


def _attention_linears(hidden: int, attn: AttentionShape) -> list[Linear]:
    if attn.kv_rank:
        return _latent_attention_linears(hidden, attn)
    out = Linear("o", attn.output_width, hidden, bias=attn.out_bias)
    widths = {"q": (2 if attn.output_gate else 1) * attn.query_width}
    widths |= {} if attn.shares_kv else {"k": attn.key_width}
    widths |= {} if attn.shares_kv or attn.k_eq_v else {"v": attn.value_width}
    if attn.fused_qkv:
        return [Linear("qkv", hidden, sum(widths.values()), bias=attn.qkv_bias), out]
    return [*(Linear(role, hidden, width, bias=attn.qkv_bias) for role, width in widths.items()), out]


def _feed_forward_linears(hidden: int, width: int, ffn: FeedForwardShape, bias: bool = False) -> list[Linear]:
    down = Linear("down", width, hidden, bias=bias)
    if not ffn.gated:
        return [Linear("up", hidden, width, bias=bias), down]
    if ffn.fused_gate_up:
        return [Linear("gate_up", hidden, 2 * width, bias=bias), down]
    return [Linear("gate", hidden, width, bias=bias), Linear("up", hidden, width, bias=bias), down]


def _expert_linears(hidden: int, ffn: FeedForwardShape) -> list[Linear]:
    one = _feed_forward_linears(hidden, ffn.expert_width, ffn, ffn.expert_bias)
    return [linear._replace(number=ffn.experts, routed=True) for linear in one]


def _attention_vectors(attn: AttentionShape) -> int:
    norms = 1 if attn.shares_kv else 2
    heads = (norms * attn.head_dim if attn.qk_norm else 0) + (attn.heads if attn.sinks else 0)
    heads += attn.query_width + attn.key_width if attn.full_width_qk_norm else 0
    heads += 2 if attn.cross_attention else 0
    return heads + attn.q_rank + attn.kv_rank


def _attention_part(arch: Architecture, kind: LayerKind) -> tuple[list[Linear], int]:
    """Return the linear modules of a layer's attention and mixer, and the number of elements of the layer's norms and
    of the other parameters of attention and mixer."""
    linears: list[Linear] = []
    vectors = arch.norms_per_layer * arch.norm_elements
    if arch.mixer and kind.mixes:
        linears += arch.mixer.linears(arch.hidden)
        vectors += arch.mixer.vectors(arch.hidden)
    if kind.attends:
        linears += _attention_linears(arch.hidden, arch.attn)
        vectors += _attention_vectors(arch.attn)
    return linears, vectors


def _build_layer(arch: Architecture, kind: LayerKind, fused: bool) -> DecoderLayer:
    linears, vectors = _attention_part(arch, kind)
    mixer = arch.mixer if kind.mixes else None
    experts = routing = 0
    if kind.experts:
        mixture, experts, routing = _mixture_part(arch, fused)
        linears += mixture
    else:
        linears += _feed_forward_linears(arch.hidden, arch.ffn.width, arch.ffn, bias=arch.ffn.bias)
        if width := arch.per_layer_input_width:
            linears += [Linear("input_gate", arch.hidden, width), Linear("input_out", width, arch.hidden)]
    vectors += sum(linear.bias_elements for linear in linears) + routing
    return DecoderLayer(tuple(linears), experts, vectors, mixture=kind.experts, mixer=mixer, attends=kind.attends)


def _mixture_part(arch: Architecture, fused: bool) -> tuple[list[Linear], int, int]:
    """Return the linear modules of a mixture of experts, the elements of its fused expert tensors, and the elements of
    a router that is no linear module."""
    ffn, hidden = arch.ffn, arch.hidden
    experts = _expert_linears(hidden, ffn)
    router = ffn.experts * (hidden + (1 if ffn.router_bias else 0))
    linears = _feed_forward_linears(hidden, ffn.shared_width, ffn) if ffn.shared_width else []
    if ffn.shared_gate:
        linears.append(Linear("shared_gate", hidden, 1))
    if ffn.router_linear if fused else ffn.separate_router_linear:
        linears.append(Linear("router", hidden, ffn.experts, bias=ffn.router_bias))
        router = 0
    if ffn.router_scaled:
        router += hidden + ffn.experts
    if ffn.vision_expert_width:
        experts += _expert_linears(hidden, ffn._replace(expert_width=ffn.vision_expert_width))
        router *= 2
    if not fused:
        return linears + experts, 0, router
    return linears, sum(linear.elements + linear.bias_elements for linear in experts), router


def split_layers(layers: LayerCounts, adapted: AdaptedLayers) -> Iterator[tuple[int, DecoderLayer, tuple[str, ...]]]:
    """Yield the layers as (number of layers in a row, layer, roles of their adapted modules). `layers` are pairs that
    `build_layers` or `loaded_layers` returns; `adapted` says how many layers in a row have which adapted modules."""
    runs, left = iter(adapted), 0
    roles: tuple[str, ...] = ()
    for number, layer in layers:
        while number:
            if not left:
                left, roles = next(runs, (number, ()))
            alike = min(number, left)
            yield alike, layer, roles
            number, left = number - alike, left - alike


def last_layers(layers: tuple[tuple[int, DecoderLayer], ...], number: int) -> tuple[tuple[int, DecoderLayer], ...]:
    """Return the last `number` layers, as pairs (number of identical layers, layer). `layers` are the pairs that
    `build_layers` returns."""
    tail: list[tuple[int, DecoderLayer]] = []
    for available, layer in reversed(layers):
        chosen = min(available, number - sum(count for count, _ in tail))
        if chosen > 0 or not tail:
            tail.insert(0, (chosen, layer))
    return tuple(tail)


def trained_layers(layers: LayerCounts, workload: Workload) -> LayerCounts:
    """Return the layers that freeze tuning trains: the last ones of `layers`, or the first ones."""
    if not workload.trains_first_layers:
        return last_layers(layers, workload.trainable_layers)
    return last_layers(layers[::-1], workload.trainable_layers)[::-1]


@lru_cache(maxsize=512)
def build_layers(arch: Architecture, fused: bool = True) -> tuple[tuple[int, DecoderLayer], ...]:
    """Return the decoder's layers as pairs (number of identical layers in a row, layer), first layers first. `fused`
    means that experts are 3-D parameters instead of linear modules."""
    if arch.counted_layers:
        return tuple(
            (each.number, DecoderLayer(tuple(Linear(*one) for one in each.linears), each.experts, each.vectors))
            for each in arch.counted_layers
        )
    if arch.layer_groups:
        one = {each: build_layers(each, fused)[0][1] for each in dict.fromkeys(each for _, each in arch.layer_groups)}
        return tuple((number, one[each]) for number, each in arch.layer_groups)
    dense = arch.ffn.dense_layers if arch.ffn.experts else arch.layers
    kinds = arch.kinds or (LayerKind(),) * dense + (LayerKind(experts=True),) * (arch.layers - dense)
    of = {kind: _build_layer(arch, kind, fused) for kind in dict.fromkeys(kinds)}
    return tuple((len(list(alike)), of[kind]) for kind, alike in groupby(kinds))


@lru_cache(maxsize=64)
def mtp_layers(arch: Architecture, fused: bool = True) -> tuple[tuple[int, DecoderLayer], ...]:
    """Return the multi-token-prediction layers as pairs (number of identical layers, layer); empty if the model has no
    such layers. `fused`: experts are 3-D parameters instead of linear modules.

    A layer has the shape of the decoder's last layer. In addition, a linear module joins a hidden state with an
    embedding; the hidden state, the embedding and the layer's result have a norm each (arXiv 2505.07608, MiMoMTPLayers
    of modeling_mimo.py)."""
    if not arch.mtp_layers:
        return ()
    last = build_layers(arch, fused)[-1][1]
    joined = Linear("joined", 2 * arch.hidden, arch.hidden)
    return (
        (arch.mtp_layers, DecoderLayer((joined, *last.linears), last.experts, last.vectors + 3 * arch.norm_elements)),
    )


def loaded_layers(arch: Architecture, fused: bool = True) -> tuple[tuple[int, DecoderLayer], ...]:
    """Return all layers that are loaded, as pairs (number of identical layers, layer): the decoder's layers, then the
    multi-token-prediction layers, which never run. `fused`: experts are 3-D parameters instead of linear modules."""
    return (*build_layers(arch, fused), *mtp_layers(arch, fused))


def mtp_elements(arch: Architecture) -> int:
    """Number of parameters of the multi-token-prediction layers."""
    return sum(number * layer.elements for number, layer in mtp_layers(arch))


def elements_without_states(arch: Architecture, workload: Workload) -> int:
    """Number of elements of the multi-token-prediction layers if all weights train and neither DeepSpeed nor FSDP is
    used; else 0. These layers never run, so they have no gradient and no optimizer state. DeepSpeed and FSDP keep
    gradient and state even so, for every parameter that requires grad."""
    return 0 if workload.sharding.strategy != DDP or workload.method != "full" else mtp_elements(arch)
