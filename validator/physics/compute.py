"""Seconds that a device computes in one layer, and in the output layer, of a micro batch, forward and backward: matrix
products and adapters, attention scores, routed experts, memory-bound work, dequantization, loss."""

from __future__ import annotations

from validator.physics.architecture import NORMS, Linear, Mixer
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import TimeTerm
from validator.physics.rates import AttainedRates, PassCost
from validator.physics.training_step import TrainingStep


def linear_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of the base model's linear modules that every token passes through, with their adapters."""
    size = step.sizes.compute
    base = [linear for linear in layer.linears if not linear.routed]
    once = sum(rates.product(step.tokens, each.inputs, each.outputs, size, each.number) for each in base)
    adapted = [adapter_cost(step, rates, each) for each in base if step.is_adapted(each)]
    forward, backward = sum(cost.forward for cost in adapted), sum(cost.backward for cost in adapted)
    return PassCost(TimeTerm.MATMUL, once + forward, (1 + weight_gradient_products(step)) * once + backward)


def weight_gradient_products(step: TrainingStep) -> float:
    """Number of matrix products for weight gradients per product of the base model: none for frozen weights. BAdam
    trains one block of layers at a time (arXiv 2404.02827)."""
    if step.trains_adapter:
        return 0.0
    return 1 / step.arch.layers if step.optimizer.states == "one layer" else 1.0


def early_stop_savings(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> float:
    """Seconds that non-reentrant checkpointing saves: recomputation stops once all saved tensors exist (torch
    utils/checkpoint.py, early_stop), and the result of the last product is not one of them."""
    last = layer.down[-1:] if not (step.work.reentrant or layer.mixture) else ()
    plain = [each for each in last if not step.is_adapted(each)]
    return sum(rates.product(step.tokens, each.inputs, each.outputs, step.sizes.compute) for each in plain)


def adapter_cost(step: TrainingStep, rates: AttainedRates, linear: Linear) -> PassCost:
    """Seconds of the adapter of one module. LoRA (arXiv 2106.09685): two products through the rank; the input is cast
    to the adapter's precision, goes through dropout and is cast back; the result is scaled and added (peft,
    tuners/lora/layer.py, Linear.forward). DoRA (2402.09353) also scales the base's result and takes the norm of the
    whole matrix. OFT (2306.07280) rotates blocks of the input before the base's product."""
    work, sizes, tokens = step.work, step.sizes, step.tokens
    if work.method == "oft":
        moved = linear.number * tokens * linear.inputs * (sizes.adapter + 2 * sizes.compute) / rates.bandwidth
        turned = rates.product(tokens, work.adapter.block_size, linear.inputs, sizes.compute, linear.number)
        return PassCost(TimeTerm.MATMUL, turned + moved, 2 * turned + 2 * moved)
    rank, size = work.adapter.rank, sizes.compute if work.precision == "amp" else sizes.adapter
    through = rates.product(tokens, linear.inputs, rank, size) + rates.product(tokens, rank, linear.outputs, size)
    around = linear.inputs * _adapter_input_bytes(step) + linear.outputs * 5 * size
    forward = through + tokens * around / rates.bandwidth
    backward = 2 * through + tokens * (around + 3 * size * linear.inputs) / rates.bandwidth
    if work.adapter.dora:
        extra = _dora_seconds(step, rates, linear)
        forward, backward = forward + extra, backward + extra
    return PassCost(TimeTerm.MATMUL, linear.number * forward, linear.number * backward)


def _adapter_input_bytes(step: TrainingStep) -> float:
    """Bytes moved per element of an adapted module's input: the cast to the adapter's precision, dropout, and the cast
    back to autocast's precision."""
    sizes = step.sizes
    raised = sizes.adapter + sizes.compute if sizes.adapter != sizes.compute else 0.0
    dropped = 2 * sizes.adapter + 1 if step.work.adapter.dropout else 0.0
    return raised * (2 if step.work.precision == "amp" else 1) + dropped


def _dora_seconds(step: TrainingStep, rates: AttainedRates, linear: Linear) -> float:
    """Seconds of DoRA's norm of base and adapter together: the adapter's product is materialized, and both matrices are
    read in fp32 (peft, tuners/lora/dora.py)."""
    product = rates.product(linear.inputs, step.work.adapter.rank, linear.outputs, step.sizes.adapter)
    moved = 6 * 4.0 * linear.inputs * linear.outputs + 3 * step.sizes.compute * step.tokens * linear.outputs
    return product + moved / rates.bandwidth


# Of what products attain: FlashAttention-2 reaches 73 % of an A100's rate forward and 63 % backward at a head of 128
# (arXiv 2307.08691); PyTorch's memory-efficient kernel, which takes masks, about half of that.
_FLASH_EFFICIENCY, _MASKED_EFFICIENCY = (0.80, 0.70), (0.45, 0.30)
# Bytes moved for each pair and head where scores are written out (transformers, eager_attention_forward): product,
# mask, softmax in fp32 and its cast, dropout, product; backward the same read and written for gradients.
_EAGER_BYTES, _EAGER_BYTES_BACKWARD = 26.0, 34.0


def attention_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of attention and mixer in one layer, between the projections."""
    mixed = scored = PassCost(TimeTerm.ATTENTION, 0.0, 0.0)
    if layer.mixer:
        mixed = _mixer_cost(step, rates, layer, layer.mixer)
    if layer.attends:
        scored = _score_cost(step, rates)
    return PassCost(TimeTerm.ATTENTION, mixed.forward + scored.forward, mixed.backward + scored.backward)


def _mixer_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer, mixer: Mixer) -> PassCost:
    """Seconds of a mixer's products over tokens or states, which the backward pass makes twice, and of its memory
    traffic."""
    products = mixer.matmul_flops(step) / rates.flops(mixer.matmul_element_size(step))
    traffic = mixer.traffic(step, layer)
    moved = traffic.size / rates.bandwidth
    return PassCost(TimeTerm.ATTENTION, products + traffic.forward * moved, 2 * products + traffic.backward * moved)


def _score_cost(step: TrainingStep, rates: AttainedRates) -> PassCost:
    attn = step.arch.attn
    widths = attn.query_width + attn.output_width
    kernel = step.timed_attention_kernel
    pairs = step.tokens * _attended_tokens(step, whole=kernel != "flash")
    seconds = 2.0 * pairs * widths / rates.flops(step.sizes.compute)
    if kernel == "eager":
        squares = pairs * attn.heads / rates.bandwidth
        return PassCost(
            TimeTerm.ATTENTION, seconds + _EAGER_BYTES * squares, 2 * seconds + _EAGER_BYTES_BACKWARD * squares
        )
    if kernel == "efficient":  # of the first generation everywhere
        return PassCost(TimeTerm.ATTENTION, seconds / _MASKED_EFFICIENCY[0], 2.5 * seconds / _MASKED_EFFICIENCY[1])
    forward, backward = (rates.attention_efficiency * share for share in _FLASH_EFFICIENCY)
    return PassCost(TimeTerm.ATTENTION, seconds / forward, 2.5 * seconds / backward)


def _attended_tokens(step: TrainingStep, whole: bool) -> float:
    """Number of tokens that one token attends to: the towers' in layers that read them; else those of the sequence. A
    kernel without a mask skips later tokens, and tokens outside the window of layers that have one."""
    length, attn = float(step.work.length), step.arch.attn
    if attn.cross_attention:
        return float(sum(encoding.tokens for encoding in step.work.towers))
    if whole:
        return length
    near = min(length, attn.window) if attn.window else length
    share = attn.window_share if attn.window else 0.0
    return share * near * (1 - near / (2 * length)) + (1 - share) * length / 2


# Times that a chosen token is read or written between products: gathered, weighted, masked, brought back in order,
# added (transformers, integrations/moe.py, grouped_mm_experts_forward).
_PERMUTATION_TRAFFIC = 9


def experts_reached(step: TrainingStep) -> float:
    """Number of experts of a layer that tokens reach: each token passes one by with probability 1 - chosen / all."""
    ffn = step.arch.ffn
    return float(ffn.experts * (1 - (1 - ffn.experts_per_token / ffn.experts) ** step.tokens))


def expert_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of the products of the chosen experts, each with its share of the tokens, and of permuting tokens there
    and back."""
    ffn, hidden, size = step.arch.ffn, step.arch.hidden, step.sizes.compute
    if not ffn.experts or not layer.mixture:
        return PassCost(TimeTerm.EXPERTS, 0.0, 0.0)
    reached = experts_reached(step)
    each = step.tokens * ffn.experts_per_token / reached
    shapes = (3 if ffn.gated else 2) * reached
    once = rates.product(each, hidden, ffn.expert_width, size, shapes)
    moved = (
        step.tokens
        * (ffn.experts_per_token * _PERMUTATION_TRAFFIC * size * hidden + 16.0 * ffn.experts)
        / rates.bandwidth
    )
    adapted = _expert_adapter_cost(step, rates, layer)
    back = (1 + weight_gradient_products(step)) * once
    return PassCost(TimeTerm.EXPERTS, once + moved + adapted.forward, back + moved + adapted.backward)


def _expert_adapter_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of the adapters of routed experts that are linear modules: each sees its share of the tokens."""
    costs = [adapter_cost(step, rates, each) for each in layer.linears if each.routed and step.is_adapted(each)]
    share = step.arch.ffn.experts_per_token / step.arch.ffn.experts
    return PassCost(
        TimeTerm.EXPERTS, share * sum(cost.forward for cost in costs), share * sum(cost.backward for cost in costs)
    )


def elementwise_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of a layer's memory-bound work: norms, activation, rotary embedding, residual sums and their gradients,
    casts."""
    attn, traffic = step.arch.attn, norm_traffic(step)
    normed = step.arch.norms_per_layer * step.arch.hidden
    if layer.attends and (attn.qk_norm or attn.full_width_qk_norm):
        normed += attn.query_width + attn.key_width
    residual = (7.0 if step.arch.dropout else 6.0) * step.sizes.residual * step.arch.hidden
    parts = (
        (normed * traffic[0], normed * traffic[1]),
        _activation_bytes(step, layer),
        _rotary_bytes(step, layer),
        (residual, residual),
        _cast_bytes(step, layer),
    )
    forward, backward = (sum(part) for part in zip(*parts, strict=True))
    each = step.tokens / rates.bandwidth
    return PassCost(TimeTerm.ELEMENTWISE, forward * each, backward * each)


def norm_traffic(step: TrainingStep) -> tuple[float, float]:
    """Bytes moved per element of a norm, in the forward and in the backward pass. transformers writes RMSNorm out: to
    fp32, square, mean, product, back, weight (LlamaRMSNorm.forward); LayerNorm and Liger's kernels are one kernel in
    each pass."""
    stream = step.sizes.residual
    if step.work.fused_kernels or NORMS[step.arch.norm].one_kernel:
        return 2 * stream, 4 * stream
    turned = 2 * (4 + stream) if stream < 4 else 0.0
    return turned + 20 + 2 * stream, turned + 40 + 3 * stream


def _activation_bytes(step: TrainingStep, layer: DecoderLayer) -> tuple[float, float]:
    """Bytes moved per token by the activation. A gated activation also multiplies two values, whose gradients take
    three kernels."""
    ffn, size = step.arch.ffn, step.sizes.compute
    width = (ffn.shared_width + ffn.experts_per_token * ffn.expert_width) if layer.mixture else ffn.width
    if step.work.fused_kernels and ffn.gated:
        return 3 * size * width, 5 * size * width
    parts = (5, 9) if ffn.gated or ffn.quick_gelu else (2, 3)
    return parts[0] * size * width, parts[1] * size * width


def _rotary_bytes(step: TrainingStep, layer: DecoderLayer) -> tuple[float, float]:
    """Bytes moved per token by rotary embeddings: queries and keys times cosine, halves exchanged, times sine, and the
    sum (transformers, apply_rotary_pos_emb), or one kernel."""
    if not layer.attends or step.arch.attn.alibi:
        return 0.0, 0.0
    width = step.sizes.compute * (step.arch.attn.query_width + step.arch.attn.key_width)
    passes = 2 if step.work.fused_kernels else 10
    return passes * width, passes * width


def _cast_bytes(step: TrainingStep, layer: DecoderLayer) -> tuple[float, float]:
    """Bytes moved per token by casts: autocast converts an fp32 hidden state to half precision for every module that
    reads it."""
    sizes = step.sizes
    if sizes.residual <= sizes.compute:
        return 0.0, 0.0
    readers = sum(each.number for each in layer.linears if each.inputs == step.arch.hidden and not each.routed)
    width = readers * (sizes.residual + sizes.compute) * step.arch.hidden
    return width, width


# Weights made whole in a second: the kernels are bound by instructions, not by memory (bitsandbytes, pull request 1747,
# which halves the time on A100 and H100). Packed and short runs of fms-acceleration on A100 give 0.7e11 to 1.2e11,
# litgpt's config hub on A10G 0.6e11.
_DEQUANTIZATION_RATE = 1.0e11


def dequantization_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of dequantization, which reads quantized weights and writes compute precision in both passes."""
    bits = step.work.quant_bits
    if not bits:
        return PassCost(TimeTerm.QUANTIZATION, 0.0, 0.0)
    if bits == 8:
        return _int8_cost(step, rates, layer)
    moved = layer.linear_elements * (bits / 8 + step.sizes.compute) / rates.bandwidth
    once = layer.linear_elements / _DEQUANTIZATION_RATE + moved
    return PassCost(TimeTerm.QUANTIZATION, once, once)


def _int8_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of LLM.int8() (arXiv 2208.07339) beside the products: inputs are quantized to 8 bits by row and by column
    without their outliers, and results come as 32 bits; the backward pass dequantizes the weights."""
    moved = sum(each.number * (12 * each.inputs + 10 * each.outputs) for each in layer.linears) * step.tokens
    whole = layer.linear_elements / _DEQUANTIZATION_RATE
    return PassCost(TimeTerm.QUANTIZATION, moved / rates.bandwidth + whole, whole)


def weight_update_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of autocast for trained weights: a half-precision copy of each for every pass, and the cast of its
    gradient back, which accumulation adds to an earlier one."""
    if step.trains_adapter:
        return PassCost(TimeTerm.ELEMENTWISE, 0.0, 0.0)
    cast = (step.sizes.trained + 2.0) if step.sizes.autocast_copies else 0.0
    added = 3 * step.sizes.gradient if step.work.accumulation > 1 else 0.0
    seconds = layer.matrices / rates.bandwidth
    return PassCost(TimeTerm.ELEMENTWISE, cast * seconds, (cast + added) * seconds)


LAYER_COST_FUNCTIONS = (linear_cost, attention_cost, expert_cost, elementwise_cost, dequantization_cost)


def layer_costs(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> tuple[PassCost, ...]:
    """Return the costs of one layer on the device, by term."""
    inside = step.for_layer(layer)
    return tuple(part(inside, rates, layer) for part in LAYER_COST_FUNCTIONS)


# Bytes moved for each logit beside its product: to fp32, log-softmax, the chosen ones; backward the gradients of both
# and back (transformers, loss/loss_utils.py, ForCausalLMLoss). Shifted logits are copied once more each way. A fused
# loss (Liger Kernel, ops/fused_linear_cross_entropy.py) reads and writes half-precision pieces.
_UPCAST_TRAFFIC, _SHIFTED_TRAFFIC, _FUSED_TRAFFIC = (18.0, 22.0), (26.0, 30.0), (10.0, 0.0)


def lm_head_cost(step: TrainingStep, rates: AttainedRates) -> PassCost:
    """Seconds of final norm, product with the vocabulary and loss. A fused loss makes its gradients in the forward
    pass."""
    forward, backward = norm_traffic(step)
    moved = step.tokens * step.arch.hidden / rates.bandwidth
    final = PassCost(TimeTerm.HEAD, forward * moved, backward * moved)
    if step.work.value_head and not step.work.needs_full_logits:
        return final
    product = rates.product(step.tokens, step.arch.hidden, step.arch.vocab, step.sizes.compute)
    gradients = product * (2 if step.trains_head else 1)
    forward_traffic, backward_traffic = {
        "upcast": _UPCAST_TRAFFIC,
        "shifted": _SHIFTED_TRAFFIC,
        "fused": _FUSED_TRAFFIC,
    }[step.work.loss]
    logits = step.tokens * step.arch.vocab / rates.bandwidth
    if step.work.loss == "fused":
        return PassCost(TimeTerm.HEAD, final.forward + product + gradients + forward_traffic * logits, final.backward)
    return PassCost(
        TimeTerm.HEAD,
        final.forward + product + forward_traffic * logits,
        final.backward + gradients + backward_traffic * logits,
    )
