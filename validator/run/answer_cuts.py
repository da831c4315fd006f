"""How many answers `cutoff_len` cuts, estimated from the first rows of local data sets. `data` counts it over all
rows."""

from __future__ import annotations

from typing import NamedTuple

from validator.rows.token_estimate import TextEstimator
from validator.rows.truncation import SampleLengths
from validator.run.chat_template import recipe_template
from validator.run.first_rows import EXPECTED, FEWEST, MOST, text_rows
from validator.run.settings import RunSettings

_UNCUT_SHARE = 0.995  # of the samples, which a recommended length leaves whole
_LENGTH_STEP = 128  # tokens


class AnswerCuts(NamedTuple):
    """Shares of samples whose answers are cut: `low` with the fewest tokens that the texts plausibly have, `usual` with
    the estimated number, `high` with the most. `sufficient_length`: a `cutoff_len` that cuts one sample in 200."""

    low: float
    usual: float
    high: float
    sufficient_length: int


def estimate_answer_cuts(run: RunSettings) -> AnswerCuts | None:
    """Return how many answers `cutoff_len` cuts, by the first rows. None if no row can be read, or if the stage trains
    on no answers. Data sets with images, videos or audio are left out, because media add tokens."""
    rows, template = text_rows(run), recipe_template(run, TextEstimator())
    if not rows:
        return None

    def lengths(factor: float) -> list[SampleLengths]:
        return [each.lengths(run, template, factor) for each in rows]

    def share_cut(each: list[SampleLengths]) -> float:
        return sum(cut >= 1 for _, _, _, cut in each) / len(rows)

    if not (high := share_cut(lengths(MOST))):
        return AnswerCuts(0.0, 0.0, 0.0, max(run.batch.kept_tokens, 1))
    usual_lengths = lengths(EXPECTED)
    low, usual = share_cut(lengths(FEWEST)), share_cut(usual_lengths)
    totals = sorted(total for total, *_ in usual_lengths)
    longest = totals[min(int(_UNCUT_SHARE * len(totals)), len(totals) - 1)]
    return AnswerCuts(low, usual, high, int(-(-longest // _LENGTH_STEP)) * _LENGTH_STEP)
