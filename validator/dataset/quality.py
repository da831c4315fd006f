"""Issues of the rows that are trained on: duplicates, repeated prompts, empty or cut answers, evaluation rows in
training. Each comes with its share of the rows and a few places to look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validator.dataset.row_scan import TEXT_ISSUES
from validator.dataset.row_selection import Positions, RowSelection

_EXAMPLES = 3
# A prompt in less than this share of the rows is no imbalance.
_REPEATED_PROMPT_SHARE = 0.01


@dataclass(frozen=True)
class QualityIssue:
    """Rows of which something is wrong, their share of the rows looked at, and a few places or pairs of places."""

    kind: str
    rows: int
    share: float
    examples: list[str]
    message: str


def quality_issue(kind: str, rows: int, total: int, examples: Iterable[str], message: str) -> QualityIssue:
    """One finding on `rows` of `total` rows."""
    return QualityIssue(kind, rows, round(rows / total, 6) if total else 0.0, list(examples), message)


def quality_issues(
    run: RowSelection, positions: Positions, evaluated: Positions, again: Sequence[tuple[int, int]]
) -> Iterator[QualityIssue]:
    """Yield all issues but near duplicates of the positions trained on, each once; `again`: exact duplicates."""
    if again:
        yield quality_issue("exact duplicates", len(again), len(positions), example_pairs(run, again),
                      "rows that are there before, word for word; each epoch trains the same again")  # fmt: skip
    rows = run.rows[positions]
    yield from _repeated_prompt(run, positions, rows["prompt_hash"])
    yield from _text_issues(run, positions, rows["issues"])
    yield from _answers_cut(run, positions, rows)
    yield from _evaluation_leaks(run, positions, evaluated)


def exact_duplicates(run: RowSelection, positions: Positions) -> tuple[Positions, list[tuple[int, int]]]:
    """Return the first position of each text, and the pairs (position, first one of the same text) of all others."""
    _, first, text = np.unique(run.rows["sample_hash"][positions], return_index=True, return_inverse=True)
    before = positions[first[text]]
    again = before != positions
    return positions[~again], list(zip(positions[again].tolist(), before[again].tolist(), strict=True))


def _repeated_prompt(run: RowSelection, positions: Positions, hashes: NDArray[Any]) -> Iterator[QualityIssue]:
    prompts, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    most = int(counts.max(initial=0))
    if most > max(_REPEATED_PROMPT_SHARE * len(positions), 2):
        frequent = prompts[counts == most][first[counts == most].argmin()]
        places = map(run.place, positions[hashes == frequent][:_EXAMPLES])
        yield quality_issue("repeated prompt", most, len(positions), places, "rows share the most frequent prompt")


def example_pairs(run: RowSelection, pairs: Sequence[tuple[int, int]]) -> list[str]:
    """A few pairs of places."""
    return [f"{run.place(row)} like {run.place(other)}" for row, other in pairs[:_EXAMPLES]]


_ISSUE_MESSAGES = {
    "empty answers": "answers without text teach the model to stop at once",
    "very short answers": "answers of fewer than 5 characters; right for labels, poor for conversation",
    "control characters": "invisible control characters, which the model learns to write",
    "garbled text": "text that was read in a wrong encoding once",
    "huge rows": "rows of more than a megabyte, most of which is cut off",
}


def _text_issues(run: RowSelection, positions: Positions, issues: NDArray[Any]) -> Iterator[QualityIssue]:
    for bit, kind in enumerate(TEXT_ISSUES):
        found = positions[issues & (1 << bit) != 0]
        if len(found):
            places = map(run.place, found[:_EXAMPLES])
            yield quality_issue(kind, len(found), len(positions), places, _ISSUE_MESSAGES[kind])


def _answers_cut(run: RowSelection, positions: Positions, rows: NDArray[Any]) -> Iterator[QualityIssue]:
    lost = rows["cut_answer_tokens"]
    if cut := int(np.count_nonzero(lost)):
        longest = np.argsort(-lost.astype(np.int64), kind="stable")[: min(cut, _EXAMPLES)]
        share = int(lost.sum()) / max(int(rows["answer_tokens"].sum()), 1)
        yield quality_issue("answers cut", cut, len(positions), map(run.place, positions[longest]),
                      f"lose their end to `cutoff_len`: {share:.1%} of all answer tokens")  # fmt: skip


def _evaluation_leaks(run: RowSelection, positions: Positions, evaluated: Positions) -> Iterator[QualityIssue]:
    prompts, first = np.unique(run.rows["prompt_hash"][positions], return_index=True)
    asked = run.rows["prompt_hash"][evaluated]
    leaked = np.isin(asked, prompts)
    if leaked.any():
        like = positions[first[np.searchsorted(prompts, asked[leaked])]]
        pairs = list(zip(evaluated[leaked].tolist(), like.tolist(), strict=True))
        yield quality_issue("evaluation rows in training", len(pairs), len(evaluated), example_pairs(run, pairs),
                      "evaluation prompts that are trained on; the evaluation looks better than it is")  # fmt: skip
