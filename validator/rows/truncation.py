"""Tokens of a sample that are left after it is cut to `cutoff_len` (llamafactory/data/processor/*.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# Tokens of one sample: in all, after `cutoff_len`, of its answers, and how many of the answers' tokens are cut.
SampleLengths = tuple[int, int, int, int]
CUTOFF_STEP = 128  # tokens; a recommended `cutoff_len` is a multiple of it


class CutImages(NamedTuple):
    """Rows of which `cutoff_len` cuts an image, so that the run stops at the first: how many there are, the most tokens
    that the images of one have, and the most tokens that one has in all."""

    rows: int
    tokens: int
    longest: int

    def found(self, cutoff_len: int, of: str) -> str:
        """Return what is found, as the beginning of a message. `of`: the rows that were looked at."""
        return f"`cutoff_len: {cutoff_len}` cuts images of up to {self.tokens:,} tokens in {self.rows:,} of {of}"

    @property
    def remedy(self) -> str:
        """The `cutoff_len` that cuts none of these images, as the end of a message."""
        sufficient = (self.longest // CUTOFF_STEP + 1) * CUTOFF_STEP
        return f"set `cutoff_len: {sufficient}`, or a smaller `image_max_pixels`"


def are_images_cut(stage: str, images: Any, kept: Any, answers: Any, cut_answers: Any) -> Any:
    """Return True for a sample of which `cutoff_len` cuts an image, however early in the prompt the images stand.
    `images`: tokens of its images; `kept`, `answers`, `cut_answers`: of its SampleLengths. All are numbers, or arrays
    with one number for each sample. Of preference pairs, whose answers are counted together, the longer is not known,
    and images count as cut that are longer than what is left of both prompt and answer."""
    return images > (kept - (answers - cut_answers) if stage in ("sft", "kto") else kept)


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
