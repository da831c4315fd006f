"""Lengths in tokens: what `cutoff_len` leaves of a sample, how many sequences packing makes of samples
(llamafactory/data/processor/*.py), and how the lengths of a data set are distributed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

# Tokens of one sample: in all, after `cutoff_len`, of its answers, and how many of the answers' tokens are cut.
SampleLengths = tuple[int, int, int, int]


def infer_seqlen(source: int, target: int, limit: int) -> tuple[int, int]:
    """Return the tokens that a limit leaves of a prompt and of an answer, as LLaMA-Factory's function of this name
    does: the shorter of the two keeps a larger share."""
    if target * 2 < limit:
        most = limit
    elif source * 2 < limit:
        most = limit - source
    else:
        most = int(limit * (target / (source + target)))
    answer = min(most, target)
    return min(max(limit - answer, 0), source), answer


def turn_lengths(pairs: Sequence[tuple[int, int]], limit: int, extra: int, last_first: bool) -> SampleLengths:
    """Return the lengths of a conversation of pairs of prompt and answer. `extra` is 1 for templates that end the whole
    text with one token. `last_first` is `mask_history`, which fills from the end and trains the last answer only."""
    if len(pairs) == 1 and (whole := sum(pairs[0]) + extra) < limit:  # most rows are so, and go quicker here
        return whole, whole, pairs[0][1], 0
    trained = [pairs[-1]] if last_first else pairs
    total, kept_answer, ordered = extra, 0, pairs[::-1] if last_first else pairs
    for index, (source, target) in enumerate(ordered):
        if total >= limit:
            break
        left_source, left_target = infer_seqlen(source, target, limit - total)
        total += left_source + left_target
        kept_answer += left_target if not (last_first and index) else 0
    answer = sum(target for _, target in trained)
    full = sum(source + target for source, target in pairs) + extra
    return full, total, answer, answer - kept_answer


def answer_lengths(source: int, answers: Sequence[int], limit: int) -> SampleLengths:
    """Return the lengths of a prompt with one answer or two. Prompt and answer are a sequence; of two, the longer one
    counts."""
    target = max(answers)
    left_source, left_target = infer_seqlen(source, target, limit)
    lost = sum(max(answer - left_target, 0) for answer in answers)
    return source + target, left_source + left_target, sum(answers), lost


def count_packed_sequences(lengths: Sequence[int], limit: int) -> int:
    """Return the number of sequences of `limit` tokens into which one batch of samples is packed: of the samples left,
    the longest that fits goes next. Longer samples are dropped."""
    left, filled = sorted(length for length in lengths if length <= limit), 0
    while left:
        room, at = limit, len(left)
        while at:
            room -= left.pop(at - 1)
            at = bisect_right(left, room)
        filled += 1
    return filled


_HISTOGRAM_BARS = 16
_UNCUT_SHARE = 0.995  # share of the samples that the recommended `cutoff_len` leaves whole
_CUTOFF_STEP = 128  # tokens; recommended lengths are multiples of it


@dataclass(frozen=True)
class HistogramBar:
    """Rows of `from_` to `to` tokens, both included."""

    from_: int
    to: int
    rows: int


def length_quantile(ordered: Sequence[int], share: float) -> int:
    """Return the length that this share of the samples does not exceed; `ordered` is ascending. 0 without samples."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0


def recommend_cutoff_len(ordered: Sequence[int], positions: int | None) -> int:
    """Return the smallest multiple of 128 that, as `cutoff_len`, cuts at most one sample in 200; at most the model's
    `positions`."""
    wanted = -(-length_quantile(ordered, _UNCUT_SHARE) // _CUTOFF_STEP) * _CUTOFF_STEP
    return min(wanted, positions) if positions else wanted


def length_histogram(ordered: Sequence[int]) -> Sequence[HistogramBar]:
    """Return bars of equal width up to the 99th percentile; the last one holds all beyond it. None without samples."""
    if not ordered:
        return ()
    width = max(-(-(length_quantile(ordered, 0.99) - ordered[0] + 1) // _HISTOGRAM_BARS), 1)
    width = -(-width // 8) * 8 if width > 8 else width
    first = ordered[0] // width * width
    edges = list(range(first, first + width * _HISTOGRAM_BARS + 1, width))
    below = [bisect_left(ordered, edge) for edge in edges]
    bars = [HistogramBar(start, start + width - 1, high - low)
            for start, low, high in zip(edges, below, below[1:], strict=False)]  # fmt: skip
    while len(bars) > 1 and not bars[-1].rows:
        bars.pop()
    beyond = len(ordered) - sum(bar.rows for bar in bars)
    if beyond:
        bars.append(HistogramBar(bars[-1].to + 1, ordered[-1], beyond))
    return bars
