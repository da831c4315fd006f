"""How long samples may be: from their data, the header block, the first rows of local data sets, or not known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from validator.job.job import Job
from validator.speed.padding import spread

# Bytes of text that are one token, about: 4.2 of English letters, 4.7 of Chinese characters, 3 of code (least squares
# against Qwen's vocabulary, as study/estimate.py has them); and what a template adds to a sample.
_BYTES, _TEMPLATE = 4.2, 15
# How far such an estimate may be off, whole data sets together: code and mathematics have fewer bytes a token.
LOWEST = 0.8
_OFF = (LOWEST, 1.0, 1.4)
# Of `cutoff_len`, where nothing is known: OpenOrca has 445 tokens of 4096 in fms-acceleration's runs, MetaMathQA 210 of
# 768 in peft's, and UltraChat fills half of 2048 and more in Zephyr's.
_SHARES = (0.1, 0.25)
# Alpaca's samples have about a hundred tokens, however long they might be.
_LEAST = 100.0


class Extent(NamedTuple):
    """Lengths in tokens of equally likely samples: the shortest that they may be, the usual, the longest. `assumed`
    says in words what is not known; `guessed`: nothing tells how long they are."""

    lengths: tuple[Sequence[float], Sequence[float], Sequence[float]]
    assumed: tuple[str, ...] = ()
    guessed: bool = False


def extent(job: Job, lengths: Sequence[int] | None = None) -> Extent:
    """How long the job's samples are; `lengths`: those of its data, where they were read."""
    longest = job.longest
    if lengths:
        return _known([min(each, longest) for each in lengths])
    told = job.lengths
    if told.typical:
        most = told.longest or longest
        whole = spread(min(told.typical, most), most, told.longest is not None)
        return _known([min(each, longest) for each in whole])
    if rows := [*first_lengths(job)]:
        cut = [[min(factor * each, longest) for each in rows] for factor in _OFF]
        return Extent(
            (cut[0], cut[1], cut[2]),
            (f"samples of some {sum(cut[1]) / len(rows):,.0f} tokens, estimated from the first rows",),
        )
    least = min(_pictures(job), longest)
    if job.samples is None and (published := tokens(job)):  # else the recipe is made for other data than it names
        mean, top = float(published[0] + least), published[1] + least
        whole = spread(min(mean, longest), min(top, longest), top <= longest)
        cut = [[min(factor * each, longest) for each in whole] for factor in _OFF]
        return Extent((cut[0], cut[1], cut[2]), (f"samples of some {mean:,.0f} tokens, as published of the data sets",))
    short, usual = (spread(max(each, least), longest, told=False) for each in guessed(longest))
    mean = sum(usual) / len(usual)
    return Extent((short, usual, (float(longest),)), (f"samples of some {mean:,.0f} tokens (`lengths:` in the header "
                                                     "block tells how many)",), guessed=True)  # fmt: skip


def guessed(longest: int) -> tuple[float, float]:
    """Mean length, tokens, of samples of which only the longest is known: as short as it may be, and usual."""
    few, some = (share * longest for share in _SHARES)
    return min(few, _LEAST), some


def _known(lengths: Sequence[float]) -> Extent:
    return Extent((lengths, lengths, lengths))


def first_lengths(job: Job) -> Iterator[float]:
    """Tokens of the first rows of each local data set, about; nothing where one of them cannot be read here. A pair is
    two sequences."""
    if job.rows is None or _pictures(job):
        return
    each = _BYTES * (2 if job.pairs else 1)
    for dataset in job.datasets:
        for row in dataset.rows.head if dataset.rows else ():
            yield _TEMPLATE + len("".join(_texts(row.values())).encode("utf-8", "replace")) / each


def tokens(job: Job) -> tuple[int, int] | None:
    """Tokens of a sample of the public data sets together: the mean, and the longest, which is `cutoff_len` where that
    of one set is not known. None where a mean is not known. Pictures are not counted."""
    lengths = [(each["rows"], each["tokens"]) for each in job.published if "tokens" in each]
    if not lengths or len(lengths) < len(job.published):
        return None
    mean = sum(rows * tokens["mean"] for rows, tokens in lengths) / sum(rows for rows, _ in lengths)
    longest = [tokens["longest"] for _, tokens in lengths]
    return round(mean), job.longest if None in longest else max(longest)


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, list):
            yield from _texts(value)


def _pictures(job: Job) -> int:
    """Tokens of the pictures and films of the fullest sample; pictures of public data have their published size."""
    if job.model is None or job.workload is None or not any(one.tokens for one in job.workload.encodings):
        return 0
    from validator.job import media  # which no model of text asks for

    return media.usual(job, job.model, job.datasets, job.published)
