"""Issues of the rows that are trained on: duplicates, repeated prompts, empty or cut answers, evaluation rows in
training. Each comes with its share of the rows and a few places to look at.

Near duplicates are rows whose word pairs overlap so far that one is the other with a few words changed. They are found
by MinHash (Broder 1997) with banding (Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, chapter 3): texts that
share one band of hashes are compared by all of them."""

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
from validator.rows.dataset_attr import DatasetAttr
from validator.rows.outcomes import row_checker

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
    """Rows with one fault: their number, their share of the rows looked at, and a few places or pairs of places."""

    kind: str
    rows: int
    share: float
    examples: list[str]
    message: str


def quality_issues(
    selection: RowSelection, positions: Positions, evaluated: Positions, duplicates: Pairs, similar: Pairs
) -> Iterator[QualityIssue]:
    """Yield all issues of the rows trained on (`positions`) and evaluated on. `duplicates` are the exact ones,
    `similar` the near ones."""

    def issue(kind: str, count: int, examples: list[str], message: str, total: int = len(positions)) -> QualityIssue:
        return QualityIssue(kind, count * selection.row_step, round(count / total, 6), examples, message)

    def pairs(rows: Pairs) -> list[str]:
        return [" like ".join(map(selection.place, pair)) for pair in rows[:3]]

    rows = selection.rows[positions]
    if duplicates:
        yield issue("exact duplicates", len(duplicates), pairs(duplicates),
                    "rows that repeat an earlier row word for word; each epoch trains on them again")  # fmt: skip
    prompts, first, counts = np.unique(rows["prompt_hash"], return_index=True, return_counts=True)
    most = int(counts.max(initial=0))
    if most > max(_REPEATED_PROMPT_SHARE * len(positions), 2):
        frequent = prompts[counts == most][first[counts == most].argmin()]
        places = selection.places(positions[rows["prompt_hash"] == frequent])
        yield issue("repeated prompt", most, places, "rows share the most frequent prompt")
    for bit, (kind, message) in enumerate(TEXT_ISSUES.items()):
        found = positions[rows["issues"] & (1 << bit) != 0]
        if len(found):
            yield issue(kind, len(found), selection.places(found), message)
    lost = rows["cut_answer_tokens"]
    if cut := int(np.count_nonzero(lost)):
        longest = np.argsort(-lost.astype(np.int64), kind="stable")[:cut]
        share = int(lost.sum()) / max(int(rows["answer_tokens"].sum()), 1)
        yield issue("answers cut", cut, selection.places(positions[longest]),
                    f"lose their end to `cutoff_len`: {share:.1%} of all answer tokens")  # fmt: skip
    asked = selection.rows["prompt_hash"][evaluated]
    leaked = np.isin(asked, prompts)
    if leaked.any():
        like = positions[first[np.searchsorted(prompts, asked[leaked])]]
        leaks = list(zip(evaluated[leaked].tolist(), like.tolist(), strict=True))
        yield issue("evaluation rows in training", len(leaks), pairs(leaks),
                    "evaluation prompts that are trained on; the evaluation looks better than it is",
                    len(evaluated))  # fmt: skip
    if similar:
        yield issue("near duplicates", len(similar), pairs(similar),
                    f"rows that share {NEAR_THRESHOLD:.0%} of their word pairs with an earlier row")  # fmt: skip


def exact_duplicates(selection: RowSelection, positions: Positions) -> tuple[Positions, Pairs]:
    """Return the first position of each text, and the pairs (position, first one of the same text) of all others."""
    _, first, text = np.unique(selection.rows["sample_hash"][positions], return_index=True, return_inverse=True)
    before = positions[first[text]]
    again = before != positions
    return positions[~again], list(zip(positions[again].tolist(), before[again].tolist(), strict=True))


def near_duplicates(
    selection: RowSelection, first: Positions, settings: Callable[[DatasetAttr], ScanSettings], report: OnRows
) -> Pairs:
    """Return the near duplicates within each data set. `first` are the positions of rows that are no exact duplicates,
    `settings` says how the rows of a set are meant."""
    start, pairs = 0, list[tuple[int, int]]()
    for one in selection.sets:
        end = start + len(one.rows)
        own = first[(start <= first) & (first < end)] - start
        if len(own):
            how = settings(one.attr)
            signed = _joined(block for path in one.files for block in _file_signatures(path, how, report))
            pairs += [(row + start, other + start) for row, other in _similar_pairs(signed, own)]
        start = end
    return pairs


class MinHashSignatures(NamedTuple):
    """For each row: its bands as numbers, the lowest byte of each hash, and whether the text is long enough to
    compare."""

    bands: Any
    hashes: Any
    long: Any


def word_bigrams(text: str) -> list[str]:
    """Return the pairs of neighbouring words of a text; for Chinese, Japanese and Korean, of neighbouring
    characters."""
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
    """Return the text of all turns of a row that is trained on; empty for any other row."""
    return "\n".join(content for _, content in (*sample.prompt, *sample.answers)) if sample else ""


def _similar_pairs(signed: MinHashSignatures, positions: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the pairs (row, earlier row like it) among the rows at these positions, one for each row that has one."""
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
