"""What a layer's attention keeps for its backward pass, what that pass needs, and the masks. Bytes of a micro batch.

Derived from the operators' own rules: a product keeps both factors, softmax its result, flash attention q, k, v, its
output and one fp32 number per head and token (arXiv 2205.14135). Checked operator by operator against
validator/simulate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import crossing
from .inputs import dropped, half_norms, input_kept, magnitudes, norm_kept, shares_inputs
from .run import Run
from .shapes import Block
from .widths import key_width, output_width, query_width, value_width
from .workload import Given

if TYPE_CHECKING:
    from .mixers import Mixer

# Elements of a head that FlashAttention takes at most.
_WIDEST = 256
_PLAIN = Given()


def _dense_mask(run: Run) -> float:
    """Share of layers in which sdpa gets a dense mask: all with padding, the sliding half once the window is
    reached."""
    if run.work.attention != "sdpa":
        return 0.0
    if run.work.padded or run.arch.attn.masked:
        return 1.0
    attn = run.arch.attn
    return attn.window_share if attn.window and run.work.length >= attn.window else 0.0


def mask(run: Run) -> float:
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


def _masks_kept(run: Run, dense: float) -> float:
    """Share of layers that keep a dense mask of their own: each that makes numbers of booleans, or brings them to
    compute precision, and the sliding ones, which put their window into it (transformers of that time, models/gemma2,
    Gemma2DecoderLayer)."""
    attn = run.arch.attn
    if not run.work.given.added or run.sizes.residual != run.sizes.compute:
        return dense
    return min(dense, attn.window_share) if attn.window else 0.0


def _core(run: Run) -> float:
    """Kept between the projections and the output projection."""
    attn, count, compute = run.arch.attn, run.tokens, run.sizes.compute
    queries, output = query_width(attn), output_width(attn)
    narrow = 2 * queries if attn.repeated else key_width(attn) + value_width(attn)
    if attn.kv_rank:  # the values are a view of a result that holds the keys before their rotation, too
        narrow += attn.heads * (attn.head_dim - attn.rope_dim)
    wide = max(queries + output, narrow)
    alone = attn.kv_heads == 1 and run.tokens == run.work.length  # a view of one head serves all
    if _widely(run):
        factors = queries + (narrow if alone else 2 * queries)
        given = 0.0 if attn.broadcast else compute * output
        return count * (4.0 * factors + given + 4.0 * attn.heads * run.work.length)
    if run.attends_in_squares:
        repeated = narrow if attn.kv_heads == attn.heads or alone else wide
        return count * compute * (queries + repeated) + _scores(run)
    dense = _dense_mask(run)
    masks = _masks_kept(run, dense) * 2.0 * count * run.work.length if dense else 0.0
    handed = run.work.given if run.work.attention == "sdpa" else _PLAIN
    repeats = handed.repeated and attn.kv_heads != attn.heads
    if attn.fused and not (attn.copied or handed.copied or repeats):
        narrow += queries + key_width(attn)  # the values are a view, which holds queries and keys before their rotation
    many = 1.0 if repeats else dense
    keys = narrow + (many * (wide - narrow) if attn.kv_heads > 1 or handed.copied else 0.0)
    return count * (compute * (queries + keys + output) + 4 * attn.heads) + masks


def _widely(run: Run) -> bool:
    """Whether scores of all pairs are made in fp32 because heads that share keys are wider than kernels take them; with
    a mask they are repeated, which one kernel takes (transformers pull request 46960). No kernel takes keys that heads
    share by broadcasting."""
    attn = run.arch.attn
    wide = attn.head_dim > _WIDEST and attn.kv_heads != attn.heads and not _dense_mask(run)
    return (wide or attn.broadcast) and run.work.attention == "sdpa"


def _scores(run: Run) -> float:
    """Of all pairs of tokens; beside sinks the softmax is made in half precision, or as precise as what attention
    reads, which LayerNorm gives in fp32 under autocast."""
    attn, compute = run.arch.attn, run.sizes.compute
    square = float(run.tokens * attn.heads * run.work.length)
    half = compute if compute < 4 else 0.0
    capped = compute if run.arch.logit_softcap else 0.0
    masked = 1.0 if run.arch.dropout else 0.0
    return square * (compute if attn.sinks or (attn.half_scores and not _raised(run)) else 4 + half + capped + masked)


def _raised(run: Run) -> bool:
    """Whether a softmax as precise as what attention reads is made in fp32."""
    return run.arch.attn.half_scores and run.arch.norm == "layer" and run.work.precision == "amp"


def _latent_kept(run: Run, block: Block) -> float:
    """Bytes per token of the low-rank steps of latent attention: their norms and the inputs of their second halves."""
    kept = 0.0
    for rank, role in ((run.arch.attn.q_rank, "q_b"), (run.arch.attn.kv_rank, "kv_b")):
        if rank:
            kept += norm_kept(run, rank, 2)
            kept += input_kept(run, rank, block.by_role(role))
    return kept


def _gate(run: Run) -> float:
    """Bytes per token of a gate: its sigmoid, and what it scales, where that had to be copied."""
    attn = run.arch.attn
    return run.sizes.compute * output_width(attn) * (2 if attn.concatenated else 1)


def attention_kept(run: Run, block: Block) -> float:
    """Of what a layer has in place of attention, too, or beside it."""
    read = run.tokens * (half_norms(run) + dropped(run))
    mixed = _mixed_kept(run, block, block.mixer) if block.mixer else 0.0
    return read + mixed + (_attention_kept(run, block) if block.attends else 0.0)


def _mixed_kept(run: Run, block: Block, mixer: Mixer) -> float:
    from . import mixing  # which few models have

    return mixing.kept(run, block, mixer)


def _attention_kept(run: Run, block: Block) -> float:
    attn = run.arch.attn
    if attn.crossed:
        return crossing.kept(run, block)
    readers = block.by_role("q", "k", "v", "qkv", "q_a", "kv_a")
    per_token = input_kept(run, run.arch.hidden, readers)
    per_token += magnitudes(run, (*readers, *block.by_role("q_b", "kv_b", "o")))
    if attn.head_norms or attn.whole_norms:
        per_token += norm_kept(run, query_width(attn) + (0 if attn.borrowed else key_width(attn)), 2)
    per_token += 4.0 * value_width(attn) if attn.value_norms and not attn.borrowed else 0.0
    per_token += 4.0 * attn.bare_norms * (query_width(attn) + key_width(attn)) + _latent_kept(run, block)
    per_token += _gate(run) if attn.gated else 0.0
    per_token += run.sizes.compute * sum(linear.outputs for linear in block.by_role("qkv")) if attn.clipped else 0.0
    work = run.work  # with a mask, another kernel gives token after token
    back = work.given.copied and work.attention == "sdpa" and not _dense_mask(run)
    in_core = not (run.attends_in_squares or attn.concatenated or attn.gated or attn.broadcast or back)
    if not in_core or not shares_inputs(run):
        per_token += input_kept(run, output_width(attn), block.by_role("o"), "attention" if in_core else "product")
    return run.tokens * per_token + _core(run)


def attention_peak(run: Run, block: Block) -> float:
    """Of both where a layer has both: one after the other."""
    mixed = _mixed_peak(run, block.mixer) if block.mixer else 0.0
    return max(mixed, _attention_peak(run) if block.attends else 0.0)


def _mixed_peak(run: Run, mixer: Mixer) -> float:
    from . import mixing

    return mixing.peak(run, mixer)


def _attention_peak(run: Run) -> float:
    """Transients of the attention backward: gradients of q, k, v and the output, of a gate and of what makes and takes
    it, flash attention's fp32 accumulator and expanded key gradients (FlashAttention-2, arXiv 2307.08691); eager
    attention holds three squares in fp32."""
    attn, sizes = run.arch.attn, run.sizes
    if attn.crossed:
        return crossing.peak(run)
    wide = query_width(attn) + output_width(attn)
    wide += 5 * output_width(attn) if attn.gated else 0
    gradients = sizes.compute * (wide + key_width(attn) + value_width(attn)) + 2 * sizes.residual * run.arch.hidden
    if _widely(run):
        return run.tokens * (gradients + 4.0 * 3 * query_width(attn) + 8.0 * attn.heads * run.work.length)
    if run.attends_in_squares:
        square = 12.0 if _raised(run) else 8.0  # the sum with the mask has a gradient of its own
        square -= (sizes.compute if sizes.compute < 4 else 0.0) + (1.0 if run.arch.dropout else 0.0)
        return run.tokens * (gradients + square * attn.heads * run.work.length)
    expanded = 2 * sizes.compute * query_width(attn) if attn.kv_heads != attn.heads else 0.0
    return run.tokens * (gradients + 4.0 * query_width(attn) + expanded)
