"""Seconds of computation on the device in one layer and in the output layer, forward and backward, per micro batch:
matmuls and adapters, attention scores, routed experts, memory-bound work, dequantization, loss."""

from __future__ import annotations

from validator.physics.architecture import NORMS, Linear, Mixer
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import TimeTerm
from validator.physics.rates import AttainedRates, PassCost
from validator.physics.training_step import TrainingStep


def linear_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of one layer's linear modules that every token passes, with their adapters. Routed experts are not
    included."""
    size = step.sizes.compute
    base = [linear for linear in layer.linears if not linear.routed]
    matmul = sum(rates.product(step.tokens, each.inputs, each.outputs, size, each.number) for each in base)
    adapters = [adapter_cost(step, rates, each) for each in base if step.is_adapted(each)]
    forward, backward = sum(cost.forward for cost in adapters), sum(cost.backward for cost in adapters)
    return PassCost(TimeTerm.MATMUL, matmul + forward, (1 + weight_gradient_products(step)) * matmul + backward)


def weight_gradient_products(step: TrainingStep) -> float:
    """Number of matmuls for weight gradients per forward matmul of the base model: 0 if the base weights are frozen,
    else 1. BAdam trains one block of layers at a time (arXiv 2404.02827), so for BAdam the number is 1 divided by the
    number of layers."""
    if step.trains_adapter:
        return 0.0
    return 1 / step.arch.layers if step.optimizer.states == "one layer" else 1.0


def early_stop_savings(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> float:
    """Seconds of one layer's recomputation that non-reentrant checkpointing saves. Recomputation stops once all tensors
    exist that gradients need (torch utils/checkpoint.py, early_stop), and the result of the layer's last matmul is not
    needed. Zero under reentrant checkpointing, for mixtures of experts, and if the last module has an adapter."""
    candidates = layer.down[-1:] if not (step.work.reentrant or layer.mixture) else ()
    linears = [each for each in candidates if not step.is_adapted(each)]
    return sum(rates.product(step.tokens, each.inputs, each.outputs, step.sizes.compute) for each in linears)


def adapter_cost(step: TrainingStep, rates: AttainedRates, linear: Linear) -> PassCost:
    """Seconds of the adapters of `linear`, forward and backward.

    LoRA (arXiv 2106.09685) runs two matmuls through the rank; the input is cast to the adapter's precision, dropped out
    and cast back, and the result is scaled and added (peft, tuners/lora/layer.py, Linear.forward). DoRA (2402.09353)
    scales the base module's result once more and takes the norm of the whole matrix. Orthogonal fine-tuning
    (2306.07280) rotates blocks of the input before the base module's matmul."""
    work, sizes, tokens = step.work, step.sizes, step.tokens
    if work.method == "oft":
        transfer = linear.number * tokens * linear.inputs * (sizes.adapter + 2 * sizes.compute) / rates.bandwidth
        rotation = rates.product(tokens, work.adapter.block_size, linear.inputs, sizes.compute, linear.number)
        return PassCost(TimeTerm.MATMUL, rotation + transfer, 2 * rotation + 2 * transfer)
    rank, size = work.adapter.rank, sizes.compute if work.precision == "amp" else sizes.adapter
    matmul = rates.product(tokens, linear.inputs, rank, size) + rates.product(tokens, rank, linear.outputs, size)
    traffic = linear.inputs * _adapter_input_bytes(step) + linear.outputs * 5 * size
    forward = matmul + tokens * traffic / rates.bandwidth
    backward = 2 * matmul + tokens * (traffic + 3 * size * linear.inputs) / rates.bandwidth
    if work.adapter.dora:
        dora = _dora_seconds(step, rates, linear)
        forward, backward = forward + dora, backward + dora
    return PassCost(TimeTerm.MATMUL, linear.number * forward, linear.number * backward)


def _adapter_input_bytes(step: TrainingStep) -> float:
    """Bytes moved per element of an adapted module's input: the cast to the adapter's precision, dropout, and the cast
    back to the precision that autocast computes in."""
    sizes = step.sizes
    cast = sizes.adapter + sizes.compute if sizes.adapter != sizes.compute else 0.0
    dropout = 2 * sizes.adapter + 1 if step.work.adapter.dropout else 0.0
    return cast * (2 if step.work.precision == "amp" else 1) + dropout


def _dora_seconds(step: TrainingStep, rates: AttainedRates, linear: Linear) -> float:
    """Seconds that DoRA adds to each pass of one module. DoRA needs the norm of base and adapter together: it
    multiplies the adapter's two matrices to the full size and reads both full matrices in fp32 (peft,
    tuners/lora/dora.py)."""
    product = rates.product(linear.inputs, step.work.adapter.rank, linear.outputs, step.sizes.adapter)
    traffic = 6 * 4.0 * linear.inputs * linear.outputs + 3 * step.sizes.compute * step.tokens * linear.outputs
    return product + traffic / rates.bandwidth


# Of what products attain: FlashAttention-2 reaches 73 % of an A100's rate forward and 63 % backward at a head of 128
# (arXiv 2307.08691); PyTorch's memory-efficient kernel, which takes masks, about half of that.
_FLASH_EFFICIENCY, _MASKED_EFFICIENCY = (0.80, 0.70), (0.45, 0.30)
# Bytes moved for each pair and head where scores are written out (transformers, eager_attention_forward): product,
# mask, softmax in fp32 and its cast, dropout, product; backward the same read and written for gradients.
_EAGER_BYTES, _EAGER_BYTES_BACKWARD = 26.0, 34.0


def attention_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of attention and of a mixer such as Mamba in one layer, without their projections (linear modules)."""
    mixer = scores = PassCost(TimeTerm.ATTENTION, 0.0, 0.0)
    if layer.mixer:
        mixer = _mixer_cost(step, rates, layer, layer.mixer)
    if layer.attends:
        scores = _score_cost(step, rates)
    return PassCost(TimeTerm.ATTENTION, mixer.forward + scores.forward, mixer.backward + scores.backward)


def _mixer_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer, mixer: Mixer) -> PassCost:
    """Seconds of a mixer's matmuls over tokens or states, and of its memory traffic. The backward pass runs twice as
    many matmuls as the forward pass."""
    products = mixer.matmul_flops(step) / rates.flops(mixer.matmul_element_size(step))
    traffic = mixer.traffic(step, layer)
    transfer = traffic.size / rates.bandwidth
    return PassCost(
        TimeTerm.ATTENTION, products + traffic.forward * transfer, 2 * products + traffic.backward * transfer
    )


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
    """Average number of tokens that one token attends to: all tower tokens in cross-attention, else tokens of its own
    sequence. `whole`: the kernel computes the scores of all tokens of the sequence. If `whole` is False, the kernel
    skips later tokens and, in layers with a sliding window, tokens outside the window."""
    length, attn = float(step.work.length), step.arch.attn
    if attn.cross_attention:
        return float(sum(encoding.tokens for encoding in step.work.towers))
    if whole:
        return length
    window = min(length, attn.window) if attn.window else length
    share = attn.window_share if attn.window else 0.0
    return share * window * (1 - window / (2 * length)) + (1 - share) * length / 2


# Times that a chosen token is read or written between products: gathered, weighted, masked, brought back in order,
# added (transformers, integrations/moe.py, grouped_mm_experts_forward).
_PERMUTATION_TRAFFIC = 9


def experts_reached(step: TrainingStep) -> float:
    """Expected number of experts of a layer that at least one token reaches. Each token misses an expert with
    probability 1 - chosen / all."""
    ffn = step.arch.ffn
    return float(ffn.experts * (1 - (1 - ffn.experts_per_token / ffn.experts) ** step.tokens))


def expert_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of the routed experts of one layer: the matmuls of the chosen experts, each on its share of the tokens,
    and the permutation of tokens to the experts and back. Zero in layers without experts."""
    ffn, hidden, size = step.arch.ffn, step.arch.hidden, step.sizes.compute
    if not ffn.experts or not layer.mixture:
        return PassCost(TimeTerm.EXPERTS, 0.0, 0.0)
    experts = experts_reached(step)
    tokens = step.tokens * ffn.experts_per_token / experts
    shapes = (3 if ffn.gated else 2) * experts
    matmul = rates.product(tokens, hidden, ffn.expert_width, size, shapes)
    permutation = (
        step.tokens
        * (ffn.experts_per_token * _PERMUTATION_TRAFFIC * size * hidden + 16.0 * ffn.experts)
        / rates.bandwidth
    )
    adapters = _expert_adapter_cost(step, rates, layer)
    backward = (1 + weight_gradient_products(step)) * matmul + _slice_gradient_seconds(step, rates, layer)
    return PassCost(
        TimeTerm.EXPERTS, matmul + permutation + adapters.forward, backward + permutation + adapters.backward
    )


# Times that the gradient of a slice moves the whole tensor: zeros written, then both factors of the sum read and the
# sum written (torch, select_backward and InputBuffer::accumulate).
_SLICE_GRADIENT_TRAFFIC = 4


def _slice_gradient_seconds(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> float:
    """Seconds of one layer's backward pass to make the gradients of the slices that a Python loop takes of the experts'
    tensors, one slice for each expert. Zero if experts run in another form, or are frozen."""
    if step.work.experts != "sliced":
        return 0.0
    traffic = _SLICE_GRADIENT_TRAFFIC * step.sizes.gradient * layer.experts * experts_reached(step)
    return weight_gradient_products(step) * traffic / rates.bandwidth


def _expert_adapter_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of the adapters of routed experts that are separate linear modules. Each adapter runs on its expert's
    share of the tokens."""
    costs = [adapter_cost(step, rates, each) for each in layer.linears if each.routed and step.is_adapted(each)]
    share = step.arch.ffn.experts_per_token / step.arch.ffn.experts
    return PassCost(
        TimeTerm.EXPERTS, share * sum(cost.forward for cost in costs), share * sum(cost.backward for cost in costs)
    )


def elementwise_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds of one layer's memory-bound work, in the forward and in the backward pass: norms, activation function,
    rotary embedding, casts, and residual additions with the additions of their gradients."""
    attn, traffic = step.arch.attn, norm_traffic(step)
    norm_width = step.arch.norms_per_layer * step.arch.hidden
    if layer.attends and (attn.qk_norm or attn.full_width_qk_norm):
        norm_width += attn.query_width + attn.key_width
    residual = (7.0 if step.arch.dropout else 6.0) * step.sizes.residual * step.arch.hidden
    parts = (
        (norm_width * traffic[0], norm_width * traffic[1]),
        _activation_bytes(step, layer),
        _rotary_bytes(step, layer),
        (residual, residual),
        _cast_bytes(step, layer),
    )
    forward, backward = (sum(part) for part in zip(*parts, strict=True))
    seconds_per_byte = step.tokens / rates.bandwidth
    return PassCost(TimeTerm.ELEMENTWISE, forward * seconds_per_byte, backward * seconds_per_byte)


def norm_traffic(step: TrainingStep) -> tuple[float, float]:
    """Bytes moved per element of a norm, in the forward and in the backward pass. transformers writes RMSNorm out
    operator by operator: to fp32, square, mean, product, back, weight (LlamaRMSNorm.forward). LayerNorm and Liger's
    kernels are one kernel in each pass."""
    stream = step.sizes.residual
    if step.work.fused_kernels or NORMS[step.arch.norm].one_kernel:
        return 2 * stream, 4 * stream
    cast = 2 * (4 + stream) if stream < 4 else 0.0
    return cast + 20 + 2 * stream, cast + 40 + 3 * stream


def _activation_bytes(step: TrainingStep, layer: DecoderLayer) -> tuple[float, float]:
    """Bytes per token that the feed-forward activation moves, in the forward and in the backward pass. A gated block
    runs an activation and a product of two tensors; their gradients take three kernels."""
    ffn, size = step.arch.ffn, step.sizes.compute
    width = (ffn.shared_width + ffn.experts_per_token * ffn.expert_width) if layer.mixture else ffn.width
    if step.work.fused_kernels and ffn.gated:
        return 3 * size * width, 5 * size * width
    parts = (5, 9) if ffn.gated or ffn.quick_gelu else (2, 3)
    return parts[0] * size * width, parts[1] * size * width


def _rotary_bytes(step: TrainingStep, layer: DecoderLayer) -> tuple[float, float]:
    """Bytes per token that rotary embeddings move, in the forward and in the backward pass. transformers multiplies
    queries and keys by the cosine, exchanges their halves, multiplies the exchanged halves by the sine, and adds the
    two products (transformers, apply_rotary_pos_emb). Fused kernels do this in one kernel."""
    if not layer.attends or step.arch.attn.alibi:
        return 0.0, 0.0
    width = step.sizes.compute * (step.arch.attn.query_width + step.arch.attn.key_width)
    passes = 2 if step.work.fused_kernels else 10
    return passes * width, passes * width


def _cast_bytes(step: TrainingStep, layer: DecoderLayer) -> tuple[float, float]:
    """Bytes per token that autocast moves to cast an fp32 hidden state to half precision, in the forward and in the
    backward pass. Every module that reads the hidden state casts it anew. Zero if hidden states already have compute
    precision."""
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
    """Seconds to dequantize the weights of one layer, once in the forward and once in the backward pass. The kernels
    read packed weights and write them in compute precision. Zero without quantization."""
    bits = step.work.quant_bits
    if not bits:
        return PassCost(TimeTerm.QUANTIZATION, 0.0, 0.0)
    if bits == 8:
        return _int8_cost(step, rates, layer)
    transfer = layer.linear_elements * (bits / 8 + step.sizes.compute) / rates.bandwidth
    seconds = layer.linear_elements / _DEQUANTIZATION_RATE + transfer
    return PassCost(TimeTerm.QUANTIZATION, seconds, seconds)


def _int8_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds that 8-bit quantization adds to one layer. LLM.int8() (arXiv 2208.07339) converts inputs to 8 bits by row
    and by column and takes their outliers out; results come as 32 bits. The backward pass dequantizes the weights."""
    traffic = sum(each.number * (12 * each.inputs + 10 * each.outputs) for each in layer.linears) * step.tokens
    unpacking = layer.linear_elements / _DEQUANTIZATION_RATE
    return PassCost(TimeTerm.QUANTIZATION, traffic / rates.bandwidth + unpacking, unpacking)


def weight_update_cost(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    """Seconds that one layer's trained weights cost in each pass of one micro batch, beside the optimizer's step:
    Autocast makes a half-precision copy of each matrix for each pass, and casts the gradient of the copy back. With
    gradient accumulation, each new gradient is added to the earlier one. Zero if only adapters train."""
    if step.trains_adapter:
        return PassCost(TimeTerm.ELEMENTWISE, 0.0, 0.0)
    cast = (step.sizes.trained + 2.0) if step.sizes.autocast_copies else 0.0
    addition = 3 * step.sizes.gradient if step.work.accumulation > 1 else 0.0
    seconds = layer.matrices / rates.bandwidth
    return PassCost(TimeTerm.ELEMENTWISE, cast * seconds, (cast + addition) * seconds)


LAYER_COST_FUNCTIONS = (linear_cost, attention_cost, expert_cost, elementwise_cost, dequantization_cost)


def layer_costs(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> tuple[PassCost, ...]:
    """Return the costs of one layer on the device, one PassCost for each time term."""
    layer_step = step.for_layer(layer)
    return tuple(part(layer_step, rates, layer) for part in LAYER_COST_FUNCTIONS)


# Bytes moved for each logit beside its product: to fp32, log-softmax, the chosen ones; backward the gradients of both
# and back (transformers, loss/loss_utils.py, ForCausalLMLoss). Shifted logits are copied once more each way. A fused
# loss (Liger Kernel, ops/fused_linear_cross_entropy.py) reads and writes half-precision pieces.
_UPCAST_TRAFFIC, _SHIFTED_TRAFFIC, _FUSED_TRAFFIC = (18.0, 22.0), (26.0, 30.0), (10.0, 0.0)


def lm_head_cost(step: TrainingStep, rates: AttainedRates) -> PassCost:
    """Seconds of the final norm, the output layer's matmul and the loss. A fused loss computes the gradients in the
    forward pass. In a stage with a value head that needs no logits, only the norm counts."""
    forward, backward = norm_traffic(step)
    norm_time = step.tokens * step.arch.hidden / rates.bandwidth
    norm = PassCost(TimeTerm.HEAD, forward * norm_time, backward * norm_time)
    if step.work.value_head and not step.work.needs_full_logits:
        return norm
    product = rates.product(step.tokens, step.arch.hidden, step.arch.vocab, step.sizes.compute)
    gradients = product * (2 if step.trains_head else 1)
    forward_traffic, backward_traffic = {
        "upcast": _UPCAST_TRAFFIC,
        "shifted": _SHIFTED_TRAFFIC,
        "fused": _FUSED_TRAFFIC,
    }[step.work.loss]
    logits = step.tokens * step.arch.vocab / rates.bandwidth
    if step.work.loss == "fused":
        return PassCost(TimeTerm.HEAD, norm.forward + product + gradients + forward_traffic * logits, norm.backward)
    return PassCost(
        TimeTerm.HEAD,
        norm.forward + product + forward_traffic * logits,
        norm.backward + gradients + backward_traffic * logits,
    )
