"""What `data` answers. The fields are the keys of its JSON, in their order; a `_` at the end of a name is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from validator.job.schedule import Schedule
from validator.study.amount import Amount
from validator.study.distribution import Bar
from validator.study.duration import Duration
from validator.study.quality import Finding
from validator.study.sets import Problem


@dataclass(frozen=True)
class SetRow:
    """One data set: `role` is training or evaluation, `note` says why a set without rows has none here."""

    name: str
    role: str
    source: str | None
    formatting: str
    files: list[str]
    rows: int
    columns: list[str]
    note: str


@dataclass(frozen=True)
class RowCounts:
    """Rows from the files to the run. `sequences` is what the Trainer counts as examples; `exact`: as in the run."""

    read: int
    selected: int
    dropped: int
    trained: int
    evaluated: int
    sequences: int
    exact: bool


@dataclass(frozen=True)
class Drop:
    """Rows that LLaMA-Factory leaves out for one reason, and a few places."""

    reason: str
    rows: int
    examples: list[str]


@dataclass(frozen=True)
class Tokens:
    """Lengths before `cutoff_len`, and what it leaves of them. `source` is how they were counted."""

    source: str
    exact: bool
    mean: int
    median: int
    p95: int
    p99: int
    longest: int
    histogram: Sequence[Bar]
    per_epoch: int
    answers_per_epoch: int
    rows_cut: int
    tokens_cut: int
    recommended_cutoff_len: int | None


@dataclass(frozen=True)
class Memory:
    """Device memory with the longest batch there is (`longest` tokens), and at `cutoff_len`; GiB of 2^30 bytes."""

    longest: int
    longest_gib: float
    cutoff_gib: float
    usable_gib: float | None


@dataclass(frozen=True)
class Study:
    """Everything that is said of a recipe's data; None: not known, or there is nothing to say."""

    path: str
    model: str | None
    stage: str
    method: str
    template: str | None
    cutoff_len: int
    sets: Sequence[SetRow]
    problems: Sequence[Problem]
    notes: Sequence[str]
    rows: RowCounts
    drops: Sequence[Drop]
    steps: Schedule | None
    tokens: Tokens
    memory: Memory | None
    amount: Amount
    quality: Sequence[Finding]
    time: Duration | None
