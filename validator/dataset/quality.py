"""Finds quality issues in the rows that are trained on: duplicates, repeated prompts, empty or cut answers, and
evaluation rows in the training data. Each issue has its share of the rows and a few example places.

Near duplicates are rows with so many word pairs in common that one row is the other with a few words changed. They are
found by MinHash (Broder 1997) with banding (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, chapter 3): if two
texts share one band of hashes, all of their hashes are compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rensa import RMinHash

from validator.dataset import data_files, file_parts
from validator.dataset.row_scan import TEXT_ISSUES, OnRows, ScanSettings
from validator.dataset.row_selection import Positions, RowSelection
from validator.rows import reading_limits
from validator.rows.converter import Sample
from validator.rows.outcomes import row_checker
from validator.run.dataset_registry import Dataset

# A prompt that less than this share of the rows have is no imbalance.
_REPEATED_PROMPT_SHARE = 0.01
NEAR_THRESHOLD = 0.8  # estimated share of word pairs that two texts have in common
MIN_SHINGLES = 10  # word pairs; shorter texts are alike by chance
_MAX_CHARACTERS = 100_000  # characters that are compared
_HASHES, _BANDS, _BLOCK_TEXTS = 128, 21, 1000
_WORDS = re.compile(r"[^\s\u3040-\u9fff\uac00-\ud7af]+|[\u3040-\u9fff\uac00-\ud7af]")
Pairs = Sequence[tuple[int, int]]  # positions of rows, each with that of an earlier row like it


@dataclass(frozen=True)
class QualityIssue:
    """Rows with the same quality issue: their number, their share of the rows that were checked, and a few places or
    pairs of places as examples."""

    kind: str
    rows: int
    share: float
    examples: list[str]
    message: str


def quality_issues(
    selection: RowSelection, positions: Positions, evaluated: Positions, duplicates: Pairs, similar: Pairs
) -> Iterator[QualityIssue]:
    """Yield all quality issues of the training rows (`positions`) and the evaluation rows (`evaluated`). `duplicates`
    are the exact duplicates and `similar` the near duplicates, each as a pair of row and earlier row. Rows are given as
    positions, which are indices into `selection.rows`."""

    def issue(kind: str, count: int, examples: list[str], message: str, total: int = len(positions)) -> QualityIssue:
        return QualityIssue(kind, count * selection.row_step, round(count / total, 6), examples, message)

    def pairs(rows: Pairs) -> list[str]:
        return [" like ".join(map(selection.place, pair)) for pair in rows[:3]]

    rows = selection.rows[positions]
    if duplicates:
        same = ", with the same images" if rows["images"].any() else ""
        message = f"rows that repeat an earlier row word for word{same}; each epoch trains on them again"
        yield issue("exact duplicates", len(duplicates), pairs(duplicates), message)
    prompts, first, counts = np.unique(rows["prompt_hash"], return_index=True, return_counts=True)
    max_count = int(counts.max(initial=0))
    if max_count > max(_REPEATED_PROMPT_SHARE * len(positions), 2):
        frequent = prompts[counts == max_count][first[counts == max_count].argmin()]
        places = selection.places(positions[rows["prompt_hash"] == frequent])
        yield issue("repeated prompt", max_count, places, "rows share the most frequent prompt")
    for bit, (kind, message) in enumerate(TEXT_ISSUES.items()):
        found = positions[rows["issues"] & (1 << bit) != 0]
        if len(found):
            yield issue(kind, len(found), selection.places(found), message)
    for kind, found, message in _cut_rows(rows, selection.are_images_cut[positions]):
        yield issue(kind, len(found), selection.places(positions[found]), message)
    evaluated_prompts = selection.rows["prompt_hash"][evaluated]
    is_leaked = np.isin(evaluated_prompts, prompts)
    if is_leaked.any():
        train_positions = positions[first[np.searchsorted(prompts, evaluated_prompts[is_leaked])]]
        leaks = list(zip(evaluated[is_leaked].tolist(), train_positions.tolist(), strict=True))
        yield issue("evaluation rows in training", len(leaks), pairs(leaks),
                    "evaluation prompts that are trained on; the evaluation looks better than it is",
                    len(evaluated))  # fmt: skip
    if similar:
        yield issue("near duplicates", len(similar), pairs(similar),
                    f"rows that share {NEAR_THRESHOLD:.0%} of their word pairs with an earlier row")  # fmt: skip


def _cut_rows(rows: NDArray[Any], are_images_cut: NDArray[np.bool_]) -> Iterator[tuple[str, Positions, str]]:
    """Yield kind, rows and message of the issues that `cutoff_len` causes; the most severe rows come first. `rows`: an
    array of row_scan.ROW. `are_images_cut`: True for each row of which an image is cut."""
    lost = rows["cut_answer_tokens"]
    if cut := int(np.count_nonzero(lost)):
        share = int(lost.sum()) / max(int(rows["answer_tokens"].sum()), 1)
        message = f"lose their end to `cutoff_len`: {share:.1%} of all answer tokens"
        yield "answers cut", np.argsort(-lost.astype(np.int64), kind="stable")[:cut], message
    if len(over := np.flatnonzero(are_images_cut)):
        why = "the run stops at the first, because image features and image tokens do not match"
        yield "images cut", over, f"rows whose images have more tokens than `cutoff_len` leaves; {why}"


def exact_duplicates(selection: RowSelection, positions: Positions) -> tuple[Positions, Pairs]:
    """Return the positions of the rows whose text occurs for the first time, and for every other row a pair: its
    position, and the position of the first row with the same text. Positions are indices into `selection.rows`."""
    _, first, text = np.unique(selection.rows["sample_hash"][positions], return_index=True, return_inverse=True)
    before = positions[first[text]]
    is_repeated = before != positions
    return positions[~is_repeated], list(
        zip(positions[is_repeated].tolist(), before[is_repeated].tolist(), strict=True)
    )


def near_duplicates(
    selection: RowSelection, first: Positions, settings: Callable[[Dataset], ScanSettings], report: OnRows
) -> Pairs:
    """Return the near duplicates within each data set as pairs of row and earlier row. `first` are the rows that are
    not exact duplicates. Rows are given as positions, which are indices into `selection.rows`. `settings` returns how
    the rows of a data set are converted to texts. `report` is called with the number of rows done since the last
    call."""
    start, pairs = 0, list[tuple[int, int]]()
    for one in selection.sets:
        end = start + len(one.rows)
        indices = first[(start <= first) & (first < end)] - start
        if len(indices) and one.dataset:
            how = settings(one.dataset)
            signatures = _joined(block for path in one.files for block in _file_signatures(path, how, report))
            media = one.rows.rows["media_hash"]
            pairs += [(row + start, earlier + start) for row, earlier in _similar_pairs(signatures, indices, media)]
        start = end
    return pairs


class MinHashSignatures(NamedTuple):
    """MinHash signatures of many texts, in arrays with one row for each text. `hashes` holds the lowest byte of each
    hash. `bands` holds one number for each band, a group of hashes: two texts with an equal number are compared by all
    of their hashes. `long` is true if the text is long enough to compare."""

    bands: Any
    hashes: Any
    long: Any


def word_bigrams(text: str) -> list[str]:
    """Return the pairs of neighbouring words in a text. In Chinese, Japanese and Korean each character counts as a
    word."""
    words = text.split() if text.isascii() else _WORDS.findall(text)
    return list(map(add, words, words[1:]))


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
    check, rows = row_checker(settings.attr, settings.stage), data_files.read_rows(path, span)
    factors = np.random.default_rng(0).integers(1, 1 << 32, _HASHES // _BANDS, dtype=np.uint64) | 1
    texts = (_trained_text(check(row).sample)[:_MAX_CHARACTERS] for _, row in rows)
    for block in reading_limits.blocks(texts, _BLOCK_TEXTS, len):
        shingles = [word_bigrams(text) for text in block]
        matrix = RMinHash.digest_matrix_from_token_sets(shingles, num_perm=_HASHES, seed=1).to_rows()
        hashes = np.array(matrix, np.uint32)
        banded = hashes[:, : len(factors) * _BANDS].reshape(len(block), _BANDS, len(factors))
        bands = ((banded * factors).sum(2) >> np.uint64(16)).astype(np.uint32)
        long = np.array([len(words) >= MIN_SHINGLES for words in shingles])
        yield MinHashSignatures(bands, hashes.astype(np.uint8), long)


def _trained_text(sample: Sample | None) -> str:
    """Return the text of all turns of a sample; empty for a row that is not trained on (None)."""
    return "\n".join(content for _, content in (*sample.prompt, *sample.answers)) if sample else ""


def _similar_pairs(
    signatures: MinHashSignatures, positions: NDArray[np.int64], media: NDArray[np.uint64]
) -> list[tuple[int, int]]:
    """Return pairs (row, earlier row) of similar texts among the rows at these positions. Each row appears at most once
    as the first of a pair. `media` identifies the images, videos and sounds of each row; rows of different ones are not
    alike."""
    rows = positions[signatures.long[positions]]
    pairs: dict[int, int] = {}
    for band in range(signatures.bands.shape[1]):
        keys = signatures.bands[rows, band] ^ media[rows]
        order = np.argsort(keys, kind="stable")
        same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
        later, earlier = rows[order[same + 1]], rows[order[same]]
        is_similar = (signatures.hashes[later] == signatures.hashes[earlier]).mean(1) >= NEAR_THRESHOLD + (
            1 - NEAR_THRESHOLD
        ) / 256
        for row, earlier_row in zip(later[is_similar].tolist(), earlier[is_similar].tolist(), strict=True):
            pairs.setdefault(row, earlier_row)
    return sorted(pairs.items())
