"""How many answers `cutoff_len` cuts, estimated from the first rows of local data sets. `data` counts it over all
rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from validator.rows.truncation import SampleLengths, answer_lengths, turn_lengths
from validator.run.first_rows import EXPECTED, FEWEST, MOST, first_row_turns
from validator.run.settings import RunSettings

_UNCUT_SHARE = 0.995  # of the samples, which a recommended length leaves whole
_LENGTH_STEP = 128  # tokens


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
    limit, sizes = max(run.batch.kept_tokens, 1), first_row_turns(run)
    if not sizes:
        return None
    mask_history = run.args.flag("mask_history")

    def lengths(factor: float) -> list[SampleLengths]:
        return [_lengths([factor * turn for turn in turns], answers, limit, mask_history) for turns, answers in sizes]

    def share_cut(each: list[SampleLengths]) -> float:
        return sum(cut >= 1 for _, _, _, cut in each) / len(sizes)

    if not (high := share_cut(lengths(MOST))):
        return AnswerCuts(0.0, 0.0, 0.0, len(sizes), limit)
    usual_lengths = lengths(EXPECTED)
    low, usual = share_cut(lengths(FEWEST)), share_cut(usual_lengths)
    totals = sorted(total for total, *_ in usual_lengths)
    longest = totals[min(int(_UNCUT_SHARE * len(totals)), len(totals) - 1)]
    return AnswerCuts(low, usual, high, len(sizes), int(-(-longest // _LENGTH_STEP)) * _LENGTH_STEP)


def _lengths(turns: Sequence[float], answers: int, limit: int, mask_history: bool) -> SampleLengths:
    if not turns:  # of a row that is surely not cut
        return 0, 0, 0, 0
    sizes = [round(each) for each in turns]
    if answers:
        return answer_lengths(sum(sizes[:-answers]), sizes[-answers:], limit)
    return turn_lengths(list(zip(sizes[::2], sizes[1::2], strict=False)), limit, 0, mask_history)
