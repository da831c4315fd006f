"""Lengths in tokens: what `cutoff_len` leaves of a sample, how many sequences packing makes from samples
(llamafactory/data/processor/*.py), and the distribution of the lengths in a data set."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

# Tokens of one sample: in all, after `cutoff_len`, of its answers, and how many of the answers' tokens are cut.
SampleLengths = tuple[int, int, int, int]


def infer_seqlen(source: int, target: int, limit: int) -> tuple[int, int]:
    """Return how many tokens of a prompt (`source`) and of its answer (`target`) remain under a limit. The computation
    is that of LLaMA-Factory's function of this name. The shorter of the two keeps a larger share."""
    if target * 2 < limit:
        max_answer = limit
    elif source * 2 < limit:
        max_answer = limit - source
    else:
        max_answer = int(limit * (target / (source + target)))
    answer = min(max_answer, target)
    return min(max(limit - answer, 0), source), answer


def turn_lengths(pairs: Sequence[tuple[int, int]], limit: int, extra: int, last_first: bool) -> SampleLengths:
    """Return the lengths of a conversation (all tokens, tokens left by `cutoff_len`, answer tokens, and answer tokens
    cut off). `pairs` holds pairs of prompt tokens and answer tokens. `limit` is `cutoff_len`. `extra` is 1 for
    templates that end the whole text with one token, otherwise 0. `last_first` is the setting `mask_history`: tokens
    are kept from the last turn backwards, and only the last answer is trained."""
    if len(pairs) == 1 and (total_tokens := sum(pairs[0]) + extra) < limit:  # most rows are so, and go quicker here
        return total_tokens, total_tokens, pairs[0][1], 0
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
    """Return the lengths (all tokens, tokens left by `cutoff_len`, answer tokens, and answer tokens cut off) of a
    prompt with one answer or, for preference data, with two answers. Each answer forms a sequence with the prompt. With
    two answers the first two lengths are those of the longer sequence, and the last two are sums over both answers.
    `source` is the length of the prompt, and `limit` is `cutoff_len`."""
    target = max(answers)
    left_source, left_target = infer_seqlen(source, target, limit)
    lost = sum(max(answer - left_target, 0) for answer in answers)
    return source + target, left_source + left_target, sum(answers), lost


def count_packed_sequences(lengths: Sequence[int], limit: int) -> int:
    """Return the number of sequences of at most `limit` tokens into which packing puts one batch of samples. Each
    sequence is filled with the longest remaining sample that fits, again and again. Samples longer than `limit` are
    dropped."""
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
    """Number of rows that have from `from_` to `to` tokens, both included."""

    from_: int
    to: int
    rows: int


def length_quantile(ordered: Sequence[int], share: float) -> int:
    """Return a quantile of the lengths: the given share of the samples is not longer. `ordered` holds the lengths in
    ascending order. The result is 0 without samples."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0


def recommend_cutoff_len(ordered: Sequence[int], positions: int | None) -> int:
    """Return a recommended `cutoff_len`: the smallest multiple of 128 tokens that cuts at most one sample in 200. The
    result does not exceed `positions`, the longest sequence of the model (None: not known). `ordered` holds the lengths
    in ascending order."""
    cutoff_len = -(-length_quantile(ordered, _UNCUT_SHARE) // _CUTOFF_STEP) * _CUTOFF_STEP
    return min(cutoff_len, positions) if positions else cutoff_len


def length_histogram(ordered: Sequence[int]) -> Sequence[HistogramBar]:
    """Return the histogram of the lengths, which are in ascending order. Bars have equal width up to the 99th
    percentile; one further bar holds all longer samples. The result is empty without samples."""
    if not ordered:
        return ()
    width = max(-(-(length_quantile(ordered, 0.99) - ordered[0] + 1) // _HISTOGRAM_BARS), 1)
    width = -(-width // 8) * 8 if width > 8 else width
    first = ordered[0] // width * width
    edges = list(range(first, first + width * _HISTOGRAM_BARS + 1, width))
    counts_below = [bisect_left(ordered, edge) for edge in edges]
    bars = [HistogramBar(start, start + width - 1, high - low)
            for start, low, high in zip(edges, counts_below, counts_below[1:], strict=False)]  # fmt: skip
    while len(bars) > 1 and not bars[-1].rows:
        bars.pop()
    beyond = len(ordered) - sum(bar.rows for bar in bars)
    if beyond:
        bars.append(HistogramBar(bars[-1].to + 1, ordered[-1], beyond))
    return bars
