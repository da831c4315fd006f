"""Issues of the rows that are trained on: duplicates, repeated prompts, empty or cut answers, evaluation rows in
training. Each comes with its share of the rows and a few places to look at."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from validator.dataset.row_selection import RowSelection
from validator.dataset.row_text import TEXT_ISSUES

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
    run: RowSelection, rows: Sequence[int], evaluated: Sequence[int], again: Sequence[tuple[int, int]]
) -> Iterator[QualityIssue]:
    """All but near duplicates. `rows` are the positions trained on, each once; `again` what `repeats` found there."""
    if again:
        yield quality_issue("exact duplicates", len(again), len(rows), example_pairs(run, again),
                      "rows that are there before, word for word; each epoch trains the same again")  # fmt: skip
    yield from _repeated_prompt(run, rows)
    yield from _text_issues(run, rows)
    yield from _answers_cut(run, rows)
    yield from _evaluation_leaks(run, rows, evaluated)


def exact_duplicates(run: RowSelection, rows: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """The first row of each text, and the pairs (row, first row of the same text) of all others."""
    texts = list(map(run.column("texts").__getitem__, rows))
    first = dict(zip(reversed(texts), reversed(rows), strict=True))
    if len(first) == len(rows):
        return list(rows), []
    again = [(at, first[text]) for at, text in zip(rows, texts, strict=True) if first[text] != at]
    return sorted(first.values()), again


def _repeated_prompt(run: RowSelection, rows: Sequence[int]) -> Iterator[QualityIssue]:
    prompts = run.column("prompts")
    most, count = next(iter(Tally(map(prompts.__getitem__, rows)).most_common(1)), (0, 0))
    if count > max(_REPEATED_PROMPT_SHARE * len(rows), 2):
        places = [run.place(at) for at in rows if prompts[at] == most][:_EXAMPLES]
        yield quality_issue("repeated prompt", count, len(rows), places, "rows share the most frequent prompt")


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


def _text_issues(run: RowSelection, rows: Sequence[int]) -> Iterator[QualityIssue]:
    trained = set(rows)
    for kind in TEXT_ISSUES:
        start, odd = 0, []
        for one in run.sets:
            odd += [start + index for index in one.rows.odd[kind] if start + index in trained]
            start += len(one.rows)
        if odd:
            yield quality_issue(kind, len(odd), len(rows), map(run.place, odd[:_EXAMPLES]), _ISSUE_MESSAGES[kind])


def _answers_cut(run: RowSelection, rows: Sequence[int]) -> Iterator[QualityIssue]:
    lost, answers = run.column("lost"), run.column("answer")
    cut = sorted((at for at in rows if lost[at]), key=lambda at: -lost[at])
    if cut:
        share = sum(lost[at] for at in cut) / max(sum(map(answers.__getitem__, rows)), 1)
        yield quality_issue("answers cut", len(cut), len(rows), map(run.place, cut[:_EXAMPLES]),
                      f"lose their end to `cutoff_len`: {share:.1%} of all answer tokens")  # fmt: skip


def _evaluation_leaks(run: RowSelection, rows: Sequence[int], evaluated: Sequence[int]) -> Iterator[QualityIssue]:
    if not evaluated:
        return
    prompts = run.column("prompts")
    first = {prompts[at]: at for at in reversed(rows)}
    leaked = [(at, first[prompts[at]]) for at in evaluated if prompts[at] in first]
    if leaked:
        yield quality_issue("evaluation rows in training", len(leaked), len(evaluated), example_pairs(run, leaked),
                      "evaluation prompts that are trained on; the evaluation looks better than it is")  # fmt: skip
