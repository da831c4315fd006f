"""The first rows of local data sets: the estimated tokens of their turns, and how long the longest surely is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from validator.rows.converter import Sample
from validator.rows.outcomes import row_checker
from validator.rows.token_estimate import estimate_tokens
from validator.run.settings import RunSettings

_ROWS_READ = 200  # first rows of a data set
_MAX_TOKENS_PER_CHARACTER = 1.5  # a digit; a row that is too short to be cut whatever it holds needs no closer look
_STAGES = ("sft", "dpo", "rm", "kto")
# Tokens of a text, as multiples of the estimate. Nine in ten pieces of text are within 15 % of it for Qwen's
# vocabulary; vocabularies of 32,000 words make more tokens, and the template adds some to each turn.
FEWEST, EXPECTED, MOST = 0.9, 1.0, 1.3


class RowTurns(NamedTuple):
    """The estimated tokens of a row's turns. `answers`: how many of the last ones are answers to one prompt: two for
    preference pairs, 0 for a conversation. `turns` is empty if `cutoff_len` surely does not cut the row."""

    turns: tuple[float, ...]
    answers: int

    @property
    def longest_sequence(self) -> float:
        """Tokens of the longest sequence that the row becomes: all turns, or the prompt with the longer answer."""
        if not self.answers:
            return sum(self.turns)
        return sum(self.turns[: -self.answers]) + max(self.turns[-self.answers :])


def first_row_turns(run: RunSettings) -> tuple[RowTurns, ...]:
    """Return the turns of the first rows of the run's local data sets. Empty if no row can be read, or if the stage
    trains on no answers. Data sets with images, videos or audio are left out, because media add tokens."""
    if first_row_turns not in run.derived:
        run.derived[first_row_turns] = (*_read_turns(run),) if run.task.stage in _STAGES else ()
    found: tuple[RowTurns, ...] = run.derived[first_row_turns]
    return found


def _read_turns(run: RunSettings) -> Iterator[RowTurns]:
    shortest = run.batch.kept_tokens / MOST / _MAX_TOKENS_PER_CHARACTER
    for dataset in run.data.datasets:
        rows = dataset.rows.head if dataset.rows and not dataset.attr.has_media else ()
        check = row_checker(dataset.attr, run.task.stage)
        for row in islice(rows, _ROWS_READ):
            sample = None if len(repr(row)) < shortest else check(row).sample
            answers = len(sample.answers) if sample and run.task.stage != "sft" else 0
            yield RowTurns(tuple(map(estimate_tokens, _turn_texts(sample))) if sample else (), answers)


def _turn_texts(sample: Sample) -> list[str]:
    texts = [text for _, text in (*sample.prompt, *sample.answers)]
    system = sample.system if isinstance(sample.system, str) else ""
    return [system + texts[0], *texts[1:]]


def certain_tokens(run: RunSettings) -> int:
    """Return the tokens that the run's longest sequence has at least: by the header block, or by the first rows of
    local data sets, if these are surely longer. Rows that stay far below `cutoff_len` are not measured."""
    known = max((each.longest_sequence for each in first_row_turns(run)), default=0.0)
    return max(run.batch.certain_tokens, min(int(FEWEST * known), run.batch.max_tokens))
