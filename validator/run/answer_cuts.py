"""How many answers `cutoff_len` cuts, estimated from the first rows of local data sets. `data` counts it over all
rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from validator.rows.converter import Sample
from validator.rows.outcomes import row_checker
from validator.rows.token_estimate import estimate_tokens
from validator.rows.truncation import SampleLengths, answer_lengths, turn_lengths
from validator.run.settings import RunSettings

_ROWS_READ = 200  # first rows of a data set
_MAX_TOKENS_PER_CHARACTER = 1.5  # a digit; a row that is too short to be cut whatever it holds needs no closer look
_UNCUT_SHARE = 0.995  # of the samples, which a recommended length leaves whole
_LENGTH_STEP = 128  # tokens
_STAGES = ("sft", "dpo", "rm", "kto")


# Tokens of a text, as multiples of the estimate. Nine in ten pieces of text are within 15 % of it for Qwen's
# vocabulary; vocabularies of 32,000 words make more tokens, and the template adds some to each turn.
_FACTORS = (0.9, 1.0, 1.3)


class AnswerCuts(NamedTuple):
    """Shares of samples whose answers are cut: `low` with the fewest tokens that the texts plausibly have, `usual` with
    the estimated number, `high` with the most. `rows`: number of rows that were read. `sufficient_length`: a
    `cutoff_len` that cuts one sample in 200."""

    low: float
    usual: float
    high: float
    rows: int
    sufficient_length: int


def estimate_answer_cuts(run: RunSettings) -> AnswerCuts | None:
    """Return how many answers `cutoff_len` cuts, by the first rows. None if no row can be read, or if the stage trains
    on no answers. Data sets with images, videos or audio are left out, because media add tokens."""
    limit, sizes = max(run.batch.kept_tokens, 1), [*_sample_sizes(run)] if run.task.stage in _STAGES else []
    if not sizes:
        return None
    mask_history = run.args.flag("mask_history")

    def lengths(factor: float) -> list[SampleLengths]:
        return [_lengths([factor * turn for turn in turns], answers, limit, mask_history) for turns, answers in sizes]

    def share_cut(each: list[SampleLengths]) -> float:
        return sum(cut >= 1 for _, _, _, cut in each) / len(sizes)

    fewest, expected, most = _FACTORS
    if not (high := share_cut(lengths(most))):
        return AnswerCuts(0.0, 0.0, 0.0, len(sizes), limit)
    usual_lengths = lengths(expected)
    low, usual = share_cut(lengths(fewest)), share_cut(usual_lengths)
    totals = sorted(total for total, *_ in usual_lengths)
    longest = totals[min(int(_UNCUT_SHARE * len(totals)), len(totals) - 1)]
    return AnswerCuts(low, usual, high, len(sizes), int(-(-longest // _LENGTH_STEP)) * _LENGTH_STEP)


def _sample_sizes(run: RunSettings) -> Iterator[tuple[list[float], int]]:
    """Yield for each of the first rows the estimated tokens of its turns, and how many of them are answers to one
    prompt: two for preference pairs, 0 for a conversation. Of a row that is surely not cut, no turn is yielded."""
    shortest = run.batch.kept_tokens / max(_FACTORS) / _MAX_TOKENS_PER_CHARACTER
    for dataset in run.data.datasets:
        rows = dataset.rows.head if dataset.rows and not dataset.attr.has_media else ()
        check = row_checker(dataset.attr, run.task.stage)
        for row in islice(rows, _ROWS_READ):
            sample = None if len(repr(row)) < shortest else check(row).sample
            answers = len(sample.answers) if sample and run.task.stage != "sft" else 0
            yield [*map(estimate_tokens, _turn_texts(sample))] if sample else [], answers


def _turn_texts(sample: Sample) -> list[str]:
    texts = [text for _, text in (*sample.prompt, *sample.answers)]
    system = sample.system if isinstance(sample.system, str) else ""
    return [system + texts[0], *texts[1:]]


def _lengths(turns: Sequence[float], answers: int, limit: int, mask_history: bool) -> SampleLengths:
    sizes = [round(each) for each in turns]
    if answers:
        return answer_lengths(sum(sizes[:-answers]), sizes[-answers:], limit)
    return turn_lengths(list(zip(sizes[::2], sizes[1::2], strict=False)), limit, 0, mask_history)
