"""The layers of a decoder, made from its architecture."""

from __future__ import annotations

from functools import lru_cache

from .shapes import Block, Linear
from .widths import key_width, output_width, query_width, value_width
from .workload import Architecture, Attn, Counted, Ffn


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
    widths = {"q": query_width(attn), "k": key_width(attn), "v": value_width(attn)}
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


def _vectors(arch: Architecture) -> int:
    attn = arch.attn
    norms = arch.norms_per_layer * norm_elements(arch)
    heads = (2 * attn.head_dim if attn.head_norms else 0) + (attn.heads if attn.sinks else 0)
    heads += query_width(attn) + key_width(attn) if attn.whole_norms else 0
    return norms + heads + attn.q_rank + attn.kv_rank


def _dense_block(arch: Architecture) -> Block:
    linears = _attention_linears(arch.hidden, arch.attn) + _feed_forward(
        arch.hidden, arch.ffn.width, arch.ffn, bias=arch.ffn.bias
    )
    return Block(tuple(linears), 0, _vectors(arch) + sum(linear.bias_elements for linear in linears))


def _mixture_block(arch: Architecture, fused: bool) -> Block:
    ffn, hidden = arch.ffn, arch.hidden
    experts = _experts(hidden, ffn)
    router = ffn.experts * (hidden + (1 if ffn.router_bias else 0))
    linears = _attention_linears(hidden, arch.attn)
    if ffn.shared_width:
        linears += _feed_forward(hidden, ffn.shared_width, ffn)
    if ffn.shared_gate:
        linears.append(Linear("shared_gate", hidden, 1))
    if ffn.router_linear if fused else ffn.separate_router_linear:
        linears.append(Linear("router", hidden, ffn.experts, bias=ffn.router_bias))
        router = 0
    if not fused:
        linears += experts
    biases = sum(linear.bias_elements for linear in linears)
    inside = sum(linear.elements + linear.bias_elements for linear in experts)
    return Block(tuple(linears), inside if fused else 0, _vectors(arch) + biases + router, mixture=True)


def _counted(layers: Counted) -> tuple[int, Block]:
    linears = tuple(Linear(*each) for each in layers.linears)
    return layers.number, Block(linears, layers.experts, layers.vectors)


@lru_cache(maxsize=512)
def blocks(arch: Architecture, fused: bool = True) -> tuple[tuple[int, Block], ...]:
    """(how many, layer) for each kind of layer, first layers first. `fused`: experts are 3-D parameters."""
    if arch.counted:
        return tuple(_counted(each) for each in arch.counted)
    if not arch.ffn.experts:
        return ((arch.layers, _dense_block(arch)),)
    kinds = [(arch.layers - arch.ffn.dense_layers, _mixture_block(arch, fused))]
    if arch.ffn.dense_layers:
        kinds.insert(0, (arch.ffn.dense_layers, _dense_block(arch)))
    return tuple(kinds)
