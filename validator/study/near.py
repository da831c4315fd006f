"""Near duplicates: rows whose word pairs overlap so far that one is the other with a few words changed.

MinHash (Broder 1997) with banding (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, chapter 3): texts that
share one band of hashes are compared by all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

from validator.samples.conversion import Sample, StopsRunError, converter
from validator.samples.fate import KEPT, fate
from validator.study import ceiling, pool, reading, workers
from validator.study.survey import Plan, Report

THRESHOLD = 0.8  # estimated share of word pairs that two texts have in common
FEWEST = 10  # word pairs; shorter texts are alike by chance
_LONGEST = 100_000  # characters that are compared
_HASHES, _BANDS, _BLOCK = 128, 21, 1000
_WORDS = re.compile(r"[^\s\u3040-\u9fff\uac00-\ud7af]+|[\u3040-\u9fff\uac00-\ud7af]")


class Signatures(NamedTuple):
    """For each row: its bands as numbers, the lowest byte of each hash, and whether it is long enough to compare."""

    bands: Any
    hashes: Any
    long: Any


def pairs(text: str) -> list[str]:
    """Neighbouring words; of Chinese, Japanese and Korean neighbouring characters."""
    words = text.split() if text.isascii() else _WORDS.findall(text)
    return list(map(add, words, words[1:]))


def signatures(files: Sequence[Path], plan: Plan, report: Report) -> Signatures:
    """The signatures of all rows of a data set, in order."""
    import numpy as np

    blocks = [block for path in files for block in _of_file(path, plan, report)]
    return Signatures(*(np.concatenate(part) for part in zip(*blocks, strict=True)))


def _of_file(path: Path, plan: Plan, report: Report) -> Iterator[Signatures]:
    spans = pool.spans(path)
    if len(spans) < 2:
        for block in _blocks(path, plan, None):
            report(len(block.long))
            yield block
        return
    for part in workers.results(_part, [(path, plan, span) for span in spans]):
        report(len(part.long))
        yield part


def _part(path: Path, plan: Plan, span: tuple[int, int]) -> Signatures:
    import numpy as np

    return Signatures(*(np.concatenate(part) for part in zip(*_blocks(path, plan, span), strict=True)))


def _blocks(path: Path, plan: Plan, span: tuple[int, int] | None) -> Iterator[Signatures]:
    import numpy as np
    from rensa import RMinHash

    convert, rows = converter(plan.form), reading.rows(path, span)
    factors = np.random.default_rng(0).integers(1, 1 << 32, _HASHES // _BANDS, dtype=np.uint64) | 1
    texts = (_text(row, convert, plan.stage)[:_LONGEST] for _, row in rows)
    while block := [*_block(texts)]:
        shingles = [pairs(text) for text in block]
        matrix = RMinHash.digest_matrix_from_token_sets(shingles, num_perm=_HASHES, seed=1).to_rows()
        hashes = np.array(matrix, np.uint32)
        banded = hashes[:, : len(factors) * _BANDS].reshape(len(block), _BANDS, len(factors))
        bands = ((banded * factors).sum(2) >> np.uint64(16)).astype(np.uint32)
        long = np.array([len(words) >= FEWEST for words in shingles])
        yield Signatures(bands, hashes.astype(np.uint8), long)


def _block(texts: Iterator[str]) -> Iterator[str]:
    """Texts that are worked on together."""
    held = 0
    for text in islice(texts, _BLOCK):
        yield text
        if (held := held + len(text)) > ceiling.HELD:
            return


def _text(row: dict[str, Any], convert: Callable[[Any], Sample], stage: str) -> str:
    """All that is said in a row that is trained on."""
    try:
        sample = convert(row)
        if fate(sample, stage) != KEPT:
            return ""
        return "\n".join(content for _, content in (*sample.prompt, *sample.answers))
    except (StopsRunError, TypeError):
        return ""


def missing() -> str:
    """Why near duplicates cannot be looked for; empty where they can."""
    absent = [name for name in ("numpy", "rensa") if find_spec(name) is None]
    return f"near duplicates need {', '.join(absent)}: pip install {' '.join(absent)}" if absent else ""


def duplicates(signed: Signatures, positions: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs (row, earlier row like it) among the rows at these positions, one for each row that has one."""
    import numpy as np

    rows = np.asarray(positions, np.int64)
    rows = rows[signed.long[rows]]
    like: dict[int, int] = {}
    for band in range(signed.bands.shape[1]):
        keys = signed.bands[rows, band]
        order = np.argsort(keys, kind="stable")
        same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
        later, earlier = rows[order[same + 1]], rows[order[same]]
        alike = (signed.hashes[later] == signed.hashes[earlier]).mean(1) >= THRESHOLD + (1 - THRESHOLD) / 256
        for row, other in zip(later[alike].tolist(), earlier[alike].tolist(), strict=True):
            like.setdefault(row, other)
    return sorted(like.items())
