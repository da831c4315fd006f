"""What one decoder layer keeps for its backward pass, and what the backward pass itself needs. Bytes of a micro batch.

Derived from the operators' own rules: autograd keeps a linear module's input only if the weight trains, a product keeps
both factors, softmax its result, flash attention q, k, v, its output and one fp32 number per head and token
(arXiv 2205.14135); norms work on an fp32 copy. Checked operator by operator against benchmarks/simulate.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from .precision import Bytes, element_bytes
from .shapes import Block, Linear, attends_in_squares, key_width, output_width, query_width, value_width
from .workload import Architecture, Ffn, Workload


class Kept(NamedTuple):
    """Bytes kept by the two halves of a layer, and the largest transients of their backward passes."""

    attention: float
    ffn: float
    attention_peak: float
    ffn_peak: float

    @property
    def total(self) -> float:
        return self.attention + self.ffn

    @property
    def peak(self) -> float:
        """The feed-forward half goes first, with everything still kept; the attention half when it has been freed."""
        return max(self.total + self.ffn_peak, self.attention + self.attention_peak)


def tokens(workload: Workload) -> int:
    return workload.micro_batch * workload.sequences_per_sample * workload.length


def _trains(workload: Workload) -> bool:
    """Whether base weights of the layer receive gradients."""
    return workload.method in ("full", "freeze")


def norm_kept(width: int, entering: float, gemma: bool, workload: Workload) -> float:
    """Bytes per token: the fp32 input, and the normalized value if the norm's weight trains; a fused kernel keeps its
    input as it is (Liger Kernel 0.8, ops/rms_norm.py)."""
    if workload.fused_kernels:
        return width * entering
    normalized = (4.0 if gemma else entering) if _trains(workload) else 0.0
    return width * (4.0 + normalized)


def _shares_inputs(sizes: Bytes, workload: Workload) -> bool:
    """Whether a module keeps its input as it is, in compute precision, so that another keeper costs nothing."""
    if _trains(workload):
        return True
    same = sizes.adapter == sizes.compute or (workload.quant_bits > 0 and workload.precision == "amp")
    return same and not workload.adapter.dropout


def _adapted_input(width: int, modules: int, sizes: Bytes, workload: Workload) -> float:
    """Bytes per token that `modules` adapted modules keep of one shared input of `width`.

    Under autocast each casts to the adapter's fp32 and back: a half-precision copy each. Without autocast the fp32 copy
    itself is kept. bitsandbytes modules and half-precision adapters share the input as it is."""
    if modules == 0:
        return 0.0
    masks = float(modules * width) if workload.adapter.dropout else 0.0
    if _shares_inputs(sizes, workload):
        return sizes.compute * width
    each = sizes.compute if workload.precision == "amp" else sizes.adapter
    return modules * each * width + masks


def input_kept(
    width: int,
    roles: tuple[Linear, ...],
    produced_half: bool,
    sizes: Bytes,
    workload: Workload,
    elsewhere: bool = False,
) -> float:
    """Bytes per token kept as input of linear modules that read the same tensor. `produced_half`: it is already in
    compute precision. `elsewhere`: another operator keeps it as it is, which the caller counts."""
    if _trains(workload):
        copies = len(roles) if sizes.casts and not produced_half else 1
        return copies * sizes.compute * width
    adapted = [linear for linear in roles if linear.role in workload.adapter.targets]
    inner = sizes.compute if workload.precision == "amp" else sizes.adapter
    low_rank = workload.adapter.rank * inner * len(adapted) if workload.method == "lora" else 0.0
    eight = 0.0 if elsewhere else _kept_by_8bit(width, adapted, sizes, workload)
    return _adapted_input(width, len(adapted), sizes, workload) + low_rank + eight


def _kept_by_8bit(width: int, adapted: list[Linear], sizes: Bytes, workload: Workload) -> float:
    """Bytes per token of the input that 8-bit products keep although their weight is frozen (bitsandbytes,
    MatMul8bitLt), where no adapter keeps the same tensor."""
    shared = bool(adapted) and _shares_inputs(sizes, workload)
    eight = workload.quant_bits == 8 and not workload.quant_grouped
    return sizes.compute * width if eight and not shared else 0.0


def _by_role(block: Block, *roles: str) -> tuple[Linear, ...]:
    return tuple(linear for linear in block.linears if linear.role in roles)


def _dense_mask(arch: Architecture, workload: Workload) -> float:
    """Share of layers in which sdpa gets a dense mask: all with padding, the sliding half once the window is
    reached."""
    if workload.attention != "sdpa":
        return 0.0
    if workload.padded:
        return 1.0
    return 0.5 if arch.attn.window and workload.length >= arch.attn.window else 0.0


def _attention_core(arch: Architecture, workload: Workload, compute: float) -> float:
    """Bytes kept between the projections and the output projection."""
    attn, count, length = arch.attn, tokens(workload), workload.length
    queries, output = query_width(attn), output_width(attn)
    narrow = key_width(attn) + value_width(attn)
    wide = queries + output
    if attends_in_squares(arch, workload):
        square = float(count * attn.heads * length)
        repeated = wide if attn.kv_heads != attn.heads else narrow
        half = compute if compute < 4 else 0.0
        capped = compute if arch.logit_softcap else 0.0
        scores = compute if attn.sinks else 4 + half + capped  # beside sinks the softmax is made in half precision
        return count * compute * (queries + repeated) + square * scores
    dense = _dense_mask(arch, workload)
    if attn.fused:  # the values are a view, which holds the queries and keys as they were before their rotation
        narrow += query_width(attn) + key_width(attn)
    keys = narrow + dense * (wide - narrow)
    return count * (compute * (queries + keys + output) + 4 * attn.heads) + dense * 2.0 * count * length


def _latent_kept(arch: Architecture, block: Block, sizes: Bytes, workload: Workload) -> float:
    """Bytes per token of the low-rank steps of latent attention: their norms and the inputs of their second halves."""
    attn = arch.attn
    kept = 0.0
    for rank, role in ((attn.q_rank, "q_b"), (attn.kv_rank, "kv_b")):
        if rank:
            kept += norm_kept(rank, 2, False, workload)
            kept += input_kept(rank, _by_role(block, role), False, sizes, workload)
    return kept


def _attention(arch: Architecture, block: Block, workload: Workload) -> float:
    attn, sizes, count = arch.attn, element_bytes(workload), tokens(workload)
    readers = _by_role(block, "q", "k", "v", "qkv", "q_a", "kv_a")
    per_token = _norms(arch, workload) + input_kept(arch.hidden, readers, False, sizes, workload)
    per_token += _magnitudes((*readers, *_by_role(block, "q_b", "kv_b", "o")), workload)
    if attn.head_norms:
        per_token += norm_kept(query_width(attn) + key_width(attn), 2, False, workload)
    per_token += _latent_kept(arch, block, sizes, workload)
    in_core = not (attends_in_squares(arch, workload) or attn.concatenated)
    if not in_core or not _shares_inputs(sizes, workload):
        per_token += input_kept(output_width(attn), _by_role(block, "o"), True, sizes, workload, in_core)
    return count * per_token + _attention_core(arch, workload, sizes.compute)


def _magnitudes(linears: tuple[Linear, ...], workload: Workload) -> float:
    """Bytes per token that DoRA's magnitudes add: they scale the base's and the adapter's result, so both are kept."""
    if not workload.adapter.dora:
        return 0.0
    adapted = sum(linear.outputs for linear in linears if linear.role in workload.adapter.targets)
    return 2 * element_bytes(workload).compute * adapted


def _rotations(block: Block, workload: Workload) -> float:
    """Bytes of the orthogonal matrices of one layer, with two powers of the series that makes them, in fp32."""
    if workload.method != "oft":
        return 0.0
    adapted = sum(linear.inputs for linear in block.linears if linear.role in workload.adapter.targets)
    return 3 * 4.0 * workload.adapter.block * adapted


def _norms(arch: Architecture, workload: Workload) -> float:
    """Bytes per token of half a layer's norms: one on the hidden state, and with four a layer one on the result too."""
    sizes = element_bytes(workload)
    gemma = arch.norms_per_layer == 4
    before = norm_kept(arch.hidden, sizes.residual, gemma, workload)
    return before + (norm_kept(arch.hidden, 2, gemma, workload) if gemma else 0.0)


def _dense_ffn(arch: Architecture, block: Block, width: int, workload: Workload) -> float:
    """Bytes per token: results of gate and up, the activation, and their product if `down` trains or is adapted. A
    fused kernel makes the activation again (Liger Kernel 0.8, ops/swiglu.py)."""
    sizes = element_bytes(workload)
    readers = _by_role(block, "gate", "up", "gate_up")
    parts = (2 if workload.fused_kernels else 3) if arch.ffn.gated else 1
    kept = parts * sizes.compute * width
    kept += input_kept(arch.hidden, readers, False, sizes, workload)
    kept += _magnitudes((*readers, *_by_role(block, "down")), workload)
    return kept + input_kept(width, _by_role(block, "down")[:1], True, sizes, workload)


def _experts(ffn: Ffn, hidden: int, sizes: Bytes, workload: Workload) -> float:
    """Bytes per token of routed experts: results of both matrices, the activation, the router's fp32 probabilities;
    clamped ones also the clamped results and the gate in two steps; with trained experts also the router's input, its
    copy for each chosen expert, and the product."""
    chosen = ffn.experts_per_token
    parts = (3 if ffn.gated else 2) + (3 if ffn.clamped else 0)
    kept = sizes.compute * chosen * (parts * ffn.expert_width + hidden) + 4.0 * ffn.experts
    if _trains(workload) or not workload.experts_fused:
        kept += sizes.compute * (chosen * (ffn.expert_width + hidden) + hidden)
    return kept


def _ffn(arch: Architecture, block: Block, workload: Workload) -> float:
    ffn, sizes = arch.ffn, element_bytes(workload)
    per_token = _norms(arch, workload)
    if block.experts or _by_role(block, "router"):
        per_token += _experts(ffn, arch.hidden, sizes, workload)
        if ffn.shared_width:
            per_token += _dense_ffn(arch, block, ffn.shared_width, workload)
    else:
        per_token += _dense_ffn(arch, block, ffn.width, workload)
    return tokens(workload) * per_token


def _ffn_peak(arch: Architecture, block: Block, workload: Workload) -> float:
    """Transients of the feed-forward backward: gradients of product, activation and up while the product is freed, of
    which a fused kernel writes all but the first over what it kept; or the fp32 temporaries of a norm on the block's
    result."""
    sizes, count = element_bytes(workload), tokens(workload)
    experts = bool(block.experts)
    width = arch.ffn.experts_per_token * arch.ffn.expert_width if experts else arch.ffn.width
    chosen = sizes.compute * arch.ffn.experts_per_token * arch.hidden if experts else 0.0
    inside = (1.0 if workload.fused_kernels and not experts else 2.0) * sizes.compute * width + chosen
    norm = 16.0 * arch.hidden if arch.norms_per_layer == 4 and not workload.fused_kernels else 0.0
    return count * (max(inside, norm) + sizes.residual * arch.hidden)


def _attention_peak(arch: Architecture, workload: Workload) -> float:
    """Transients of the attention backward: gradients of q, k, v and the output, flash attention's fp32 accumulator and
    expanded key gradients (FlashAttention-2, arXiv 2307.08691); eager attention holds three squares in fp32."""
    attn, sizes, count = arch.attn, element_bytes(workload), tokens(workload)
    wide = query_width(attn) + output_width(attn)
    gradients = sizes.compute * (wide + key_width(attn) + value_width(attn)) + 2 * sizes.residual * arch.hidden
    if attends_in_squares(arch, workload):
        square = 8.0 - (sizes.compute if sizes.compute < 4 else 0.0)
        return count * (gradients + square * attn.heads * workload.length)
    expanded = 2 * sizes.compute * query_width(attn) if attn.kv_heads != attn.heads else 0.0
    return count * (gradients + 4.0 * query_width(attn) + expanded)


@lru_cache(maxsize=4096)
def layer(arch: Architecture, block: Block, workload: Workload) -> Kept:
    """Everything one layer of this kind keeps for its backward pass, and the peaks inside that pass."""
    return Kept(
        attention=_attention(arch, block, workload) + _rotations(block, workload),
        ffn=_ffn(arch, block, workload),
        attention_peak=_attention_peak(arch, workload),
        ffn_peak=_ffn_peak(arch, block, workload),
    )
