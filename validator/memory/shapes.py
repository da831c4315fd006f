"""The tensors of a decoder, by shape: how many elements of which kind, and which linear modules an adapter can
reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from .workload import Architecture, Attn, Ffn, Workload


class Linear(NamedTuple):
    """`number` linear modules of one role and shape in one layer."""

    role: str
    inputs: int
    outputs: int
    number: int = 1
    bias: bool = False

    @property
    def elements(self) -> int:
        return self.number * self.inputs * self.outputs

    @property
    def bias_elements(self) -> int:
        return self.number * self.outputs if self.bias else 0


@dataclass(frozen=True)
class Block:
    """One kind of decoder layer. `experts` are elements of fused 3-D parameters, `vectors` norms, biases, sinks,
    routers."""

    linears: tuple[Linear, ...]
    experts: int
    vectors: int

    @cached_property
    def linear_elements(self) -> int:
        return sum(linear.elements for linear in self.linears)

    @cached_property
    def elements(self) -> int:
        return self.linear_elements + self.experts + self.vectors


def query_width(attn: Attn) -> int:
    return attn.heads * attn.head_dim


def key_width(attn: Attn) -> int:
    return attn.kv_heads * attn.head_dim


def value_width(attn: Attn) -> int:
    """Elements per token of the values; latent attention expands them to every head."""
    return (attn.heads if attn.kv_rank else attn.kv_heads) * (attn.value_dim or attn.head_dim)


def output_width(attn: Attn) -> int:
    return attn.heads * (attn.value_dim or attn.head_dim)


def attends_in_squares(arch: Architecture, workload: Workload) -> bool:
    """Whether scores of all pairs of tokens are made. PyTorch's fused attention knows no sinks."""
    return workload.attention == "eager" or (arch.attn.sinks and workload.attention == "sdpa")


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


def _feed_forward(hidden: int, width: int, ffn: Ffn, count: int = 1, bias: bool = False) -> list[Linear]:
    down = Linear("down", width, hidden, count, bias)
    if not ffn.gated:
        return [Linear("up", hidden, width, count, bias), down]
    if ffn.fused_gate_up:
        return [Linear("gate_up", hidden, 2 * width, count, bias), down]
    return [Linear("gate", hidden, width, count, bias), Linear("up", hidden, width, count, bias), down]


def _vectors(arch: Architecture) -> int:
    attn = arch.attn
    norms = arch.norms_per_layer * arch.hidden * (2 if arch.norm_bias else 1)
    heads = (2 * attn.head_dim if attn.head_norms else 0) + (attn.heads if attn.sinks else 0)
    return norms + heads + attn.q_rank + attn.kv_rank


def _dense_block(arch: Architecture) -> Block:
    linears = _attention_linears(arch.hidden, arch.attn) + _feed_forward(
        arch.hidden, arch.ffn.width, arch.ffn, bias=arch.ffn.bias
    )
    return Block(tuple(linears), 0, _vectors(arch) + sum(linear.bias_elements for linear in linears))


def _mixture_block(arch: Architecture, fused: bool) -> Block:
    ffn, hidden = arch.ffn, arch.hidden
    experts = _feed_forward(hidden, ffn.expert_width, ffn, ffn.experts, ffn.expert_bias)
    router = ffn.experts * (hidden + (1 if ffn.router_bias else 0))
    linears = _attention_linears(hidden, arch.attn)
    if ffn.shared_width:
        linears += _feed_forward(hidden, ffn.shared_width, ffn)
    if ffn.shared_gate:
        linears.append(Linear("shared_gate", hidden, 1))
    if ffn.router_linear or not fused:
        linears.append(Linear("router", hidden, ffn.experts, bias=ffn.router_bias))
        router = 0
    if not fused:
        linears += experts
    biases = sum(linear.bias_elements for linear in linears)
    inside = sum(linear.elements + linear.bias_elements for linear in experts)
    return Block(tuple(linears), inside if fused else 0, _vectors(arch) + biases + router)


@lru_cache(maxsize=512)
def blocks(arch: Architecture, fused: bool = True) -> tuple[tuple[int, Block], ...]:
    """(how many, layer) for each kind of layer, first layers first. `fused`: experts are 3-D parameters."""
    if not arch.ffn.experts:
        return ((arch.layers, _dense_block(arch)),)
    kinds = [(arch.layers - arch.ffn.dense_layers, _mixture_block(arch, fused))]
    if arch.ffn.dense_layers:
        kinds.insert(0, (arch.ffn.dense_layers, _dense_block(arch)))
    return tuple(kinds)


@lru_cache(maxsize=512)
def parameters(arch: Architecture) -> int:
    """Exact number of parameters, derived from the shapes; a tied embedding counts once."""
    inside = sum(count * block.elements for count, block in blocks(arch))
    final_norm = arch.hidden * (2 if arch.norm_bias else 1)
    return inside + final_norm + embedding(arch) + head(arch)


def embedding(arch: Architecture) -> int:
    return arch.vocab * arch.hidden


def head(arch: Architecture) -> int:
    """Parameters of the output layer that are not the embedding's."""
    return (0 if arch.tied else arch.vocab * arch.hidden) + (arch.vocab if arch.head_bias else 0)


def linear_roles(arch: Architecture, fused: bool = True) -> tuple[str, ...]:
    """Roles of all linear modules inside the layers: what "all linear layers" means for an adapter."""
    return tuple(dict.fromkeys(linear.role for _, block in blocks(arch, fused) for linear in block.linears))


def adapter_elements(linear: Linear, workload: Workload) -> int:
    """Trained elements that the adapter adds to one kind of linear module.

    LoRA (arXiv 2106.09685): rank x (inputs + outputs); DoRA (2402.09353) adds a magnitude for each output; orthogonal
    fine-tuning (2306.07280) trains block (block - 1) / 2 elements for each block of the inputs."""
    adapter = workload.adapter
    if linear.role not in adapter.targets:
        return 0
    if workload.method == "oft":
        return linear.number * linear.inputs * (adapter.block - 1) // 2
    magnitude = linear.outputs if adapter.dora else 0
    return linear.number * (adapter.rank * (linear.inputs + linear.outputs) + magnitude)


@lru_cache(maxsize=2048)
def trainable_parameters(arch: Architecture, workload: Workload) -> int:
    """Number of parameters that receive gradients."""
    if workload.method == "full":
        return parameters(arch)
    if workload.method == "freeze":
        block = blocks(arch, workload.experts_fused)[-1][1]
        return workload.trainable_layers * block.elements + workload.trainable_extra
    inside = sum(
        count * adapter_elements(linear, workload)
        for count, block in blocks(arch, workload.experts_fused)
        for linear in block.linears
    )
    return inside + saved_elements(arch, workload)


def saved_elements(arch: Architecture, workload: Workload) -> int:
    """Elements of embedding and output layer that train whole beside an adapter."""
    adapted = workload.method in ("lora", "oft")
    return embedding(arch) * (int(workload.adapter.full_embedding) + int(workload.adapter.full_head)) if adapted else 0
