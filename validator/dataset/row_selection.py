"""Selects the rows that a run trains and evaluates on, in their order: splits, `num_samples` and `max_samples`, mixing
of data sets, rows held back for evaluation, and packing.

Random draws equal those of LLaMA-Factory with the datasets library (data/loader.py, data/data_utils.py), because they
use the same numpy generators with the same seed."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validator.dataset import sequence_lengths
from validator.dataset.recipe_datasets import FatalProblem, LoadedDataset
from validator.errors import RecipeError
from validator.knowledge import releases
from validator.rows import truncation
from validator.rows.media_columns import PLACEHOLDERS, missing_media_remedy
from validator.rows.outcomes import ENDS_RUN, STATUS_REASONS, TRAINED
from validator.rows.truncation import CutImages
from validator.run.row_counts import parse_split
from validator.run.settings import RunSettings
from validator.wording import plural

Positions = NDArray[np.int64]
_NO_ROWS: Positions = np.empty(0, np.int64)


def draw_samples(counts: Sequence[tuple[range, int | None]], limit: int | None, seed: int) -> list[Positions]:
    """Return for each data set the rows that remain after `num_samples` and `max_samples`. `counts` holds for each data
    set its rows and its `num_samples` (None: all rows). `limit` is `max_samples` (None: no limit)."""
    generator = None
    left = []
    for rows, num_samples in counts:
        chosen = np.arange(rows.start, rows.stop)
        if num_samples is not None:
            generator = generator or np.random.RandomState(seed)
            drawn = generator.permutation(len(rows))[:num_samples]
            missing = num_samples - len(drawn)
            if missing > 0:
                drawn = np.concatenate((drawn, generator.choice(len(rows), missing)))
            chosen = drawn + rows.start
        left.append(chosen[: max(limit, 0)] if limit is not None else chosen)
    return left


def mix_datasets(parts: Sequence[Positions], strategy: str, weights: Sequence[float] | None, seed: int) -> Positions:
    """Return the rows of all data sets in the order in which the run trains on them. `parts` holds the positions of
    each data set's rows. `strategy` is `mix_strategy` and `weights` are the `interleave_probs`. Raises RecipeError if
    the datasets library does not accept the strategy."""
    if len(parts) == 1:
        return parts[0]
    if strategy == "concat":
        return np.concatenate([_NO_ROWS, *parts])
    if strategy not in ("interleave_under", "interleave_over"):
        library = releases.release_series(releases.verified_release("datasets"))
        factory = releases.verified_release("llamafactory")
        raise RecipeError(
            f"`mix_strategy: {strategy}` is refused by datasets {library}, which LLaMA-Factory {factory} needs"
        )
    sizes = [len(part) for part in parts]
    over = strategy == "interleave_over"
    if weights is not None:
        picked = _interleave_by_probability(sizes, weights, over, seed)
        return np.array([parts[i][at] for i, at in picked], np.int64)
    rounds = np.arange(max(sizes) if over else min(sizes))
    return np.stack([part[rounds % max(len(part), 1)] for part in parts], axis=1).ravel()


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


def train_test_split(count: int, size: float, seed: int) -> tuple[Positions, Positions]:
    """Split `count` rows and return the positions for training and those for evaluation. `size` is `val_size`: a share
    of the rows, or a number of rows. Raises RecipeError if no row is left for training."""
    if size <= 1e-6:
        return np.arange(count), _NO_ROWS
    if not size < max(count, 1):  # neither is .nan
        raise RecipeError(f"`val_size: {size:g}` of {count:,} {plural(count, 'row')} leaves none to train on")
    evaluated = int(size) if size > 1 or isinstance(size, int) else math.ceil(size * count)
    shuffled = np.random.default_rng(seed).permutation(count)
    return shuffled[evaluated:], shuffled[:evaluated]


_SHOWN_FATAL_ROWS = 3
_MAX_NUM_SAMPLES = 100_000_000  # rows that `num_samples` may ask for: 8 bytes each


@dataclass
class RowSelection:
    """The rows that a run trains and evaluates on. A position is the index of a row when the kept rows of all data sets
    stand one after the other.

    `stage` is the training stage. `sequences` is the number of examples that the Trainer counts. `evaluated` is the
    number of evaluation rows. `drops` counts dropped rows by the codes of rows/outcomes.py. `inexact_because` holds the
    reasons why the numbers are not exact."""

    sets: list[LoadedDataset]
    stage: str
    train: Positions = field(default_factory=lambda: _NO_ROWS)
    evaluation: Positions = field(default_factory=lambda: _NO_ROWS)
    sequences: int = 0
    evaluated: int = 0
    drops: Tally[int] = field(default_factory=Tally)
    problems: list[FatalProblem] = field(default_factory=list)
    inexact_because: list[str] = field(default_factory=list)

    @property
    def row_step(self) -> int:
        """Number of data rows that each position stands for. 1 unless the data have so many rows that only every n-th
        row is kept."""
        return max((one.rows.row_step for one in self.sets), default=1)

    @cached_property
    def rows(self) -> NDArray[Any]:
        """The kept rows of all data sets, one set after the other, as an array of row_scan.ROW."""
        parts = [one.rows.rows for one in self.sets]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @cached_property
    def are_images_cut(self) -> NDArray[np.bool_]:
        """True for each of `rows` of which `cutoff_len` cuts an image, which ends the run."""
        lengths = (self.rows[name] for name in ("image_tokens", "kept_tokens", "answer_tokens", "cut_answer_tokens"))
        return np.asarray(truncation.are_images_cut(self.stage, *lengths))

    def find(self, position: int) -> tuple[LoadedDataset, int]:
        """Return the data set that holds the row at a position (index into `rows`), and the index of the row in that
        data set."""
        for one in self.sets:
            if position < len(one.rows):
                return one, position
            position -= len(one.rows)
        raise IndexError(position)

    def place(self, position: int) -> str:
        """Return the place of the row at a position, which is an index into `rows`."""
        one, index = self.find(position)
        return one.rows.place(index * one.rows.row_step)

    def places(self, positions: Positions) -> list[str]:
        """Return the places of the rows at the first three of these positions, as examples. Positions are indices into
        `rows`."""
        return [self.place(int(position)) for position in positions[:3]]

    @property
    def uncounted_media(self) -> list[str]:
        """Kinds of media (images, videos, audios) in the rows whose tokens are not counted. If there are any, the
        number of tokens determines neither a good `cutoff_len` nor the memory and time of a batch."""
        return [kind for kind in PLACEHOLDERS if any(kind in one.rows.uncounted for one in self.sets)]

    def trained(self, positions: Positions) -> Positions:
        """Return those of the positions whose rows LLaMA-Factory does not drop, in their order. Positions are indices
        into `rows`."""
        kept: Positions = positions[self.rows["outcome"][positions] == TRAINED]
        return kept


def select_rows(run: RunSettings, sets: list[LoadedDataset]) -> RowSelection:
    """Return the rows that the run trains and evaluates on, in their order, with the problems for which LLaMA-Factory
    would stop."""
    selection = RowSelection(sets, run.task.stage, problems=[problem for one in sets for problem in one.problems])
    if selection.problems:
        return selection
    absent = [one.name for one in sets if one.note]
    if absent:  # which rows are drawn cannot be told
        selection.inexact_because.append(
            f"the rows of {', '.join(absent)} are not counted, because they are not on this machine"
        )
        selection.train = np.arange(sum(len(one.rows) for one in sets if not one.evaluates))
    else:
        try:
            selection.train, selection.evaluation = _train_and_eval_rows(run, selection)
        except RecipeError as err:
            selection.problems.append(FatalProblem(run.workspace.recipe, str(err)))
            return selection
        selection.problems += [*_fatal_row_problems(run, selection), *_cut_image_problems(run, selection)]
    codes, counts = np.unique(selection.rows["outcome"][selection.train], return_counts=True)
    selection.drops = Tally({int(code): int(rows) for code, rows in zip(codes, counts, strict=True) if code != TRAINED})
    selection.sequences = len(selection.train) - selection.drops.total() if absent else _count_sequences(run, selection)
    selection.evaluated = len(selection.trained(selection.evaluation))
    if selection.row_step > 1:  # each row stands for several
        read, step = sum(one.rows.read for one in sets), selection.row_step
        selection.inexact_because.append(
            f"one in {step} of {read:,} rows was examined, and the counts are multiplied by {step}"
        )
        selection.drops = Tally({code: rows * step for code, rows in selection.drops.items()})
        selection.sequences, selection.evaluated = selection.sequences * step, selection.evaluated * step
    if not (selection.sequences or selection.problems or absent) and run.task.trains:
        selection.problems.append(_nothing_to_train(run, selection))
    return selection


def _train_and_eval_rows(run: RunSettings, selection: RowSelection) -> tuple[Positions, Positions]:
    seed, limit, step = int(run.args.number("seed")), run.args.get("max_samples"), selection.row_step
    starts, counts, at = [], [], 0
    for one in selection.sets:
        entry = one.dataset.entry if one.dataset else {}
        num_samples = entry.get("num_samples")
        span = parse_split(str(entry.get("split", "train")), one.rows.read)
        if num_samples and num_samples > _MAX_NUM_SAMPLES:
            raise RecipeError(
                f"`num_samples` of `{one.name}` is {num_samples:,}, at most {_MAX_NUM_SAMPLES:,} are drawn here"
            )
        span = range(span.start // step, min(-(-span.stop // step), len(one.rows)))
        counts.append((span, num_samples and -(-num_samples // step)))
        starts.append(at)
        at += len(one.rows)
    drawn = draw_samples(counts, -(-limit // step) if isinstance(limit, int) else None, seed)
    placed = [part + start for part, start in zip(drawn, starts, strict=True)]
    trained = [part for one, part in zip(selection.sets, placed, strict=True) if not one.evaluates]
    evaluated = [part for one, part in zip(selection.sets, placed, strict=True) if one.evaluates]
    strategy, weights = str(run.args.get("mix_strategy")), _interleave_probs(run)
    mixed = mix_datasets(trained, strategy, weights, seed)
    if evaluated:
        return mixed, mix_datasets(evaluated, strategy, weights, seed)
    value = run.args.get("val_size")
    size = value if isinstance(value, (int, float)) else 0
    train, back = train_test_split(len(mixed), -(-size // step) if size >= 1 else size, seed)
    return mixed[train], mixed[back]


def _interleave_probs(run: RunSettings) -> list[float] | None:
    try:
        return [float(word) for word in run.args.words("interleave_probs")] or None
    except ValueError:
        raise RecipeError("`interleave_probs` holds something other than numbers") from None


def _fatal_row_problems(run: RunSettings, selection: RowSelection) -> Iterator[FatalProblem]:
    """Yield the problems of selected rows that end the run, for at most three rows; the last says how many more there
    are. Rows of which a media file is
    missing are one problem. In stage kto, also yield the problem of a row without an answer that precedes a trained
    row."""
    incomplete: set[str] = set()
    positions = np.concatenate((selection.train, selection.evaluation))
    every = positions[selection.rows["outcome"][positions] == ENDS_RUN]
    fatal = every[:_SHOWN_FATAL_ROWS]
    for position in fatal:
        one, index = selection.find(int(position))
        number = max(number for number in one.rows.fatal if number // one.rows.row_step == index)
        message, remedy = one.rows.fatal[number], ""
        if number in one.rows.missing and one.dataset:
            if one.name in incomplete:
                continue
            incomplete.add(one.name)
            missing = [*one.rows.missing.values()]
            total = len(missing) + int(np.count_nonzero(one.rows.rows["media_hash"])) * one.rows.row_step
            message += f" (files are missing in {len(missing):,} of {total:,} rows)" if total > 1 else ""
            remedy = missing_media_remedy(missing, total, run.data.folders_near(one.dataset))
        elif position == fatal[-1] and len(every) > len(fatal):
            message += f" (and {(len(every) - len(fatal)) * selection.row_step:,} more rows are wrong)"
        yield FatalProblem(one.rows.place(number), message, remedy)
    if run.task.stage == "kto" and not len(fatal) and (at := _kto_row_without_turns(run, selection)) is not None:
        yield FatalProblem(selection.place(at), "has no turns; stage kto pairs the row after it with its answer")


def _cut_image_problems(run: RunSettings, selection: RowSelection) -> Iterator[FatalProblem]:
    """Yield the problem that `cutoff_len` cuts images of selected rows, unless the size of an image is not known."""
    selected = selection.trained(np.concatenate((selection.train, selection.evaluation)))
    positions = selected[selection.are_images_cut[selected]]
    if not len(positions) or any("unread" in one.rows.image_faults for one in selection.sets):
        return
    step, rows = selection.row_step, selection.rows[positions]
    cut = CutImages(len(rows) * step, int(rows["image_tokens"].max()), int(rows["tokens"].max()))
    found = cut.found(int(run.args.number("cutoff_len")), f"{len(selected) * step:,} rows")
    yield FatalProblem(selection.place(int(positions.min())), found, cut.remedy)


def packing_batches(run: RunSettings, rows: Positions) -> Iterator[Positions]:
    """Yield the rows that LLaMA-Factory preprocesses together. Each of the `preprocessing_num_workers` processes gets
    an equal share of the rows and cuts the share into batches of `preprocessing_batch_size`."""
    size = max(int(run.args.number("preprocessing_batch_size")), 1)
    processes = max(int(run.args.number("preprocessing_num_workers")), 1)
    for share in np.array_split(rows, processes):
        yield from (share[at : at + size] for at in range(0, len(share), size))


def _kto_row_without_turns(run: RunSettings, selection: RowSelection) -> int | None:
    """Return the position of the first row without an answer that precedes a trained row; None if there is no such row.
    KTO pairs each row with the answer of the row before it in its batch, and fails if that row has no answer."""
    for batch in packing_batches(run, selection.train):
        before = np.roll(batch, 1)
        failing = (selection.rows["outcome"][batch] == TRAINED) & (selection.rows["answers"][before] == 0)
        if failing.any():
            return int(before[failing][0])
    return None


def _count_sequences(run: RunSettings, selection: RowSelection) -> int:
    if not run.batch.packing:
        return len(selection.train) - selection.drops.total()
    limit, sequences = max(run.batch.kept_tokens, 1), 0
    for batch in packing_batches(run, selection.train):
        lengths = selection.rows["kept_tokens"][selection.trained(batch)].tolist()
        if run.task.stage == "pt":  # the rest of a batch, shorter than a block, is dropped
            sequences += sum(lengths) // limit
        else:
            sequences += sequence_lengths.count_packed_sequences(lengths, limit)
    return sequences


def _nothing_to_train(run: RunSettings, selection: RowSelection) -> FatalProblem:
    if reason := selection.drops.most_common(1):
        return selection.sets[0].no_rows_problem(run.task.stage, STATUS_REASONS[reason[0][0]])
    short = "all rows together are shorter than one packed sequence of `cutoff_len` tokens"
    return FatalProblem(
        selection.sets[0].name, short if len(selection.train) and run.batch.packing else "no row is left to train on"
    )
