"""Tokens of a sample before and after `cutoff_len` (data/processor/*.py)."""

from __future__ import annotations

from collections.abc import Sequence

# Tokens of one sample: in all, what `cutoff_len` leaves, those of the answers, and how many of these are cut.
Lengths = tuple[int, int, int, int]


def share(source: int, target: int, limit: int) -> tuple[int, int]:
    """What is left of a prompt and an answer under a limit (infer_seqlen): the shorter side keeps more of itself."""
    if target * 2 < limit:
        most = limit
    elif source * 2 < limit:
        most = limit - source
    else:
        most = int(limit * (target / (source + target)))
    answer = min(most, target)
    return min(max(limit - answer, 0), source), answer


def of_turns(pairs: Sequence[tuple[int, int]], limit: int, extra: int, last_first: bool) -> Lengths:
    """Several pairs of prompt and answer. `extra` is 1 for templates that end the whole text with one token;
    `last_first`: `mask_history`, which fills from the end and trains the last answer only."""
    if len(pairs) == 1 and (whole := sum(pairs[0]) + extra) < limit:  # the usual row, for speed
        return whole, whole, pairs[0][1], 0
    trained = [pairs[-1]] if last_first else pairs
    total, kept_answer, ordered = extra, 0, pairs[::-1] if last_first else pairs
    for index, (source, target) in enumerate(ordered):
        if total >= limit:
            break
        left_source, left_target = share(source, target, limit - total)
        total += left_source + left_target
        kept_answer += left_target if not (last_first and index) else 0
    answer = sum(target for _, target in trained)
    full = sum(source + target for source, target in pairs) + extra
    return full, total, answer, answer - kept_answer


def of_answers(source: int, answers: Sequence[int], limit: int) -> Lengths:
    """A prompt with one answer, or with two of which the longer one counts: each is a sequence of its own."""
    target = max(answers)
    left_source, left_target = share(source, target, limit)
    lost = sum(max(answer - left_target, 0) for answer in answers)
    return source + target, left_source + left_target, sum(answers), lost


def of_text(tokens: int, limit: int, packed: bool) -> Lengths:
    """A text of pre-training with its end token; packed ones are cut into blocks and lose nothing here."""
    kept = tokens if packed else min(tokens, limit)
    return tokens, kept, tokens, tokens - kept
