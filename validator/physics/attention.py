"""Memory of attention in one layer: what self-attention and cross-attention to a tower save for the backward pass, the
workspace of that pass, and the masks. Bytes of a micro batch.

Derived from the operators' own rules: a product saves both factors, softmax its result, flash attention q, k, v, its
output and one fp32 number per head and token (arXiv 2205.14135). Checked against the simulation."""

from __future__ import annotations

from validator.physics.architecture import key_width, output_width, query_width, value_width
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


def _tower_tokens(run: TrainingStep) -> int:
    """Tower tokens of a micro batch."""
    of_sequence = sum(encoding.tokens for encoding in run.work.encodings)
    return of_sequence * run.work.micro_batch * run.work.sequences_per_sample


def cross_attention_saved_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    """Of a layer: by tokens of the sequence, and by those of the towers."""
    attn, hidden, compute = run.arch.attn, run.arch.hidden, run.sizes.compute
    queries, output = query_width(attn), output_width(attn)
    written = saved_input(run, hidden, block.by_role("q")) + saved_by_norm(run, queries, 2)
    written += (
        compute * (queries + output) + 4.0 * attn.heads + saved_input(run, output, block.by_role("o"), "attention")
    )
    read = saved_input(run, hidden, block.by_role("k", "v"), "product") + saved_by_norm(run, key_width(attn), 2)
    return run.tokens * written + _tower_tokens(run) * (read + 2 * compute * queries)


def cross_attention_backward_workspace(run: TrainingStep) -> float:
    """Transients of its backward pass: gradients of queries, keys, values and the output, and an fp32 accumulator."""
    attn, compute = run.arch.attn, run.sizes.compute
    queries = query_width(attn)
    written = compute * (queries + output_width(attn)) + 2 * run.sizes.residual * run.arch.hidden + 4.0 * queries
    return run.tokens * written + _tower_tokens(run) * compute * (2 * queries + key_width(attn) + value_width(attn))


def cross_attention_state_bytes(run: TrainingStep) -> float:
    """What the towers give, which stays for all layers."""
    return run.sizes.compute * _tower_tokens(run) * run.arch.hidden if run.arch.crosses else 0.0


def cross_attention_mask_bytes(run: TrainingStep) -> float:
    """Of each token for each that the towers give."""
    return run.sizes.compute * _tower_tokens(run) * run.work.length if run.arch.crosses else 0.0


# Elements of a head that FlashAttention takes at most.
_MAX_FLASH_HEAD_DIM = 256
_DEFAULT_SDPA_INPUTS = SdpaInputs()


def _dense_mask_share(run: TrainingStep) -> float:
    """Share of layers in which sdpa gets a dense mask: all with padding, the sliding half once the window is
    reached."""
    if run.work.attention != "sdpa":
        return 0.0
    if run.work.padded or run.arch.attn.masked:
        return 1.0
    attn = run.arch.attn
    return attn.window_share if attn.window and run.work.length >= attn.window else 0.0


def attention_mask_bytes(run: TrainingStep) -> float:
    """Attention masks of the whole model: one, and one more for sliding windows. Eager attention adds it to the
    scores in the residual stream's precision, and so did sdpa once, with one for both; it reads booleans, and needs one
    only for padding or a window that is reached."""
    work, windows = run.work, run.arch.attn.window > 0
    square = float(run.tokens * work.length)
    if run.attends_in_squares:
        return square * run.sizes.residual * (2 if windows else 1)
    if work.attention != "sdpa":
        return 0.0
    reached = windows and work.length >= run.arch.attn.window
    number = int(work.padded or run.arch.attn.masked) + int(reached)
    return square * (min(number, 1) * run.sizes.residual if work.given.added else number)


def _saved_mask_share(run: TrainingStep, dense: float) -> float:
    """Share of layers that keep a dense mask of their own: each that makes numbers of booleans, or brings them to
    compute precision, and the sliding ones, which put their window into it (transformers of that time, models/gemma2,
    Gemma2DecoderLayer)."""
    attn = run.arch.attn
    if not run.work.given.added or run.sizes.residual != run.sizes.compute:
        return dense
    return min(dense, attn.window_share) if attn.window else 0.0


def _core_saved_bytes(run: TrainingStep) -> float:
    """Kept between the projections and the output projection."""
    attn, count, compute = run.arch.attn, run.tokens, run.sizes.compute
    queries, output = query_width(attn), output_width(attn)
    narrow = 2 * queries if attn.repeated else key_width(attn) + value_width(attn)
    if attn.kv_rank:  # the values are a view of a result that holds the keys before their rotation, too
        narrow += attn.heads * (attn.head_dim - attn.rope_dim)
    wide = max(queries + output, narrow)
    alone = attn.kv_heads == 1 and run.tokens == run.work.length  # a view of one head serves all
    if _uses_fp32_math_kernel(run):
        factors = queries + (narrow if alone else 2 * queries)
        given = 0.0 if attn.broadcast else compute * output
        return count * (4.0 * factors + given + 4.0 * attn.heads * run.work.length)
    if run.attends_in_squares:
        repeated = narrow if attn.kv_heads == attn.heads or alone else wide
        return count * compute * (queries + repeated) + _score_bytes(run)
    dense = _dense_mask_share(run)
    masks = _saved_mask_share(run, dense) * 2.0 * count * run.work.length if dense else 0.0
    handed = run.work.given if run.work.attention == "sdpa" else _DEFAULT_SDPA_INPUTS
    repeats = handed.repeated and attn.kv_heads != attn.heads
    if attn.fused and not (attn.copied or handed.copied or repeats):
        narrow += queries + key_width(attn)  # the values are a view, which holds queries and keys before their rotation
    many = 1.0 if repeats else dense
    keys = narrow + (many * (wide - narrow) if attn.kv_heads > 1 or handed.copied else 0.0)
    return count * (compute * (queries + keys + output) + 4 * attn.heads) + masks


def _uses_fp32_math_kernel(run: TrainingStep) -> bool:
    """Whether scores of all pairs are made in fp32 because heads that share keys are wider than kernels take them; with
    a mask they are repeated, which one kernel takes (transformers pull request 46960). No kernel takes keys that heads
    share by broadcasting."""
    attn = run.arch.attn
    wide = attn.head_dim > _MAX_FLASH_HEAD_DIM and attn.kv_heads != attn.heads and not _dense_mask_share(run)
    return (wide or attn.broadcast) and run.work.attention == "sdpa"


def _score_bytes(run: TrainingStep) -> float:
    """Of all pairs of tokens; beside sinks the softmax is made in half precision, or as precise as what attention
    reads, which LayerNorm gives in fp32 under autocast."""
    attn, compute = run.arch.attn, run.sizes.compute
    square = float(run.tokens * attn.heads * run.work.length)
    half = compute if compute < 4 else 0.0
    capped = compute if run.arch.logit_softcap else 0.0
    masked = 1.0 if run.arch.dropout else 0.0
    return square * (
        compute if attn.sinks or (attn.half_scores and not _softmax_is_fp32(run)) else 4 + half + capped + masked
    )


def _softmax_is_fp32(run: TrainingStep) -> bool:
    """Whether a softmax as precise as what attention reads is made in fp32."""
    return run.arch.attn.half_scores and run.arch.norm == "layer" and run.work.precision == "amp"


def _latent_saved_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    """Bytes per token of the low-rank steps of latent attention: their norms and the inputs of their second halves."""
    kept = 0.0
    for rank, role in ((run.arch.attn.q_rank, "q_b"), (run.arch.attn.kv_rank, "kv_b")):
        if rank:
            kept += saved_by_norm(run, rank, 2)
            kept += saved_input(run, rank, block.by_role(role))
    return kept


def _gate_saved_bytes(run: TrainingStep) -> float:
    """Bytes per token of a gate: its sigmoid, and what it scales, where that had to be copied."""
    attn = run.arch.attn
    return run.sizes.compute * output_width(attn) * (2 if attn.concatenated else 1)


def first_half_saved_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    """Of what a layer has in place of attention, too, or beside it."""
    read = run.tokens * (saved_by_half_layer_norms(run) + saved_dropout_mask(run))
    mixed = block.mixer.saved_bytes(run, block) if block.mixer else 0.0
    return read + mixed + (_attention_saved_bytes(run, block) if block.attends else 0.0)


def _attention_saved_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    attn = run.arch.attn
    if attn.crossed:
        return cross_attention_saved_bytes(run, block)
    readers = block.by_role("q", "k", "v", "qkv", "q_a", "kv_a")
    per_token = saved_input(run, run.arch.hidden, readers)
    per_token += saved_by_dora(run, (*readers, *block.by_role("q_b", "kv_b", "o")))
    if attn.head_norms or attn.whole_norms:
        per_token += saved_by_norm(run, query_width(attn) + (0 if attn.borrowed else key_width(attn)), 2)
    per_token += 4.0 * value_width(attn) if attn.value_norms and not attn.borrowed else 0.0
    per_token += 4.0 * attn.bare_norms * (query_width(attn) + key_width(attn)) + _latent_saved_bytes(run, block)
    per_token += _gate_saved_bytes(run) if attn.gated else 0.0
    per_token += run.sizes.compute * sum(linear.outputs for linear in block.by_role("qkv")) if attn.clipped else 0.0
    work = run.work  # with a mask, another kernel gives token after token
    back = work.given.copied and work.attention == "sdpa" and not _dense_mask_share(run)
    in_core = not (run.attends_in_squares or attn.concatenated or attn.gated or attn.broadcast or back)
    if not in_core or not shares_inputs(run):
        per_token += saved_input(run, output_width(attn), block.by_role("o"), "attention" if in_core else "product")
    return run.tokens * per_token + _core_saved_bytes(run)


def first_half_backward_workspace(run: TrainingStep, block: DecoderLayer) -> float:
    """Of both where a layer has both: one after the other."""
    mixed = block.mixer.backward_workspace(run) if block.mixer else 0.0
    return max(mixed, _attention_backward_workspace(run) if block.attends else 0.0)


def _attention_backward_workspace(run: TrainingStep) -> float:
    """Transients of the attention backward: gradients of q, k, v and the output, of a gate and of what makes and takes
    it, flash attention's fp32 accumulator and expanded key gradients (FlashAttention-2, arXiv 2307.08691); eager
    attention holds three squares in fp32."""
    attn, sizes = run.arch.attn, run.sizes
    if attn.crossed:
        return cross_attention_backward_workspace(run)
    wide = query_width(attn) + output_width(attn)
    wide += 5 * output_width(attn) if attn.gated else 0
    gradients = sizes.compute * (wide + key_width(attn) + value_width(attn)) + 2 * sizes.residual * run.arch.hidden
    if _uses_fp32_math_kernel(run):
        return run.tokens * (gradients + 4.0 * 3 * query_width(attn) + 8.0 * attn.heads * run.work.length)
    if run.attends_in_squares:
        square = 12.0 if _softmax_is_fp32(run) else 8.0  # the sum with the mask has a gradient of its own
        square -= (sizes.compute if sizes.compute < 4 else 0.0) + (1.0 if run.arch.dropout else 0.0)
        return run.tokens * (gradients + square * attn.heads * run.work.length)
    expanded = 2 * sizes.compute * query_width(attn) if attn.kv_heads != attn.heads else 0.0
    return run.tokens * (gradients + 4.0 * query_width(attn) + expanded)
