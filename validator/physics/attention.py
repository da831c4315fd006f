"""Memory of attention in one layer: what self-attention and cross-attention to a tower save for the backward pass, the
workspace of that pass, and the masks. Bytes of a micro batch.

Derived from the operators' own rules: a product saves both factors, softmax its result, flash attention q, k, v, its
output and one fp32 number per head and token (arXiv 2205.14135). Checked against the simulation."""

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
    """Tower tokens of a micro batch."""
    of_sequence = sum(encoding.tokens for encoding in step.work.towers)
    return of_sequence * step.work.micro_batch * step.work.sequences_per_sample


def cross_attention_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes that one layer of cross-attention saves, for the tokens of the sequence and for those of the towers."""
    attn, hidden, compute = step.arch.attn, step.arch.hidden, step.sizes.compute
    queries, output = attn.query_width, attn.output_width
    written = saved_input(step, hidden, layer.by_role("q")) + saved_by_norm(step, queries, 2)
    written += (
        compute * (queries + output) + 4.0 * attn.heads + saved_input(step, output, layer.by_role("o"), "attention")
    )
    read = saved_input(step, hidden, layer.by_role("k", "v"), "product") + saved_by_norm(step, attn.key_width, 2)
    return step.tokens * written + _tower_tokens(step) * (read + 2 * compute * queries)


def cross_attention_backward_workspace(step: TrainingStep) -> float:
    """Temporary bytes of the backward pass of cross-attention: gradients of queries, keys, values and the output, and
    an fp32 accumulator."""
    attn, compute = step.arch.attn, step.sizes.compute
    queries = attn.query_width
    written = compute * (queries + attn.output_width) + 2 * step.sizes.residual * step.arch.hidden + 4.0 * queries
    return step.tokens * written + _tower_tokens(step) * compute * (2 * queries + attn.key_width + attn.value_width)


def cross_attention_state_bytes(step: TrainingStep) -> float:
    """Bytes of the towers' results, which stay for all layers."""
    return step.sizes.compute * _tower_tokens(step) * step.arch.hidden if step.arch.has_cross_attention else 0.0


def cross_attention_mask_bytes(step: TrainingStep) -> float:
    """Bytes of the cross-attention mask: text tokens x tower tokens."""
    return step.sizes.compute * _tower_tokens(step) * step.work.length if step.arch.has_cross_attention else 0.0


_DEFAULT_SDPA_INPUTS = SdpaInputs()


def attention_mask_bytes(step: TrainingStep) -> float:
    """Bytes of the attention masks of the whole model: one mask, and one more for sliding windows. Eager attention adds
    the mask to the scores, in the precision of the residual stream; older releases did so for sdpa, with one mask for
    both. sdpa reads booleans, and needs a mask only for padding or for a window that samples exceed."""
    work, windows = step.work, step.arch.attn.window > 0
    square = float(step.tokens * work.length)
    if step.attention_kernel == "eager":
        return square * step.sizes.residual * (2 if windows else 1)
    if work.attention != "sdpa":
        return 0.0
    reached = windows and work.length >= step.arch.attn.window
    number = int(work.pads_batches or step.arch.attn.always_masked) + int(reached)
    return square * (min(number, 1) * step.sizes.residual if work.sdpa_inputs.additive_mask else number)


def _saved_mask_share(step: TrainingStep, dense: float) -> float:
    """Share of layers that keep a dense mask of their own: layers that convert a boolean mask to numbers, or a mask to
    compute precision, and in older releases layers with a sliding window, which write the window into it (transformers,
    models/gemma2, Gemma2DecoderLayer)."""
    attn = step.arch.attn
    if not step.work.sdpa_inputs.additive_mask or step.sizes.residual != step.sizes.compute:
        return dense
    return min(dense, attn.window_share) if attn.window else 0.0


def _core_saved_bytes(step: TrainingStep) -> float:
    """Bytes saved between the input projections and the output projection."""
    attn, count, compute = step.arch.attn, step.tokens, step.sizes.compute
    queries, output = attn.query_width, attn.output_width
    narrow = 2 * queries if attn.kv_repeated else attn.key_width + attn.value_width
    if attn.kv_rank:  # the values are a view of a result that holds the keys before their rotation, too
        narrow += attn.heads * (attn.head_dim - attn.rope_dim)
    wide = max(queries + output, narrow)
    single_kv_view = attn.kv_heads == 1 and step.tokens == step.work.length  # a view of one head serves all
    if step.attention_kernel == "math":
        factors = queries + (narrow if single_kv_view else 2 * queries)
        output_bytes = 0.0 if attn.broadcasts_kv else compute * output
        return count * (4.0 * factors + output_bytes + 4.0 * attn.heads * step.work.length)
    if step.attention_kernel == "eager":
        repeated = narrow if attn.kv_heads == attn.heads or single_kv_view else wide
        return count * compute * (queries + repeated) + _score_bytes(step)
    dense = step.dense_mask_share
    masks = _saved_mask_share(step, dense) * 2.0 * count * step.work.length if dense else 0.0
    sdpa_inputs = step.work.sdpa_inputs if step.work.attention == "sdpa" else _DEFAULT_SDPA_INPUTS
    repeats = sdpa_inputs.kv_repeated and attn.kv_heads != attn.heads
    if attn.fused_qkv and not (attn.contiguous_copies or sdpa_inputs.contiguous_copies or repeats):
        narrow += queries + attn.key_width  # the values are a view, which holds queries and keys before their rotation
    repeated_share = 1.0 if repeats else dense
    keys = narrow + (repeated_share * (wide - narrow) if attn.kv_heads > 1 or sdpa_inputs.contiguous_copies else 0.0)
    return count * (compute * (queries + keys + output) + 4 * attn.heads) + masks


def _score_bytes(step: TrainingStep) -> float:
    """Bytes of the attention scores (tokens x tokens per head) saved for backward. Models with attention sinks, and
    some others, compute softmax in half precision; a LayerNorm before attention makes it fp32 under autocast."""
    attn, compute = step.arch.attn, step.sizes.compute
    square = float(step.tokens * attn.heads * step.work.length)
    half = compute if compute < 4 else 0.0
    capped = compute if step.arch.logit_softcap else 0.0
    masked = 1.0 if step.arch.dropout else 0.0
    return square * (
        compute if attn.sinks or (attn.softmax_in_half and not _softmax_is_fp32(step)) else 4 + half + capped + masked
    )


def _softmax_is_fp32(step: TrainingStep) -> bool:
    """True if a softmax in the precision of its input is computed in fp32: autocast gives LayerNorm's result in
    fp32."""
    return step.arch.attn.softmax_in_half and step.arch.norm == "layer" and step.work.precision == "amp"


def _latent_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes per token of the low-rank steps of latent attention: their norms, and the inputs of the second projection
    of each."""
    kept = 0.0
    for rank, role in ((step.arch.attn.q_rank, "q_b"), (step.arch.attn.kv_rank, "kv_b")):
        if rank:
            kept += saved_by_norm(step, rank, 2)
            kept += saved_input(step, rank, layer.by_role(role))
    return kept


def _gate_saved_bytes(step: TrainingStep) -> float:
    """Bytes per token of an output gate: its sigmoid, and the scaled value if it had to be copied."""
    attn = step.arch.attn
    return step.sizes.compute * attn.output_width * (2 if attn.concatenated else 1)


def first_half_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes that the first half of a layer saves for backward: attention, a mixer such as Mamba, or both."""
    read = step.tokens * (saved_by_half_layer_norms(step) + saved_dropout_mask(step))
    mixed = layer.mixer.saved_bytes(step, layer) if layer.mixer else 0.0
    return read + mixed + (_attention_saved_bytes(step, layer) if layer.attends else 0.0)


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
    """Largest temporary bytes in the backward pass of attention and mixer. They run one after the other, so that the
    larger one counts."""
    mixed = layer.mixer.backward_workspace(step) if layer.mixer else 0.0
    return max(mixed, _attention_backward_workspace(step) if layer.attends else 0.0)


def _attention_backward_workspace(step: TrainingStep) -> float:
    """Temporary bytes of the backward pass of attention: gradients of q, k, v, the output and a gate; flash attention's
    fp32 accumulator and expanded key gradients (FlashAttention-2, arXiv 2307.08691); for eager attention three fp32
    squares of tokens x tokens."""
    attn, sizes = step.arch.attn, step.sizes
    if attn.cross_attention:
        return cross_attention_backward_workspace(step)
    wide = attn.query_width + attn.output_width
    wide += 5 * attn.output_width if attn.output_gate else 0
    gradients = sizes.compute * (wide + attn.key_width + attn.value_width) + 2 * sizes.residual * step.arch.hidden
    if step.attention_kernel == "math":
        return step.tokens * (gradients + 4.0 * 3 * attn.query_width + 8.0 * attn.heads * step.work.length)
    if step.attention_kernel == "eager":
        square = 12.0 if _softmax_is_fp32(step) else 8.0  # the sum with the mask has a gradient of its own
        square -= (sizes.compute if sizes.compute < 4 else 0.0) + (1.0 if step.arch.dropout else 0.0)
        return step.tokens * (gradients + square * attn.heads * step.work.length)
    expanded = 2 * sizes.compute * attn.query_width if attn.kv_heads != attn.heads else 0.0
    return step.tokens * (gradients + 4.0 * attn.query_width + expanded)
