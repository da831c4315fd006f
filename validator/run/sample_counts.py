"""How many samples, sequences and optimizer steps a run has, and how sure that is. Every command takes these numbers
from here; `data`, which reads all rows, has its own and says the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from validator.run.first_rows import first_rows
from validator.run.sample_lengths import estimate_sample_lengths
from validator.run.schedule import training_schedule
from validator.run.settings import RunSettings


class SampleCounts(NamedTuple):
    """Numbers of samples. `train`: samples to train on; None if not known. `held_back`: samples for evaluation, as far
    as they are known. `exact`: False if the numbers are estimates."""

    train: int | None
    held_back: int
    exact: bool


def sample_counts(run: RunSettings) -> SampleCounts:
    """Return the number of samples that the run trains on and evaluates on (data/loader.py, data_utils.py). If the rows
    of the data sets are not known, the recommended number of the recipe's header block counts. Rows that LLaMA-Factory
    drops are left out: by their share of the first rows, if not all rows were read."""
    if (count := run.data.count) is None:
        return SampleCounts(None, 0, False)
    held_back = run.data.held_back_rows
    counted = run.data.counted
    dropped = 1 - counted.trained_share if counted else _dropped_share(run) if count.source == "files" else 0.0
    train = round((count.number - held_back) * (1 - dropped))
    return SampleCounts(
        train, held_back + run.data.evaluation_rows, count.exact and (counted is not None or not dropped)
    )


def sequence_count(run: RunSettings, lengths: Sequence[float]) -> int | None:
    """Return the number of training sequences of an epoch; None if the number of samples is not known. Packing puts
    several samples into a sequence. `lengths`: the samples' lengths in tokens."""
    train = sample_counts(run).train
    if train is None or not run.batch.packing:
        return train
    return math.ceil(train * sum(lengths) / len(lengths) / run.batch.max_tokens)


class TrainingSteps(NamedTuple):
    """Optimizer steps of a run. `exact`: False for an estimate."""

    total: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.total:,}" if self.exact else f"about {self.total:,}"


def training_steps(run: RunSettings) -> TrainingSteps | None:
    """Return the optimizer steps of the run; None if they are not known."""
    if (limit := int(run.args.number("max_steps"))) > 0:
        return TrainingSteps(limit, True)
    lengths = estimate_sample_lengths(run).lengths[1] if run.batch.packing else ()
    sequences = sequence_count(run, lengths)
    if not sequences:
        return None
    exact = sample_counts(run).exact and not run.batch.packing
    return TrainingSteps(training_schedule(run, sequences).total, exact)


def _dropped_share(run: RunSettings) -> float:
    """Return the share of rows that LLaMA-Factory drops, among the first rows of the run's data sets; 0 if it drops all
    of them, which is reported as an error."""
    read, trained = len(run.data.sampled_rows), len(first_rows(run))
    return 1 - trained / read if trained else 0.0
