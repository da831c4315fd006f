"""Near duplicates: rows whose word pairs overlap so far that one is the other with a few words changed.

MinHash (Broder 1997) with banding (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, chapter 3): texts
that share one band of hashes are compared by all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rensa import RMinHash

from validator.dataset import data_files, file_parts
from validator.dataset.row_scan import OnRows, ScanSettings
from validator.rows import reading_limits
from validator.rows.converter import FatalRowError, Sample, row_converter
from validator.rows.outcomes import TRAINED, row_status

NEAR_THRESHOLD = 0.8  # estimated share of word pairs that two texts have in common
MIN_SHINGLES = 10  # word pairs; shorter texts are alike by chance
_MAX_CHARACTERS = 100_000  # characters that are compared
_HASHES, _BANDS, _BLOCK_TEXTS = 128, 21, 1000
_WORDS = re.compile(r"[^\s\u3040-\u9fff\uac00-\ud7af]+|[\u3040-\u9fff\uac00-\ud7af]")


class MinHashSignatures(NamedTuple):
    """For each row: its bands as numbers, the lowest byte of each hash, and whether it is long enough to compare."""

    bands: Any
    hashes: Any
    long: Any


def word_bigrams(text: str) -> list[str]:
    """Pairs of neighbouring words; for Chinese, Japanese and Korean, of neighbouring characters."""
    words = text.split() if text.isascii() else _WORDS.findall(text)
    return list(map(add, words, words[1:]))


def minhash_signatures(files: Sequence[Path], settings: ScanSettings, report: OnRows) -> MinHashSignatures:
    """The signatures of all rows of a data set, in order."""
    return _joined(block for path in files for block in _file_signatures(path, settings, report))


def _joined(blocks: Iterable[MinHashSignatures]) -> MinHashSignatures:
    return MinHashSignatures(*(np.concatenate(part) for part in zip(*blocks, strict=True)))


def _file_signatures(path: Path, settings: ScanSettings, report: OnRows) -> Iterator[MinHashSignatures]:
    spans = file_parts.line_spans(path)
    if len(spans) < 2:
        for block in _block_signatures(path, settings, None):
            report(len(block.long))
            yield block
        return
    for part in file_parts.results_in_order(_span_signatures, [(path, settings, span) for span in spans]):
        report(len(part.long))
        yield part


def _span_signatures(path: Path, settings: ScanSettings, span: tuple[int, int]) -> MinHashSignatures:
    return _joined(_block_signatures(path, settings, span))


def _block_signatures(path: Path, settings: ScanSettings, span: tuple[int, int] | None) -> Iterator[MinHashSignatures]:
    convert, rows = row_converter(settings.attr), data_files.read_rows(path, span)
    factors = np.random.default_rng(0).integers(1, 1 << 32, _HASHES // _BANDS, dtype=np.uint64) | 1
    texts = (_trained_text(row, convert, settings.stage)[:_MAX_CHARACTERS] for _, row in rows)
    for block in reading_limits.blocks(texts, _BLOCK_TEXTS, len):
        shingles = [word_bigrams(text) for text in block]
        matrix = RMinHash.digest_matrix_from_token_sets(shingles, num_perm=_HASHES, seed=1).to_rows()
        hashes = np.array(matrix, np.uint32)
        banded = hashes[:, : len(factors) * _BANDS].reshape(len(block), _BANDS, len(factors))
        bands = ((banded * factors).sum(2) >> np.uint64(16)).astype(np.uint32)
        long = np.array([len(words) >= MIN_SHINGLES for words in shingles])
        yield MinHashSignatures(bands, hashes.astype(np.uint8), long)


def _trained_text(row: dict[str, Any], convert: Callable[[Any], Sample], stage: str) -> str:
    """The text of all turns of a row; empty if the row is not trained on."""
    try:
        sample = convert(row)
        if row_status(sample, stage) != TRAINED:
            return ""
        return "\n".join(content for _, content in (*sample.prompt, *sample.answers))
    except (FatalRowError, TypeError):
        return ""


def find_near_duplicates(signed: MinHashSignatures, positions: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs (row, earlier row like it) among the rows at these positions, one for each row that has one."""
    rows = positions[signed.long[positions]]
    like: dict[int, int] = {}
    for band in range(signed.bands.shape[1]):
        keys = signed.bands[rows, band]
        order = np.argsort(keys, kind="stable")
        same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
        later, earlier = rows[order[same + 1]], rows[order[same]]
        alike = (signed.hashes[later] == signed.hashes[earlier]).mean(1) >= NEAR_THRESHOLD + (1 - NEAR_THRESHOLD) / 256
        for row, other in zip(later[alike].tolist(), earlier[alike].tolist(), strict=True):
            like.setdefault(row, other)
    return sorted(like.items())
