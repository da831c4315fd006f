"""Memory of attention in one layer, per micro batch: bytes that self-attention and cross-attention to a tower save for
the backward pass, temporary bytes of that pass, and the masks.

The formulas follow from what each operator saves: a matmul saves both factors, softmax its result, flash attention q,
k, v, its output and one fp32 number per head and token (arXiv 2205.14135). They are checked against the simulation,
which runs the real model on tensors without values."""

from __future__ import annotations

from validator.physics.decoder_layers import DecoderLayer
from validator.physics.saved_inputs import (
    saved_by_dora,
    saved_by_half_layer_norms,
    saved_by_norm,
    saved_dropout_mask,
    saved_input,
    shares_inputs,
)
from validator.physics.training_step import TrainingStep
from validator.physics.workload import SdpaInputs


def _tower_tokens(step: TrainingStep) -> int:
    """Number of tower tokens (image patches, time steps of sound) of a micro batch, over all towers."""
    of_sequence = sum(encoding.tokens for encoding in step.work.towers)
    return of_sequence * step.work.micro_batch * step.work.sequences_per_sample


def cross_attention_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes that one cross-attention layer saves for backward. Queries and outputs count for each token of the
    sequence, keys and values for each tower token."""
    attn, hidden, compute = step.arch.attn, step.arch.hidden, step.sizes.compute
    queries, output = attn.query_width, attn.output_width
    query_bytes = saved_input(step, hidden, layer.by_role("q")) + saved_by_norm(step, queries, 2)
    query_bytes += (
        compute * (queries + output) + 4.0 * attn.heads + saved_input(step, output, layer.by_role("o"), "attention")
    )
    kv_bytes = saved_input(step, hidden, layer.by_role("k", "v"), "product") + saved_by_norm(step, attn.key_width, 2)
    return step.tokens * query_bytes + _tower_tokens(step) * (kv_bytes + 2 * compute * queries)


def cross_attention_backward_workspace(step: TrainingStep) -> float:
    """Temporary bytes in the backward pass of one cross-attention layer: gradients of queries, keys, values and the
    output, and an fp32 accumulator."""
    attn, compute = step.arch.attn, step.sizes.compute
    queries = attn.query_width
    query_bytes = compute * (queries + attn.output_width) + 2 * step.sizes.residual * step.arch.hidden + 4.0 * queries
    return step.tokens * query_bytes + _tower_tokens(step) * compute * (2 * queries + attn.key_width + attn.value_width)


def cross_attention_state_bytes(step: TrainingStep) -> float:
    """Bytes of the towers' outputs, which stay on the device for all cross-attention layers. Zero for models without
    cross-attention."""
    return step.sizes.compute * _tower_tokens(step) * step.arch.hidden if step.arch.has_cross_attention else 0.0


def cross_attention_mask_bytes(step: TrainingStep) -> float:
    """Bytes of the cross-attention mask, text tokens x tower tokens. Zero for models without cross-attention."""
    return step.sizes.compute * _tower_tokens(step) * step.work.length if step.arch.has_cross_attention else 0.0


_DEFAULT_SDPA_INPUTS = SdpaInputs()


def attention_mask_bytes(step: TrainingStep) -> float:
    """Bytes of the attention masks of the whole model: one mask, and a second mask for layers with a sliding window.

    Eager attention adds a mask of numbers to the scores, in the precision of the residual stream. sdpa needs a mask
    only if batches hold padding, if the model always passes a mask, or if the length reaches the sliding window. In
    older transformers releases it is one mask of numbers for all layers; today sdpa reads boolean masks."""
    work, has_window = step.work, step.arch.attn.window > 0
    square = float(step.tokens * work.length)
    if step.attention_kernel == "eager":
        return square * step.sizes.residual * (2 if has_window else 1)
    if work.attention != "sdpa":
        return 0.0
    is_reached = has_window and work.length >= step.arch.attn.window
    number = int(work.pads_batches or step.arch.attn.always_masked) + int(is_reached)
    return square * (min(number, 1) * step.sizes.residual if work.sdpa_inputs.additive_mask else number)


def _saved_mask_share(step: TrainingStep, dense: float) -> float:
    """Share of the layers that save a dense attention mask of their own for backward. `dense`: share of the layers that
    get a dense mask.

    A layer saves its own mask if it turns a boolean mask into numbers or casts the mask to compute precision. In older
    transformers releases, whose masks are numbers, layers with a sliding window do so as well, because they write the
    window into the mask (transformers, models/gemma2, Gemma2DecoderLayer)."""
    attn = step.arch.attn
    if not step.work.sdpa_inputs.additive_mask or step.sizes.residual != step.sizes.compute:
        return dense
    return min(dense, attn.window_share) if attn.window else 0.0


def _core_saved_bytes(step: TrainingStep) -> float:
    """Bytes that attention saves for backward between its input projections (q, k, v) and its output projection."""
    attn, count, compute = step.arch.attn, step.tokens, step.sizes.compute
    queries, output = attn.query_width, attn.output_width
    kv = 2 * queries if attn.kv_repeated else attn.key_width + attn.value_width
    if attn.kv_rank:  # the values are a view of a result that holds the keys before their rotation, too
        kv += attn.heads * (attn.head_dim - attn.rope_dim)
    full_kv = max(queries + output, kv)
    single_kv_view = attn.kv_heads == 1 and step.tokens == step.work.length  # a view of one head serves all
    if step.attention_kernel == "math":
        factors = queries + (kv if single_kv_view else 2 * queries)
        output_bytes = 0.0 if attn.broadcasts_kv else compute * output
        return count * (4.0 * factors + output_bytes + 4.0 * attn.heads * step.work.length)
    if step.attention_kernel == "eager":
        saved_kv = kv if attn.kv_heads == attn.heads or single_kv_view else full_kv
        return count * compute * (queries + saved_kv) + _score_bytes(step)
    dense_share = step.dense_mask_share
    masks = _saved_mask_share(step, dense_share) * 2.0 * count * step.work.length if dense_share else 0.0
    sdpa_inputs = step.work.sdpa_inputs if step.work.attention == "sdpa" else _DEFAULT_SDPA_INPUTS
    is_repeated = sdpa_inputs.kv_repeated and attn.kv_heads != attn.heads
    if attn.fused_qkv and not (attn.contiguous_copies or sdpa_inputs.contiguous_copies or is_repeated):
        kv += queries + attn.key_width  # the values are a view, which holds queries and keys before their rotation
    repeated_share = 1.0 if is_repeated else dense_share
    keys = kv + (repeated_share * (full_kv - kv) if attn.kv_heads > 1 or sdpa_inputs.contiguous_copies else 0.0)
    return count * (compute * (queries + keys + output) + 4 * attn.heads) + masks


def _score_bytes(step: TrainingStep) -> float:
    """Bytes of the attention scores (tokens x tokens per head) saved for backward. Models with attention sinks, and
    some others, compute softmax in half precision. A LayerNorm before attention makes the softmax fp32 under
    autocast."""
    attn, compute = step.arch.attn, step.sizes.compute
    square = float(step.tokens * attn.heads * step.work.length)
    half = compute if compute < 4 else 0.0
    softcap = compute if step.arch.logit_softcap else 0.0
    mask = 1.0 if step.arch.dropout else 0.0
    return square * (
        compute if attn.sinks or (attn.softmax_in_half and not _softmax_is_fp32(step)) else 4 + half + softcap + mask
    )


def _softmax_is_fp32(step: TrainingStep) -> bool:
    """True if a softmax that usually runs in half precision is computed in fp32. The softmax takes the dtype of its
    input, and under autocast LayerNorm returns fp32."""
    return step.arch.attn.softmax_in_half and step.arch.norm == "layer" and step.work.precision == "amp"


def _latent_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes per token that the low-rank projections of latent attention (MLA) save for backward. These are the inputs
    of the norms between the two projections of queries and of keys and values, and the inputs of the second
    projections."""
    total = 0.0
    for rank, role in ((step.arch.attn.q_rank, "q_b"), (step.arch.attn.kv_rank, "kv_b")):
        if rank:
            total += saved_by_norm(step, rank, 2)
            total += saved_input(step, rank, layer.by_role(role))
    return total


def _gate_saved_bytes(step: TrainingStep) -> float:
    """Bytes per token that the output gate of attention saves for backward: the gate's sigmoid and, if attention's
    result had to be copied, the copy that the sigmoid scales."""
    attn = step.arch.attn
    return step.sizes.compute * attn.output_width * (2 if attn.concatenated else 1)


def first_half_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes that the first half of a layer saves for backward: attention, a mixer such as Mamba, or both."""
    norms = step.tokens * (saved_by_half_layer_norms(step) + saved_dropout_mask(step))
    mixer = layer.mixer.saved_bytes(step, layer) if layer.mixer else 0.0
    return norms + mixer + (_attention_saved_bytes(step, layer) if layer.attends else 0.0)


def _attention_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    attn = step.arch.attn
    if attn.cross_attention:
        return cross_attention_saved_bytes(step, layer)
    readers = layer.by_role("q", "k", "v", "qkv", "q_a", "kv_a")
    per_token = saved_input(step, step.arch.hidden, readers)
    per_token += saved_by_dora(step, (*readers, *layer.by_role("q_b", "kv_b", "o")))
    if attn.qk_norm or attn.full_width_qk_norm:
        per_token += saved_by_norm(step, attn.query_width + (0 if attn.shares_kv else attn.key_width), 2)
    per_token += 4.0 * attn.value_width if attn.v_norm and not attn.shares_kv else 0.0
    per_token += 4.0 * attn.weightless_qk_norm_share * (attn.query_width + attn.key_width) + _latent_saved_bytes(
        step, layer
    )
    per_token += _gate_saved_bytes(step) if attn.output_gate else 0.0
    per_token += step.sizes.compute * sum(linear.outputs for linear in layer.by_role("qkv")) if attn.clip_qkv else 0.0
    work = step.work  # with a mask, another kernel gives token after token
    copied_back = work.sdpa_inputs.contiguous_copies and work.attention == "sdpa" and not step.dense_mask_share
    in_core = not (
        step.attention_kernel == "eager" or attn.concatenated or attn.output_gate or attn.broadcasts_kv or copied_back
    )
    if not in_core or not shares_inputs(step):
        per_token += saved_input(step, attn.output_width, layer.by_role("o"), "attention" if in_core else "product")
    return step.tokens * per_token + _core_saved_bytes(step)


def first_half_backward_workspace(step: TrainingStep, layer: DecoderLayer) -> float:
    """Temporary bytes in the backward pass of a layer's attention and mixer. Attention and mixer run one after the
    other, so only the larger value counts."""
    mixer = layer.mixer.backward_workspace(step) if layer.mixer else 0.0
    return max(mixer, _attention_backward_workspace(step) if layer.attends else 0.0)


def _attention_backward_workspace(step: TrainingStep) -> float:
    """Temporary bytes in the backward pass of attention: the gradients of q, k, v and of attention's output. If
    attention has an output gate, the gradients of the gate's inputs and results count, too. Flash attention adds an
    fp32 accumulator and the gradients of keys and values expanded to all query heads (FlashAttention-2, arXiv
    2307.08691). Eager attention adds fp32 tensors of the size of the scores (tokens x tokens per head)."""
    attn, sizes = step.arch.attn, step.sizes
    if attn.cross_attention:
        return cross_attention_backward_workspace(step)
    widths = attn.query_width + attn.output_width
    widths += 5 * attn.output_width if attn.output_gate else 0
    gradients = sizes.compute * (widths + attn.key_width + attn.value_width) + 2 * sizes.residual * step.arch.hidden
    if step.attention_kernel == "math":
        return step.tokens * (gradients + 4.0 * 3 * attn.query_width + 8.0 * attn.heads * step.work.length)
    if step.attention_kernel == "eager":
        square = 12.0 if _softmax_is_fp32(step) else 8.0  # the sum with the mask has a gradient of its own
        square -= (sizes.compute if sizes.compute < 4 else 0.0) + (1.0 if step.arch.dropout else 0.0)
        return step.tokens * (gradients + square * attn.heads * step.work.length)
    key_gradients = 2 * sizes.compute * attn.query_width if attn.kv_heads != attn.heads else 0.0
    return step.tokens * (gradients + 4.0 * attn.query_width + key_gradients)
