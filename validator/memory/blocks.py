"""The layers of a decoder, made from its architecture."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby

from .linear import Linear
from .shapes import Block
from .widths import key_width, output_width, query_width, value_width
from .workload import Architecture, Attn, Counted, Ffn, LayerKind


def _latent_linears(hidden: int, attn: Attn) -> list[Linear]:
    expanded = attn.heads * (attn.head_dim - attn.rope_dim) + value_width(attn)
    queries = (
        [Linear("q_a", hidden, attn.q_rank), Linear("q_b", attn.q_rank, query_width(attn))]
        if attn.q_rank
        else [Linear("q", hidden, query_width(attn))]
    )
    return [
        *queries,
        Linear("kv_a", hidden, attn.kv_rank + attn.rope_dim),
        Linear("kv_b", attn.kv_rank, expanded),
        Linear("o", output_width(attn), hidden, bias=attn.out_bias),
    ]


def _attention_linears(hidden: int, attn: Attn) -> list[Linear]:
    if attn.kv_rank:
        return _latent_linears(hidden, attn)
    out = Linear("o", output_width(attn), hidden, bias=attn.out_bias)
    widths = {"q": (2 if attn.gated else 1) * query_width(attn)}
    widths |= {} if attn.borrowed else {"k": key_width(attn)}
    widths |= {} if attn.borrowed or attn.joint else {"v": value_width(attn)}
    if attn.fused:
        return [Linear("qkv", hidden, sum(widths.values()), bias=attn.qkv_bias), out]
    return [*(Linear(role, hidden, width, bias=attn.qkv_bias) for role, width in widths.items()), out]


def _feed_forward(hidden: int, width: int, ffn: Ffn, bias: bool = False) -> list[Linear]:
    down = Linear("down", width, hidden, bias=bias)
    if not ffn.gated:
        return [Linear("up", hidden, width, bias=bias), down]
    if ffn.fused_gate_up:
        return [Linear("gate_up", hidden, 2 * width, bias=bias), down]
    return [Linear("gate", hidden, width, bias=bias), Linear("up", hidden, width, bias=bias), down]


def _experts(hidden: int, ffn: Ffn) -> list[Linear]:
    one = _feed_forward(hidden, ffn.expert_width, ffn, ffn.expert_bias)
    return [linear._replace(number=ffn.experts, routed=True) for linear in one]


def norm_elements(arch: Architecture) -> int:
    """Parameters of a norm over the hidden width."""
    return {"layer": 2, "bare": 0}.get(arch.norm, 1) * arch.hidden


def _attention_vectors(attn: Attn) -> int:
    normed = 1 if attn.borrowed else 2
    heads = (normed * attn.head_dim if attn.head_norms else 0) + (attn.heads if attn.sinks else 0)
    heads += query_width(attn) + key_width(attn) if attn.whole_norms else 0
    heads += 2 if attn.crossed else 0
    return heads + attn.q_rank + attn.kv_rank


def _before(arch: Architecture, kind: LayerKind) -> tuple[list[Linear], int]:
    """Linear modules of a layer before its feed-forward block, and elements of its norms and of all else there."""
    linears: list[Linear] = []
    vectors = arch.norms_per_layer * norm_elements(arch)
    if arch.mixer and kind.mixes:
        linears += arch.mixer.linears(arch.hidden)
        vectors += arch.mixer.vectors(arch.hidden)
    if kind.attends:
        linears += _attention_linears(arch.hidden, arch.attn)
        vectors += _attention_vectors(arch.attn)
    return linears, vectors


def _block(arch: Architecture, kind: LayerKind, fused: bool) -> Block:
    linears, vectors = _before(arch, kind)
    mixer = arch.mixer if kind.mixes else None
    more, experts, routing = _mixture(arch, fused) if kind.experts else (_dense(arch), 0, 0)
    linears += more
    vectors += sum(linear.bias_elements for linear in linears) + routing
    return Block(tuple(linears), experts, vectors, mixture=kind.experts, mixer=mixer, attends=kind.attends)


def _dense(arch: Architecture) -> list[Linear]:
    inside = _feed_forward(arch.hidden, arch.ffn.width, arch.ffn, bias=arch.ffn.bias)
    return inside + (_input_linears(arch.hidden, arch.layer_input) if arch.layer_input else [])


def _input_linears(hidden: int, width: int) -> list[Linear]:
    """Of what each layer reads of an embedding of its own."""
    return [Linear("input_gate", hidden, width), Linear("input_out", width, hidden)]


def _mixture(arch: Architecture, fused: bool) -> tuple[list[Linear], int, int]:
    """Linear modules of a mixture, elements of experts in one tensor, and of a router that is none of the modules."""
    ffn, hidden = arch.ffn, arch.hidden
    experts = _experts(hidden, ffn)
    router = ffn.experts * (hidden + (1 if ffn.router_bias else 0))
    linears = _feed_forward(hidden, ffn.shared_width, ffn) if ffn.shared_width else []
    if ffn.shared_gate:
        linears.append(Linear("shared_gate", hidden, 1))
    if ffn.router_linear if fused else ffn.separate_router_linear:
        linears.append(Linear("router", hidden, ffn.experts, bias=ffn.router_bias))
        router = 0
    if ffn.router_scaled:
        router += hidden + ffn.experts
    if ffn.seeing_width:
        experts += _experts(hidden, ffn._replace(expert_width=ffn.seeing_width))
        router *= 2
    if not fused:
        return linears + experts, 0, router
    return linears, sum(linear.elements + linear.bias_elements for linear in experts), router


def _counted(layers: Counted) -> tuple[int, Block]:
    linears = tuple(Linear(*each) for each in layers.linears)
    return layers.number, Block(linears, layers.experts, layers.vectors)


def last_layers(layers: tuple[tuple[int, Block], ...], number: int) -> tuple[tuple[int, Block], ...]:
    """The last `number` of layers that `blocks` gives."""
    last: list[tuple[int, Block]] = []
    for there, block in reversed(layers):
        taken = min(there, number - sum(count for count, _ in last))
        if taken > 0 or not last:
            last.insert(0, (taken, block))
    return tuple(last)


def _kinds(arch: Architecture) -> tuple[LayerKind, ...]:
    """Of each layer."""
    dense = arch.ffn.dense_layers if arch.ffn.experts else arch.layers
    return arch.kinds or (LayerKind(),) * dense + (LayerKind(experts=True),) * (arch.layers - dense)


@lru_cache(maxsize=512)
def blocks(arch: Architecture, fused: bool = True) -> tuple[tuple[int, Block], ...]:
    """(how many, layer) for layers in a row that are alike, first layers first. `fused`: experts are 3-D parameters."""
    if arch.counted:
        return tuple(_counted(each) for each in arch.counted)
    if arch.runs:
        one = {each: blocks(each, fused)[0][1] for each in dict.fromkeys(each for _, each in arch.runs)}
        return tuple((number, one[each]) for number, each in arch.runs)
    kinds = _kinds(arch)
    of = {kind: _block(arch, kind, fused) for kind in dict.fromkeys(kinds)}
    return tuple((len(list(alike)), of[kind]) for kind, alike in groupby(kinds))
