"""Which rows a run trains and evaluates on, and in which order: split, samples drawn, sets mixed, rows held back,
packing.

The draws are those of LLaMA-Factory with the datasets library (data/loader.py, data/data_utils.py): the same
numpy generators with the same seed."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from validator.dataset import sequence_lengths
from validator.dataset.recipe_datasets import FatalProblem, LoadedDataset, explain_no_rows
from validator.errors import RecipeError
from validator.knowledge import releases
from validator.rows.outcomes import ENDS_RUN, STATUS_REASONS, TRAINED
from validator.run.prediction import Job
from validator.wording import plural

_SPLIT_SLICE = re.compile(r"train(?:\[(-?\d+)?(%)?:(-?\d+)?(%)?\])?")


def parse_split(split: str, count: int) -> range:
    """Rows of a split such as `train[:20%]`. Raises RecipeError for one that is not understood."""
    bounds = _SPLIT_SLICE.fullmatch(split)
    if bounds is None:
        raise RecipeError(f"the split `{split}` is not understood")
    first, last = (_slice_bound(bounds[i], bounds[i + 1], count) for i in (1, 3))
    return range(0 if first is None else first, count if last is None else last)


def _slice_bound(number: str | None, percent: str | None, count: int) -> int | None:
    if number is None:
        return None
    value = round(count * int(number) / 100) if percent else int(number)
    return min(max(value + count if value < 0 else value, 0), count)


def draw_samples(counts: Sequence[tuple[range, int | None]], limit: int | None, seed: int) -> list[Any]:
    """For each set (its rows, `num_samples`) the indices that are left after `num_samples` and `max_samples`."""
    generator: Any = None
    left: list[Any] = []
    for rows, wanted in counts:
        chosen: Any = rows
        if wanted is not None:
            generator = generator or np.random.RandomState(seed)
            chosen = _draw_num_samples(rows, wanted, generator)
        left.append(chosen[: max(limit, 0)] if limit is not None else chosen)
    return left


def _draw_num_samples(rows: range, wanted: int, generator: Any) -> Any:
    first = generator.permutation(len(rows))[:wanted]
    more = wanted - len(first)
    if more > 0:
        first = np.concatenate((first, generator.choice(len(rows), more)))
    return first + rows.start


def mix_datasets(parts: Sequence[Any], strategy: str, weights: Sequence[float] | None, seed: int) -> Any:
    """The rows of all sets in the order of training. Raises RecipeError for a strategy that the run refuses."""
    if len(parts) == 1:
        return parts[0]
    if strategy == "concat":
        return array("q", chain.from_iterable(parts))
    if strategy not in ("interleave_under", "interleave_over"):
        library, factory = (
            releases.release_series(releases.verified_release("datasets")),
            releases.verified_release("llamafactory"),
        )
        raise RecipeError(
            f"`mix_strategy: {strategy}` is refused by datasets {library}, which LLaMA-Factory {factory} needs"
        )
    sizes = [len(part) for part in parts]
    over = strategy == "interleave_over"
    if weights is not None:
        return array("q", (int(parts[i][at]) for i, at in _interleave_by_probability(sizes, weights, over, seed)))
    rounds = max(sizes) if over else min(sizes)
    return array("q", (int(part[at % len(part)]) for at in range(rounds) for part in parts))


def _interleave_by_probability(
    sizes: Sequence[int], weights: Sequence[float], over: bool, seed: int
) -> list[tuple[int, int]]:
    generator = np.random.default_rng(seed)
    picked: list[tuple[int, int]] = []
    position, done = [0] * len(sizes), [False] * len(sizes)
    while True:
        for i in map(int, generator.choice(len(sizes), size=1000, p=weights)):
            if all(done) if over else any(done):
                return picked
            picked.append((i, position[i]))
            position[i] += 1
            if position[i] >= sizes[i]:
                done[i], position[i] = True, 0


def train_test_split(count: int, size: float, seed: int) -> tuple[Any, Any]:
    """Positions trained on and positions evaluated on, for `val_size` as a share or a number. Raises RecipeError where
    nothing is left to train on."""
    if size <= 1e-6:
        return range(count), range(0)
    if not size < max(count, 1):  # neither is .nan
        raise RecipeError(f"`val_size: {size:g}` of {count:,} {plural(count, 'row')} leaves none to train on")
    evaluated = int(size) if size > 1 or isinstance(size, int) else math.ceil(size * count)
    shuffled = np.random.default_rng(seed).permutation(count)
    return shuffled[evaluated:], shuffled[:evaluated]


_MAX_NUM_SAMPLES = 100_000_000  # rows that `num_samples` may ask for: 8 bytes each


@dataclass
class RowSelection:
    """Positions are those of all sets' rows one behind the other. `sequences` is what the Trainer counts as examples;
    `why_not` says what keeps the figures from being exact."""

    sets: list[LoadedDataset]
    train: Sequence[int] = ()
    evaluation: Sequence[int] = ()
    sequences: int = 0
    evaluated: int = 0
    drops: Tally[int] = field(default_factory=Tally)
    problems: list[FatalProblem] = field(default_factory=list)
    why_not: list[str] = field(default_factory=list)

    @property
    def stride(self) -> int:
        """How many rows each position stands for."""
        return max((one.rows.stride for one in self.sets), default=1)

    def find(self, position: int) -> tuple[LoadedDataset, int]:
        """The set and the row in it that a position means."""
        for one in self.sets:
            if position < len(one.rows):
                return one, position
            position -= len(one.rows)
        raise IndexError(position)

    def place(self, position: int) -> str:
        """`file:row` of a position."""
        one, index = self.find(position)
        return one.rows.place(index)

    def column(self, name: str) -> Sequence[int]:
        """One figure of all rows of all sets, by position."""
        if len(self.sets) == 1:
            only: Sequence[int] = getattr(self.sets[0].rows, name)
            return only
        parts = [getattr(one.rows, name) for one in self.sets]
        whole = parts[0][:0]
        for part in parts:
            whole += part
        joined: Sequence[int] = whole
        return joined

    def kept(self, positions: Iterable[int]) -> list[int]:
        """Those that are trained on, in order."""
        fates = self.column("fates")
        return [int(at) for at in positions if fates[at] == TRAINED]


def select_rows(job: Job, sets: list[LoadedDataset]) -> RowSelection:
    """What is trained and evaluated on, in order, and why the run would stop."""
    run = RowSelection(sets, problems=[problem for one in sets for problem in one.problems])
    if run.problems:
        return run
    if absent := [one.name for one in sets if one.note]:
        _take_all(run, f"without the rows of {', '.join(absent)}, which are not on this machine")
        return run
    try:
        run.train, run.evaluation = _train_and_eval_rows(job, run)
    except RecipeError as err:
        run.problems.append(FatalProblem(job.workspace.recipe, str(err)))
        return run
    run.problems += _fatal_row_problems(job, run)
    fates = run.column("fates")
    run.drops = Tally(fates[at] for at in run.train if fates[at] != TRAINED)
    run.sequences = _count_sequences(job, run, run.train)
    run.evaluated = len(run.kept(run.evaluation)) if run.evaluation is not None else 0
    _scale_by_stride(run)
    if not run.sequences and not run.problems and job.task.trains:
        run.problems.append(_nothing_to_train(job, run))
    return run


def _scale_by_stride(run: RowSelection) -> None:
    """Figures of all rows, where each stands for several."""
    if run.stride > 1:
        read = sum(one.rows.read for one in run.sets)
        run.why_not.append(f"of {read:,} rows one in {run.stride} is looked at closely, and counted {run.stride} times")
        run.drops = Tally({code: rows * run.stride for code, rows in run.drops.items()})
        run.sequences, run.evaluated = run.sequences * run.stride, run.evaluated * run.stride


def _take_all(run: RowSelection, why: str) -> None:
    """All rows that are there, where it cannot be told which are drawn."""
    run.why_not.append(why)
    run.train = range(sum(len(one.rows) for one in run.sets if not one.evaluates))
    fates = run.column("fates")
    run.drops = Tally(fates[at] for at in run.train if fates[at] != TRAINED)
    run.sequences = len(run.train) - run.drops.total()
    _scale_by_stride(run)


def _train_and_eval_rows(job: Job, run: RowSelection) -> tuple[Sequence[int], Sequence[int]]:
    seed, limit = int(job.args.number("seed")), job.args.get("max_samples")
    starts, counts, at = [], [], 0
    for one in run.sets:
        entry = one.dataset.entry if one.dataset else {}
        wanted = entry.get("num_samples")
        held = parse_split(str(entry.get("split", "train")), one.rows.read)
        if wanted and wanted > _MAX_NUM_SAMPLES:
            raise RecipeError(
                f"`num_samples` of `{one.name}` is {wanted:,}, at most {_MAX_NUM_SAMPLES:,} are drawn here"
            )
        held = range(held.start // run.stride, min(-(-held.stop // run.stride), len(one.rows)))
        counts.append((held, wanted and -(-wanted // run.stride)))
        starts.append(at)
        at += len(one.rows)
    drawn = draw_samples(counts, -(-limit // run.stride) if isinstance(limit, int) else None, seed)
    placed = [_shift_rows(part, start) for part, start in zip(drawn, starts, strict=True)]
    trained = [part for one, part in zip(run.sets, placed, strict=True) if not one.evaluates]
    evaluated = [part for one, part in zip(run.sets, placed, strict=True) if one.evaluates]
    strategy, weights = str(job.args.get("mix_strategy")), _interleave_probs(job)
    mixed = mix_datasets(trained, strategy, weights, seed)
    if evaluated:
        return mixed, mix_datasets(evaluated, strategy, weights, seed)
    value = job.args.get("val_size")
    size = value if isinstance(value, (int, float)) else 0
    train, back = train_test_split(len(mixed), -(-size // run.stride) if size >= 1 else size, seed)
    return _rows_at(mixed, train), _rows_at(mixed, back)


def _shift_rows(part: Any, start: int) -> Any:
    if not start:
        return part
    return range(part.start + start, part.stop + start) if isinstance(part, range) else part + start


def _rows_at(rows: Sequence[int], positions: Sequence[int]) -> Sequence[int]:
    if (isinstance(rows, range) and rows.start == 0) or len(positions) == 0:
        return positions
    return [rows[at] for at in positions]


def _interleave_probs(job: Job) -> list[float] | None:
    try:
        return [float(word) for word in job.args.words("interleave_probs")] or None
    except ValueError:
        raise RecipeError("`interleave_probs` holds something other than numbers") from None


def _fatal_row_problems(job: Job, run: RowSelection) -> Iterator[FatalProblem]:
    """Rows that end the run, at most three."""
    fates, answers = run.column("fates"), run.column("answers")
    taken = [*run.train, *run.evaluation]
    stopped = [at for at in taken if fates[at] == ENDS_RUN][:3]
    for at in stopped:
        one, index = run.find(int(at))
        yield FatalProblem(one.rows.place(index), one.rows.stops[index])
    if job.task.stage == "kto" and not stopped:
        for at in _kto_rows_without_neighbour(job, run.train, fates, answers):
            yield FatalProblem(run.place(at), "has no turns, and the row behind it is compared with its answer (kto)")


def _kto_rows_without_neighbour(
    job: Job, rows: Sequence[int], fates: Sequence[int], answers: Sequence[int]
) -> list[int]:
    """KTO pairs each row with the answer of the one before it in its batch; without one it fails."""
    size, processes = (
        int(job.args.number("preprocessing_batch_size")),
        int(job.args.number("preprocessing_num_workers")),
    )
    for batch in sequence_lengths.packing_batches(len(rows), max(size, 1), processes):
        for at in batch:
            before = rows[at - 1 if at > batch.start else batch.stop - 1]
            if fates[rows[at]] == TRAINED and not answers[before]:
                return [int(before)]
    return []


def _count_sequences(job: Job, run: RowSelection, rows: Sequence[int]) -> int:
    if not job.batch.packing:
        return len(rows) - sum(run.drops.values())
    fates, tokens = run.column("fates"), run.column("kept")
    fill = sequence_lengths.count_text_blocks if job.task.stage == "pt" else sequence_lengths.count_packed_sequences
    size, processes = (
        int(job.args.number("preprocessing_batch_size")),
        int(job.args.number("preprocessing_num_workers")),
    )
    return sum(
        fill([tokens[rows[at]] for at in batch if fates[rows[at]] == TRAINED], max(job.batch.kept_tokens, 1))
        for batch in sequence_lengths.packing_batches(len(rows), max(size, 1), processes)
    )


def _nothing_to_train(job: Job, run: RowSelection) -> FatalProblem:
    if reason := run.drops.most_common(1):
        return explain_no_rows(job, run.sets[0], STATUS_REASONS[reason[0][0]])
    short = "all rows together are shorter than one packed sequence of `cutoff_len` tokens"
    return FatalProblem(
        run.sets[0].name, short if len(run.train) and job.batch.packing else "no row is left to train on"
    )
