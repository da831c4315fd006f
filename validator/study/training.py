"""From the rows of all sets to what a run trains and evaluates on."""

from __future__ import annotations

import json
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from validator.diagnostic import RecipeError
from validator.job.job import Job
from validator.samples.fate import KEPT, REASONS, STOPS
from validator.study import order, packing
from validator.study.sets import Problem, Set, explained

_DRAWN = 100_000_000  # rows that `num_samples` may ask for: 8 bytes each


@dataclass
class Training:
    """Positions are those of all sets' rows one behind the other. `sequences` is what the Trainer counts as examples;
    `why_not` says what keeps the figures from being exact."""

    sets: list[Set]
    train: Sequence[int] = ()
    evaluation: Sequence[int] = ()
    sequences: int = 0
    evaluated: int = 0
    drops: Tally[int] = field(default_factory=Tally)
    problems: list[Problem] = field(default_factory=list)
    why_not: list[str] = field(default_factory=list)

    @property
    def stride(self) -> int:
        """How many rows each position stands for."""
        return max((one.rows.stride for one in self.sets), default=1)

    def find(self, position: int) -> tuple[Set, int]:
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
        return [int(at) for at in positions if fates[at] == KEPT]


def training(job: Job, sets: list[Set]) -> Training:
    """What is trained and evaluated on, in order, and why the run would stop."""
    run = Training(sets, problems=[problem for one in sets for problem in one.problems])
    if run.problems:
        return run
    if absent := [one.name for one in sets if one.note]:
        _all(run, f"without the rows of {', '.join(absent)}, which are not on this machine")
        return run
    try:
        run.train, run.evaluation = _chosen(job, run)
    except RecipeError as err:
        _say(run, job, str(err))
        return run
    run.problems += _stops(job, run)
    fates = run.column("fates")
    run.drops = Tally(fates[at] for at in run.train if fates[at] != KEPT)
    run.sequences = _sequences(job, run, run.train)
    run.evaluated = len(run.kept(run.evaluation)) if run.evaluation is not None else 0
    _scale(run)
    if not run.sequences and not run.problems and job.trains:
        run.problems.append(_nothing(job, run))
    return run


def _scale(run: Training) -> None:
    """Figures of all rows, where each stands for several."""
    if run.stride > 1:
        read = sum(one.rows.read for one in run.sets)
        run.why_not.append(f"of {read:,} rows one in {run.stride} is looked at closely, and counted {run.stride} times")
        run.drops = Tally({code: rows * run.stride for code, rows in run.drops.items()})
        run.sequences, run.evaluated = run.sequences * run.stride, run.evaluated * run.stride


def _say(run: Training, job: Job, why: str) -> None:
    """Without numpy all rows are taken; anything else that cannot be drawn stops the run."""
    if "numpy" not in why:
        run.problems.append(Problem(job.path, why))
        return
    _all(run, why)


def _all(run: Training, why: str) -> None:
    """All rows that are there, where it cannot be told which are drawn."""
    run.why_not.append(why)
    run.train = range(sum(len(one.rows) for one in run.sets if not one.evaluates))
    fates = run.column("fates")
    run.drops = Tally(fates[at] for at in run.train if fates[at] != KEPT)
    run.sequences = len(run.train) - run.drops.total()
    _scale(run)


def _chosen(job: Job, run: Training) -> tuple[Sequence[int], Sequence[int]]:
    seed, limit = int(job.number("seed")), job.get("max_samples")
    starts, counts, at = [], [], 0
    for one in run.sets:
        entry = one.dataset.entry if one.dataset else {}
        wanted = entry.get("num_samples")
        if not isinstance(wanted, int | None):
            raise RecipeError(f"`num_samples` of `{one.name}` is {json.dumps(wanted)}, not a whole number")
        held = order.part(str(entry.get("split", "train")), one.rows.read)
        if wanted and wanted > _DRAWN:
            raise RecipeError(f"`num_samples` of `{one.name}` is {wanted:,}, at most {_DRAWN:,} are drawn here")
        held = range(held.start // run.stride, min(-(-held.stop // run.stride), len(one.rows)))
        counts.append((held, wanted and -(-wanted // run.stride)))
        starts.append(at)
        at += len(one.rows)
    drawn = order.drawn(counts, -(-limit // run.stride) if isinstance(limit, int) else None, seed)
    placed = [_shifted(part, start) for part, start in zip(drawn, starts, strict=True)]
    trained = [part for one, part in zip(run.sets, placed, strict=True) if not one.evaluates]
    evaluated = [part for one, part in zip(run.sets, placed, strict=True) if one.evaluates]
    strategy, weights = str(job.get("mix_strategy")), _weights(job)
    mixed = order.mixed(trained, strategy, weights, seed)
    if evaluated:
        return mixed, order.mixed(evaluated, strategy, weights, seed)
    value = job.get("val_size")
    size = value if isinstance(value, (int, float)) else 0
    train, back = order.held_back(len(mixed), -(-size // run.stride) if size >= 1 else size, seed)
    return _picked(mixed, train), _picked(mixed, back)


def _shifted(part: Any, start: int) -> Any:
    if not start:
        return part
    return range(part.start + start, part.stop + start) if isinstance(part, range) else part + start


def _picked(rows: Sequence[int], positions: Sequence[int]) -> Sequence[int]:
    if (isinstance(rows, range) and rows.start == 0) or len(positions) == 0:
        return positions
    return [rows[at] for at in positions]


def _weights(job: Job) -> list[float] | None:
    try:
        return [float(word) for word in job.words("interleave_probs")] or None
    except ValueError:
        raise RecipeError("`interleave_probs` holds something other than numbers") from None


def _stops(job: Job, run: Training) -> Iterator[Problem]:
    """Rows that end the run, at most three."""
    fates, answers = run.column("fates"), run.column("answers")
    taken = [*run.train, *run.evaluation]
    stopped = [at for at in taken if fates[at] == STOPS][:3]
    for at in stopped:
        one, index = run.find(int(at))
        yield Problem(one.rows.place(index), one.rows.stops[index])
    if job.stage == "kto" and not stopped:
        for at in _neighbours(job, run.train, fates, answers):
            yield Problem(run.place(at), "has no turns, and the row behind it is compared with its answer (kto)")


def _neighbours(job: Job, rows: Sequence[int], fates: Sequence[int], answers: Sequence[int]) -> list[int]:
    """KTO pairs each row with the answer of the one before it in its batch; without one it fails."""
    size, processes = int(job.number("preprocessing_batch_size")), int(job.number("preprocessing_num_workers"))
    for batch in packing.batches(len(rows), max(size, 1), processes):
        for at in batch:
            before = rows[at - 1 if at > batch.start else batch.stop - 1]
            if fates[rows[at]] == KEPT and not answers[before]:
                return [int(before)]
    return []


def _sequences(job: Job, run: Training, rows: Sequence[int]) -> int:
    if not job.packs:
        return len(rows) - sum(run.drops.values())
    fates, tokens = run.column("fates"), run.column("kept")
    fill = packing.blocks if job.stage == "pt" else packing.packed
    size, processes = int(job.number("preprocessing_batch_size")), int(job.number("preprocessing_num_workers"))
    return sum(
        fill([tokens[rows[at]] for at in batch if fates[rows[at]] == KEPT], max(job.length, 1))
        for batch in packing.batches(len(rows), max(size, 1), processes)
    )


def _nothing(job: Job, run: Training) -> Problem:
    if reason := run.drops.most_common(1):
        return explained(job, run.sets[0], REASONS[reason[0][0]])
    short = "all rows together are shorter than one packed sequence of `cutoff_len` tokens"
    return Problem(run.sets[0].name, short if len(run.train) and job.packs else "no row is left to train on")
