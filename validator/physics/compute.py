"""Seconds that a device computes in one layer, and in the output layer, of a micro batch, forward and backward: matrix
products and adapters, attention scores, routed experts, memory-bound work, dequantization, loss."""

from __future__ import annotations

from validator.physics.architecture import Linear, Mixer, key_width, output_width, query_width
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import TimeTerm
from validator.physics.rates import AttainedRates, PassCost
from validator.physics.training_step import TrainingStep


def linear_cost(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> PassCost:
    """Linear modules of the base that every token passes, with their adapters."""
    size = run.sizes.compute
    base = [linear for linear in block.linears if not linear.routed]
    once = sum(rates.product(run.tokens, each.inputs, each.outputs, size, each.number) for each in base)
    adapted = [adapter_cost(run, rates, each) for each in base if run.adapted(each)]
    forward, backward = sum(cost.forward for cost in adapted), sum(cost.backward for cost in adapted)
    return PassCost(TimeTerm.PRODUCTS, once + forward, (1 + weight_gradient_products(run)) * once + backward)


def weight_gradient_products(run: TrainingStep) -> float:
    """Products for gradients of weights that each product of the base brings: none where it is frozen; BAdam trains one
    block of layers at a time (arXiv 2404.02827)."""
    if run.adapts:
        return 0.0
    return 1 / run.arch.layers if run.work.optimizer == "badam" else 1.0


def early_stop_savings(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> float:
    """Seconds that checkpointing without re-entry saves: it stops once all tensors are there that gradients need (torch
    utils/checkpoint.py, early_stop), and the last product's result is not one of them."""
    last = block.down[-1:] if not (run.work.reentrant or block.mixture) else ()
    plain = [each for each in last if not run.adapted(each)]
    return sum(rates.product(run.tokens, each.inputs, each.outputs, run.sizes.compute) for each in plain)


def adapter_cost(run: TrainingStep, rates: AttainedRates, linear: Linear) -> PassCost:
    """The adapter of one module. LoRA (arXiv 2106.09685): two products through the rank, and around them its input
    brought to the adapter's precision, dropped out and brought back, its result scaled and added (peft,
    tuners/lora/layer.py, Linear.forward); DoRA (2402.09353) scales the base's result once more and takes the norm of
    the whole matrix. Orthogonal (2306.07280): blocks of the input are rotated before the base's product."""
    work, sizes, tokens = run.work, run.sizes, run.tokens
    if work.method == "oft":
        moved = linear.number * tokens * linear.inputs * (sizes.adapter + 2 * sizes.compute) / rates.bandwidth
        turned = rates.product(tokens, work.adapter.block, linear.inputs, sizes.compute, linear.number)
        return PassCost(TimeTerm.PRODUCTS, turned + moved, 2 * turned + 2 * moved)
    rank, size = work.adapter.rank, sizes.compute if work.precision == "amp" else sizes.adapter
    through = rates.product(tokens, linear.inputs, rank, size) + rates.product(tokens, rank, linear.outputs, size)
    around = linear.inputs * _adapter_input_bytes(run) + linear.outputs * 5 * size
    forward = through + tokens * around / rates.bandwidth
    backward = 2 * through + tokens * (around + 3 * size * linear.inputs) / rates.bandwidth
    if work.adapter.dora:
        extra = _dora_seconds(run, rates, linear)
        forward, backward = forward + extra, backward + extra
    return PassCost(TimeTerm.PRODUCTS, linear.number * forward, linear.number * backward)


def _adapter_input_bytes(run: TrainingStep) -> float:
    """Moved for each element of an adapted module's input: to the adapter's precision, through dropout, and back to
    what autocast computes in."""
    sizes = run.sizes
    raised = sizes.adapter + sizes.compute if sizes.adapter != sizes.compute else 0.0
    dropped = 2 * sizes.adapter + 1 if run.work.adapter.dropout else 0.0
    return raised * (2 if run.work.precision == "amp" else 1) + dropped


def _dora_seconds(run: TrainingStep, rates: AttainedRates, linear: Linear) -> float:
    """DoRA's norm of base and adapter together: their product made whole, and both read in fp32 (peft,
    tuners/lora/dora.py)."""
    whole = rates.product(linear.inputs, run.work.adapter.rank, linear.outputs, run.sizes.adapter)
    moved = 6 * 4.0 * linear.inputs * linear.outputs + 3 * run.sizes.compute * run.tokens * linear.outputs
    return whole + moved / rates.bandwidth


# Of what products attain: FlashAttention-2 reaches 73 % of an A100's rate forward and 63 % backward at a head of 128
# (arXiv 2307.08691); PyTorch's memory-efficient kernel, which takes masks, about half of that.
_FLASH_EFFICIENCY, _MASKED_EFFICIENCY = (0.80, 0.70), (0.45, 0.30)
# Bytes moved for each pair and head where scores are written out (transformers, eager_attention_forward): product,
# mask, softmax in fp32 and its cast, dropout, product; backward the same read and written for gradients.
_EAGER_BYTES, _EAGER_BYTES_BACKWARD = 26.0, 34.0


def attention_cost(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> PassCost:
    """What stands between the projections of a layer."""
    mixed = scored = PassCost(TimeTerm.ATTENTION, 0.0, 0.0)
    if block.mixer:
        mixed = _mixer_cost(run, rates, block, block.mixer)
    if block.attends:
        scored = _score_cost(run, rates)
    return PassCost(TimeTerm.ATTENTION, mixed.forward + scored.forward, mixed.backward + scored.backward)


def _mixer_cost(run: TrainingStep, rates: AttainedRates, block: DecoderLayer, mixer: Mixer) -> PassCost:
    """Seconds of a mixer's products over tokens or states, which the backward pass makes twice, and of its memory
    traffic."""
    products = mixer.matmul_flops(run) / rates.compute(mixer.matmul_element_size(run))
    traffic = mixer.traffic(run, block)
    moved = traffic.size / rates.bandwidth
    return PassCost(TimeTerm.ATTENTION, products + traffic.forward * moved, 2 * products + traffic.backward * moved)


def _score_cost(run: TrainingStep, rates: AttainedRates) -> PassCost:
    attn = run.arch.attn
    widths = query_width(attn) + output_width(attn)
    masked = run.work.attention == "sdpa" and (run.work.padded or attn.masked or attn.crossed)
    pairs = run.tokens * _attended_tokens(run, whole=masked or run.attends_in_squares)
    seconds = 2.0 * pairs * widths / rates.compute(run.sizes.compute)
    if run.attends_in_squares:
        squares = pairs * attn.heads / rates.bandwidth
        return PassCost(
            TimeTerm.ATTENTION, seconds + _EAGER_BYTES * squares, 2 * seconds + _EAGER_BYTES_BACKWARD * squares
        )
    if masked:  # by kernels of the first generation everywhere
        return PassCost(TimeTerm.ATTENTION, seconds / _MASKED_EFFICIENCY[0], 2.5 * seconds / _MASKED_EFFICIENCY[1])
    forward, backward = (rates.attention * share for share in _FLASH_EFFICIENCY)
    return PassCost(TimeTerm.ATTENTION, seconds / forward, 2.5 * seconds / backward)


def _attended_tokens(run: TrainingStep, whole: bool) -> float:
    """Tokens that one attends to: those of towers where layers read them; a kernel without a mask skips what comes
    later, and what lies outside the window of the layers that have one."""
    length, attn = float(run.work.length), run.arch.attn
    if attn.crossed:
        return float(sum(encoding.tokens for encoding in run.work.encodings))
    if whole:
        return length
    near = min(length, attn.window) if attn.window else length
    share = attn.window_share if attn.window else 0.0
    return share * near * (1 - near / (2 * length)) + (1 - share) * length / 2


# Times that a chosen token is read or written between products: gathered, weighted, masked, brought back in order,
# added (transformers, integrations/moe.py, grouped_mm_experts_forward).
_PERMUTATION_TRAFFIC = 9


def experts_reached(run: TrainingStep) -> float:
    """How many experts of a layer tokens reach: each token passes one by with probability 1 - chosen / all."""
    ffn = run.arch.ffn
    return float(ffn.experts * (1 - (1 - ffn.experts_per_token / ffn.experts) ** run.tokens))


def expert_cost(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> PassCost:
    """Products of the chosen experts, each by its share of the tokens; permuting tokens there and back."""
    ffn, hidden, size = run.arch.ffn, run.arch.hidden, run.sizes.compute
    if not ffn.experts or not block.mixture:
        return PassCost(TimeTerm.EXPERTS, 0.0, 0.0)
    reached = experts_reached(run)
    each = run.tokens * ffn.experts_per_token / reached
    shapes = (3 if ffn.gated else 2) * reached
    once = rates.product(each, hidden, ffn.expert_width, size, shapes)
    moved = (
        run.tokens
        * (ffn.experts_per_token * _PERMUTATION_TRAFFIC * size * hidden + 16.0 * ffn.experts)
        / rates.bandwidth
    )
    adapted = _expert_adapter_cost(run, rates, block)
    back = (1 + weight_gradient_products(run)) * once
    return PassCost(TimeTerm.EXPERTS, once + moved + adapted.forward, back + moved + adapted.backward)


def _expert_adapter_cost(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> PassCost:
    """Adapters of routed experts that are linear modules: each sees its share of the tokens."""
    costs = [adapter_cost(run, rates, each) for each in block.linears if each.routed and run.adapted(each)]
    share = run.arch.ffn.experts_per_token / run.arch.ffn.experts
    return PassCost(
        TimeTerm.EXPERTS, share * sum(cost.forward for cost in costs), share * sum(cost.backward for cost in costs)
    )


def elementwise_cost(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> PassCost:
    """All of a layer but its products and scores."""
    parts = (
        _norm_bytes(run, block),
        _activation_bytes(run, block),
        _rotary_bytes(run, block),
        _residual_bytes(run),
        _cast_bytes(run, block),
    )
    forward, backward = (sum(part) for part in zip(*parts, strict=True))
    each = run.tokens / rates.bandwidth
    return PassCost(TimeTerm.ELEMENTWISE, forward * each, backward * each)


def norm_traffic(run: TrainingStep) -> tuple[float, float]:
    """Bytes for each element of a norm, forward and backward. transformers writes RMSNorm out: to fp32, square, mean,
    product, back, weight (LlamaRMSNorm.forward); LayerNorm and Liger's kernels are one kernel each way."""
    stream = run.sizes.residual
    if run.work.fused_kernels or run.arch.norm in ("layer", "layer_back", "bare"):
        return 2 * stream, 4 * stream
    turned = 2 * (4 + stream) if stream < 4 else 0.0
    return turned + 20 + 2 * stream, turned + 40 + 3 * stream


def _norm_bytes(run: TrainingStep, block: DecoderLayer) -> tuple[float, float]:
    attn, (forward, backward) = run.arch.attn, norm_traffic(run)
    width = run.arch.norms_per_layer * run.arch.hidden
    if block.attends and (attn.head_norms or attn.whole_norms):
        width += query_width(attn) + key_width(attn)
    return width * forward, width * backward


def _activation_bytes(run: TrainingStep, block: DecoderLayer) -> tuple[float, float]:
    """Bytes per token. A gated one is an activation and a product of two, whose gradients are three kernels."""
    ffn, size = run.arch.ffn, run.sizes.compute
    width = (ffn.shared_width + ffn.experts_per_token * ffn.expert_width) if block.mixture else ffn.width
    if run.work.fused_kernels and ffn.gated:
        return 3 * size * width, 5 * size * width
    parts = (5, 9) if ffn.gated or ffn.quick else (2, 3)
    return parts[0] * size * width, parts[1] * size * width


def _rotary_bytes(run: TrainingStep, block: DecoderLayer) -> tuple[float, float]:
    """Bytes per token: queries and keys times cosine, halves exchanged, times sine, and their sum (transformers,
    apply_rotary_pos_emb), or one kernel."""
    if not block.attends or run.arch.attn.written:
        return 0.0, 0.0
    width = run.sizes.compute * (query_width(run.arch.attn) + key_width(run.arch.attn))
    passes = 2 if run.work.fused_kernels else 10
    return passes * width, passes * width


def _residual_bytes(run: TrainingStep) -> tuple[float, float]:
    """Bytes per token: two sums, and as many of gradients."""
    width = (7.0 if run.arch.dropout else 6.0) * run.sizes.residual * run.arch.hidden
    return width, width


def _cast_bytes(run: TrainingStep, block: DecoderLayer) -> tuple[float, float]:
    """Bytes per token: autocast brings an fp32 hidden state to half precision for every module that reads it."""
    sizes = run.sizes
    if sizes.residual <= sizes.compute:
        return 0.0, 0.0
    readers = sum(each.number for each in block.linears if each.inputs == run.arch.hidden and not each.routed)
    width = readers * (sizes.residual + sizes.compute) * run.arch.hidden
    return width, width


# Weights made whole in a second: the kernels are bound by instructions, not by memory (bitsandbytes, pull request 1747,
# which halves the time on A100 and H100). Packed and short runs of fms-acceleration on A100 give 0.7e11 to 1.2e11,
# litgpt's config hub on A10G 0.6e11.
_DEQUANTIZATION_RATE = 1.0e11


def dequantization_cost(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> PassCost:
    """Reads few bits and writes compute precision, in the forward and in the backward pass."""
    bits = run.work.quant_bits
    if not bits:
        return PassCost(TimeTerm.QUANTIZATION, 0.0, 0.0)
    if bits == 8:
        return _int8_cost(run, rates, block)
    moved = block.linear_elements * (bits / 8 + run.sizes.compute) / rates.bandwidth
    once = block.linear_elements / _DEQUANTIZATION_RATE + moved
    return PassCost(TimeTerm.QUANTIZATION, once, once)


def _int8_cost(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> PassCost:
    """LLM.int8() (arXiv 2208.07339): inputs are brought to 8 bits by row and by column and their outliers taken out,
    results come as 32 bits; the backward pass makes the weights whole."""
    moved = sum(each.number * (12 * each.inputs + 10 * each.outputs) for each in block.linears) * run.tokens
    whole = block.linear_elements / _DEQUANTIZATION_RATE
    return PassCost(TimeTerm.QUANTIZATION, moved / rates.bandwidth + whole, whole)


def weight_update_cost(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> PassCost:
    """Autocast makes a half-precision copy of each for a pass, and brings its gradient back; with accumulation that is
    added to an earlier one."""
    if run.adapts:
        return PassCost(TimeTerm.ELEMENTWISE, 0.0, 0.0)
    cast = (run.sizes.trained + 2.0) if run.sizes.casts else 0.0
    added = 3 * run.sizes.gradient if run.work.accumulation > 1 else 0.0
    seconds = block.matrices / rates.bandwidth
    return PassCost(TimeTerm.ELEMENTWISE, cast * seconds, (cast + added) * seconds)


LAYER_COST_FUNCTIONS = (linear_cost, attention_cost, expert_cost, elementwise_cost, dequantization_cost)


def layer_costs(run: TrainingStep, rates: AttainedRates, block: DecoderLayer) -> tuple[PassCost, ...]:
    """Costs on the device, by term."""
    inside = run.of(block)
    return tuple(part(inside, rates, block) for part in LAYER_COST_FUNCTIONS)


# Bytes moved for each logit beside its product: to fp32, log-softmax, the chosen ones; backward the gradients of both
# and back (transformers, loss/loss_utils.py, ForCausalLMLoss). Shifted logits are copied once more each way. A fused
# loss (Liger Kernel, ops/fused_linear_cross_entropy.py) reads and writes half-precision pieces.
_UPCAST_TRAFFIC, _SHIFTED_TRAFFIC, _FUSED_TRAFFIC = (18.0, 22.0), (26.0, 30.0), (10.0, 0.0)


def lm_head_cost(run: TrainingStep, rates: AttainedRates) -> PassCost:
    """Final norm, product with the vocabulary and loss. A fused loss makes gradients in the forward pass."""
    forward, backward = norm_traffic(run)
    moved = run.tokens * run.arch.hidden / rates.bandwidth
    final = PassCost(TimeTerm.HEAD, forward * moved, backward * moved)
    if run.work.value_head and not run.work.needs_full_logits:
        return final
    once = rates.product(run.tokens, run.arch.hidden, run.arch.vocab, run.sizes.compute)
    gradients = once * (2 if run.trains_head else 1)
    made, unmade = {"upcast": _UPCAST_TRAFFIC, "shifted": _SHIFTED_TRAFFIC, "fused": _FUSED_TRAFFIC}[run.work.loss]
    logits = run.tokens * run.arch.vocab / rates.bandwidth
    if run.work.loss == "fused":
        return PassCost(TimeTerm.HEAD, final.forward + once + gradients + made * logits, final.backward)
    return PassCost(TimeTerm.HEAD, final.forward + once + made * logits, final.backward + gradients + unmade * logits)
