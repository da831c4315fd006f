"""Lengths of samples in tokens. The first source that is at hand counts: the data, the recipe's header block, the first
rows of local data sets, published figures, an assumption. Also the length of batches, which are padded to their longest
sample."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import NamedTuple

from validator.rows.token_estimate import TextEstimator
from validator.run import multimodal
from validator.run.chat_template import recipe_template
from validator.run.first_rows import EXPECTED, FEWEST, MOST, first_rows
from validator.run.prediction import predict
from validator.run.settings import RunSettings

# Middles of sixteen equally likely parts of the normal distribution.
_NORMAL_MIDDLES = (-1.863, -1.318, -1.010, -0.776, -0.579, -0.402, -0.237, -0.078,
           0.078, 0.237, 0.402, 0.579, 0.776, 1.010, 1.318, 1.863)  # fmt: skip
# Standard deviation of the logarithm of lengths: of InstructGPT's prompts it is about 0.8, as they scatter by as much
# as their mean (arXiv 2203.02155, appendix A), and answers vary less than prompts. The longest that is told is taken
# for one in a hundred, 2.3 deviations from the middle.
_USUAL_SIGMA, _MAX_SIGMA, _LONGEST_SIGMAS = 0.7, 1.0, 2.3


def spread_lengths(typical: float, longest: float, told: bool = True) -> tuple[float, ...]:
    """Return lengths in tokens of equally likely samples with mean `typical`, none above `longest`. Lengths of texts
    are roughly log-normal. `told`: True if the longest sample really has the length `longest`; False if `longest` is
    only the length to which samples are cut."""
    if typical >= longest:
        return (longest,)
    sigma = min(log(longest / typical) / _LONGEST_SIGMAS, _MAX_SIGMA) if told else _USUAL_SIGMA
    return tuple(min(each, longest) for each in log_normal_lengths(typical, sigma))


def log_normal_lengths(typical: float, sigma: float) -> tuple[float, ...]:
    """Return lengths in tokens of equally likely samples with mean `typical`, spread log-normally. `sigma`: the
    standard deviation of the lengths' logarithms."""
    lengths = [exp(sigma * each) for each in _NORMAL_MIDDLES]
    scale = typical * len(lengths) / sum(lengths)
    return tuple(scale * each for each in lengths)


def expected_longest(lengths: Sequence[float], count: float) -> float:
    """Return the expected length of the longest of `count` samples that are drawn at random. `lengths`: lengths of
    equally likely samples."""
    ordered, number = sorted(lengths), len(lengths)
    shares: list[float] = [(at / number) ** count for at in range(number + 1)]
    return sum(length * (shares[at + 1] - shares[at]) for at, length in enumerate(ordered))


def slowest_batch_length(lengths: Sequence[float], micro_batch: int, devices: int, waits: int) -> float:
    """Return the padded length, in tokens, of the batches on which the time of a step depends. Batches on different
    devices have different longest samples, and every device waits for the slowest one once in `waits` batches. Over
    several batches between two waits, the differences even out. `lengths`: lengths of equally likely samples."""
    own_longest, slowest = expected_longest(lengths, micro_batch), expected_longest(lengths, micro_batch * devices)
    return own_longest + (slowest - own_longest) / sqrt(waits)


# How far published lengths may be off, which are those of other tokenizers and whole data sets.
_PUBLISHED_FACTORS = (0.8, 1.0, 1.4)
_TEXT_FACTORS = (FEWEST, EXPECTED, MOST)
# Of `cutoff_len`, where nothing is known: OpenOrca has 445 tokens of 4096 in fms-acceleration's runs, MetaMathQA 210 of
# 768 in peft's, and UltraChat fills half of 2048 and more in Zephyr's.
_CUTOFF_SHARES = (0.1, 0.25)
# Alpaca's samples have about a hundred tokens, however long they might be.
_SHORT_MEAN = 100.0


class SampleLengths(NamedTuple):
    """Three estimates of a run's sample lengths in tokens: the shortest that are plausible, the usual ones, and the
    longest that are plausible. Each is a list of equally likely lengths. `assumed`: what is not known, as text for a
    message. `guessed`: True if no source gives the lengths."""

    lengths: tuple[Sequence[float], Sequence[float], Sequence[float]]
    assumed: tuple[str, ...] = ()
    guessed: bool = False


def estimate_sample_lengths(
    run: RunSettings, lengths: Sequence[int] | None = None, exact: bool = True
) -> SampleLengths:
    """Return the lengths of the run's samples. `lengths`: tokens of each sample, if the data were read; None to
    estimate them from the header block, the first rows, published figures, or `cutoff_len`, the first of these that is
    known. `exact`: the lengths were counted with the model's tokenizer, and not estimated."""
    longest, counted = run.batch.max_tokens, run.data.counted
    if counted and not lengths:
        found = estimate_sample_lengths(run, counted.lengths, counted.exact)
        return found if counted.exact else _with_mean(found, f"all {run.data.local_rows:,} rows")
    if lengths and exact:
        return _known_lengths([min(each, longest) for each in lengths])
    if lengths:
        return _estimated_lengths(lengths, longest, _TEXT_FACTORS)
    declared = run.declared.lengths
    if declared.typical:
        longest_sample = declared.longest or longest
        spread = spread_lengths(min(declared.typical, longest_sample), longest_sample, declared.longest is not None)
        return _known_lengths([min(each, longest) for each in spread])
    if rows := first_row_lengths(run):
        return _with_mean(_estimated_lengths(rows, longest, _TEXT_FACTORS), run.data.sampled_in_words)
    image_tokens = min(_image_tokens(run), longest)
    if run.declared.samples is None and (
        published := published_tokens(run)
    ):  # else the recipe is made for other data than it names
        mean, top = float(published[0] + image_tokens), published[1] + image_tokens
        spread = spread_lengths(min(mean, longest), min(top, longest), top <= longest)
        words = f"samples of some {mean:,.0f} tokens, as published of the data sets"
        return _estimated_lengths(spread, longest, _PUBLISHED_FACTORS)._replace(assumed=(words,))
    short, usual = (
        spread_lengths(max(each, image_tokens), longest, told=False) for each in assumed_mean_lengths(longest)
    )
    mean = sum(usual) / len(usual)
    return SampleLengths(
        (short, usual, (float(longest),)),
        (f"samples of some {mean:,.0f} tokens (`lengths:` in the header block tells how many)",),
        guessed=True,
    )


def _with_mean(found: SampleLengths, rows: str) -> SampleLengths:
    """Return the lengths with the words that tell their mean. `rows`: the rows from which they are estimated."""
    mean = sum(found.lengths[1]) / len(found.lengths[1])
    return found._replace(assumed=(f"samples of some {mean:,.0f} tokens, estimated from {rows}",))


def assumed_mean_lengths(longest: int) -> tuple[float, float]:
    """Return two mean lengths of samples, in tokens, for data of which only the longest length is known: the shortest
    plausible mean, and the usual mean."""
    shortest, usual = (share * longest for share in _CUTOFF_SHARES)
    return min(shortest, _SHORT_MEAN), usual


def _known_lengths(lengths: Sequence[float]) -> SampleLengths:
    return SampleLengths((lengths, lengths, lengths))


def _estimated_lengths(lengths: Sequence[float], longest: int, factors: tuple[float, float, float]) -> SampleLengths:
    """Return the lengths of samples that are cut to `longest`, if they have `factors` times the estimated tokens."""
    fewest, usual, most = ([min(factor * each, longest) for each in lengths] for factor in factors)
    return SampleLengths((fewest, usual, most))


def first_row_lengths(run: RunSettings) -> Sequence[float]:
    """Return the estimated sequence length, in tokens, of each of the first rows of the local data sets. Empty if a
    data set cannot be read, or if samples have media whose tokens are not known. The length of a preference pair is
    that of its longer sequence."""
    rows = first_rows(run) if run.data.local_rows is not None else ()
    if not all(each.is_counted for each in rows) and _image_tokens(run):
        return ()
    template = recipe_template(run, TextEstimator())
    return [each.lengths(run, template)[0] for each in rows]


def published_tokens(run: RunSettings) -> tuple[int, int] | None:
    """Return the mean and the longest sample, in tokens, of the recipe's public data sets together. None if a data
    set's mean is not published. If a data set's longest sample is not published, `cutoff_len` counts. Images are not
    counted."""
    lengths = [(each["rows"], each["tokens"]) for each in run.data.published if "tokens" in each]
    if not lengths or len(lengths) < len(run.data.published):
        return None
    mean = sum(rows * tokens["mean"] for rows, tokens in lengths) / sum(rows for rows, _ in lengths)
    longest = [tokens["longest"] for _, tokens in lengths]
    return round(mean), run.batch.max_tokens if None in longest else max(longest)


def _image_tokens(run: RunSettings) -> int:
    """Return the decoder tokens of the images and videos of the sample that has most of them. Images of public data
    sets have their published size."""
    prediction = predict(run)
    if run.model is None or prediction.workload is None or not any(one.tokens for one in prediction.workload.towers):
        return 0
    return multimodal.usual_media_tokens(run, run.model, run.data.datasets, run.data.published)
