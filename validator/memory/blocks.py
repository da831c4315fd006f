"""The layers of a decoder, made from its architecture."""

from __future__ import annotations

from functools import lru_cache

from .shapes import Block, Delta, Linear
from .widths import delta_key_width, delta_value_width, key_width, output_width, query_width, value_width
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


def _delta_linears(hidden: int, delta: Delta) -> list[Linear]:
    keys, values, heads = delta_key_width(delta), delta_value_width(delta), delta.value_heads
    inputs = {"in_qkv": 2 * keys + values, "in_z": values, "in_b": heads, "in_a": heads}
    if delta.paired:
        inputs = {"in_qkvz": 2 * (keys + values), "in_ba": 2 * heads}
    return [*(Linear(role, hidden, width) for role, width in inputs.items()), Linear("out", values, hidden)]


def _attention_linears(hidden: int, attn: Attn, delta: Delta | None) -> list[Linear]:
    if delta:
        return _delta_linears(hidden, delta)
    if attn.kv_rank:
        return _latent_linears(hidden, attn)
    out = Linear("o", output_width(attn), hidden, bias=attn.out_bias)
    widths = {"q": (2 if attn.gated else 1) * query_width(attn), "k": key_width(attn), "v": value_width(attn)}
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


def _delta_vectors(delta: Delta) -> int:
    """Its convolution, decay and bias of each head, and a norm over one."""
    convolved = 2 * delta_key_width(delta) + delta_value_width(delta)
    return delta.kernel * convolved + 2 * delta.value_heads + delta.value_dim


def _vectors(arch: Architecture, delta: Delta | None) -> int:
    attn = arch.attn
    norms = arch.norms_per_layer * norm_elements(arch)
    if delta:
        return norms + _delta_vectors(delta)
    heads = (2 * attn.head_dim if attn.head_norms else 0) + (attn.heads if attn.sinks else 0)
    heads += query_width(attn) + key_width(attn) if attn.whole_norms else 0
    return norms + heads + attn.q_rank + attn.kv_rank


def _dense_block(arch: Architecture, delta: Delta | None = None) -> Block:
    linears = _attention_linears(arch.hidden, arch.attn, delta) + _feed_forward(
        arch.hidden, arch.ffn.width, arch.ffn, bias=arch.ffn.bias
    )
    biases = sum(linear.bias_elements for linear in linears)
    return Block(tuple(linears), 0, _vectors(arch, delta) + biases, delta=delta)


def _mixture_block(arch: Architecture, fused: bool, delta: Delta | None = None) -> Block:
    ffn, hidden = arch.ffn, arch.hidden
    experts = _experts(hidden, ffn)
    router = ffn.experts * (hidden + (1 if ffn.router_bias else 0))
    linears = _attention_linears(hidden, arch.attn, delta)
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
    vectors = _vectors(arch, delta) + biases + router
    return Block(tuple(linears), inside if fused else 0, vectors, mixture=True, delta=delta)


def _counted(layers: Counted) -> tuple[int, Block]:
    linears = tuple(Linear(*each) for each in layers.linears)
    return layers.number, Block(linears, layers.experts, layers.vectors)


def _alternating(arch: Architecture, fused: bool) -> tuple[tuple[int, Block], ...]:
    linear, full = (
        _mixture_block(arch, fused, delta) if arch.ffn.experts else _dense_block(arch, delta)
        for delta in (arch.delta, None)
    )
    number = arch.layers // arch.full_every
    return (arch.layers - number, linear), (number, full)


def last_layers(arch: Architecture, number: int, fused: bool = True) -> tuple[tuple[int, Block], ...]:
    """The last `number` layers, as `blocks` gives all."""
    kinds = blocks(arch, fused)
    full = -(-number // arch.full_every)
    alternate = ((number - full, kinds[0][1]),) if number > full else ()
    return (*alternate, (full, kinds[-1][1]))


@lru_cache(maxsize=512)
def blocks(arch: Architecture, fused: bool = True) -> tuple[tuple[int, Block], ...]:
    """(how many, layer) for each kind of layer, first layers first. `fused`: experts are 3-D parameters."""
    if arch.counted:
        return tuple(_counted(each) for each in arch.counted)
    if arch.delta:
        return _alternating(arch, fused)
    if not arch.ffn.experts:
        return ((arch.layers, _dense_block(arch)),)
    kinds = [(arch.layers - arch.ffn.dense_layers, _mixture_block(arch, fused))]
    if arch.ffn.dense_layers:
        kinds.insert(0, (arch.ffn.dense_layers, _dense_block(arch)))
    return tuple(kinds)
