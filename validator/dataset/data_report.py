"""The answer of `data`: its dataclasses, and the function that fills them for a recipe or a data file.

The fields are the keys of the JSON output, in their order; a `_` at the end of a name is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from validator.dataset import (
    near_duplicates,
    quality,
    recipe_datasets,
    sample_guidance,
    sequence_lengths,
    token_counting,
    user_data,
)
from validator.dataset.quality import QualityIssue
from validator.dataset.recipe_datasets import FatalProblem, LoadedDataset
from validator.dataset.row_scan import OnRows
from validator.dataset.row_selection import Positions, RowSelection, select_rows
from validator.dataset.sample_guidance import SampleGuidance
from validator.dataset.sequence_lengths import HistogramBar
from validator.dataset.token_counting import TokenCounter
from validator.errors import RecipeError
from validator.knowledge.guidance import BLOCK_TOKENS
from validator.output.progress import ProgressBar
from validator.physics import Band
from validator.physics.estimate import GIB
from validator.rows import reading_limits
from validator.rows.outcomes import STATUS_REASONS
from validator.run import calibration
from validator.run.hyperparameters import padded_to_eight
from validator.run.prediction import predict
from validator.run.schedule import Schedule, training_schedule
from validator.run.settings import RunSettings
from validator.run.training_time import predict_training_time
from validator.wording import four_digits


@dataclass(frozen=True)
class DatasetSummary:
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
class DroppedRows:
    """Rows that LLaMA-Factory leaves out for one reason, and a few places."""

    reason: str
    rows: int
    examples: list[str]


@dataclass(frozen=True)
class TokenTotals:
    """Lengths before `cutoff_len`, and what it leaves of them. `source` is how they were counted."""

    source: str
    exact: bool
    mean: int
    median: int
    p95: int
    p99: int
    longest: int
    histogram: Sequence[HistogramBar]
    per_epoch: int
    answers_per_epoch: int
    rows_cut: int
    tokens_cut: int
    recommended_cutoff_len: int | None


@dataclass(frozen=True)
class LongestBatchMemory:
    """Device memory with the longest batch there is (`longest` tokens), and at `cutoff_len`; GiB of 2^30 bytes."""

    longest: int
    longest_gib: float
    cutoff_gib: float
    usable_gib: float | None


@dataclass(frozen=True)
class DataReport:
    """Everything that is said of a recipe's data; None: not known, or there is nothing to say."""

    path: str
    model: str | None
    stage: str
    method: str
    template: str | None
    cutoff_len: int
    sets: Sequence[DatasetSummary]
    problems: Sequence[FatalProblem]
    notes: Sequence[str]
    rows: RowCounts
    drops: Sequence[DroppedRows]
    steps: Schedule | None
    tokens: TokenTotals
    memory: LongestBatchMemory | None
    amount: SampleGuidance
    quality: Sequence[QualityIssue]
    time: RunDuration | None


_LENGTH_QUANTILES = 500  # equally likely lengths that stand for all


@dataclass(frozen=True)
class RunDuration:
    """Seconds of a step and hours of the run on a machine, each with its 90 % band."""

    machine: str
    step_seconds: Band
    hours: Band


def run_duration(run: RunSettings, sequences: int, lengths: Sequence[int]) -> RunDuration | None:
    """Return the time of a run on so many sequences of these lengths, in tokens; None if no machine is named, or
    nothing is known of its rates or of the model."""
    if not sequences or not lengths:
        return None
    ordered = sorted(lengths)
    quantiles = tuple(ordered[at * len(ordered) // _LENGTH_QUANTILES] for at in range(_LENGTH_QUANTILES))
    found = predict_training_time(run, sequences, quantiles, calibration.time_correction(str(run.machine)))
    if found is None or found.hours is None:
        return None
    step = Band(found.step.low, found.step.expected, found.step.high)
    return RunDuration(str(run.machine), *(Band(*map(four_digits, band)) for band in (step, found.hours)))


# Near duplicates among more rows are looked for only when asked: they take most of the time.
MAX_NEAR_DUPLICATE_ROWS = 200_000
_EXAMPLES = 3


def build_report(run: RunSettings, near: bool | None, report: OnRows) -> DataReport:
    """Return the report on a run's data. `near`: look for near duplicates; None: if they are quick to find. Raises
    RecipeError if there are no data to look at."""
    if run.data.is_tokenized:
        raise RecipeError(
            f"{run.workspace.recipe}: `tokenized_path` holds tokenized data, which is trained on as it is"
        )
    counter, reason = token_counting.best_counter(run)
    chosen = recipe_datasets.load_datasets(run, counter, report)
    if not chosen:
        raise RecipeError(f"{run.workspace.recipe}: names no data set; set `dataset`")
    selection = select_rows(run, chosen)
    trained = selection.trained(selection.train)
    rows, evaluated = np.unique(trained), np.unique(selection.trained(selection.evaluation))
    whole = not any(one.note for one in chosen)
    steps = training_schedule(run, selection.sequences) if selection.sequences and whole else None
    exact = not selection.inexact_because and (counter.exact or not run.batch.packing)
    first, again = quality.exact_duplicates(selection, rows)
    lengths = _token_totals(run, selection, counter, trained)
    amounts = math.ceil(lengths.per_epoch / BLOCK_TOKENS) if run.task.stage == "pt" else len(first) * selection.row_step
    unlooked = _why_near_duplicates_skipped(near, len(rows), selection.row_step)
    alike = [] if unlooked else _near_duplicate_issues(run, selection, first, len(rows), counter, report)
    return DataReport(
        path=run.workspace.recipe,
        model=run.model_name,
        stage=run.task.stage,
        method=run.task.method,
        template=run.args.get("template"),
        cutoff_len=int(run.args.number("cutoff_len")),
        sets=[_dataset_summary(one) for one in chosen],
        problems=selection.problems,
        notes=[*_report_notes(run, selection, reason), *([unlooked] if unlooked else [])],
        rows=RowCounts(
            read=sum(one.rows.read for one in chosen),
            selected=len(selection.train) * selection.row_step,
            dropped=selection.drops.total(),
            trained=len(trained) * selection.row_step,
            evaluated=selection.evaluated,
            sequences=selection.sequences,
            exact=exact,
        ),
        drops=list(_dropped_rows(selection)),
        steps=steps,
        tokens=lengths,
        memory=_longest_batch_memory(run, selection, rows),
        amount=sample_guidance.judge_sample_count(run, amounts if whole else 0, steps.epochs if steps else 0.0),
        quality=[
            replace(one, rows=one.rows * selection.row_step)
            for one in (*quality.quality_issues(selection, rows, evaluated, again), *alike)
        ],
        time=run_duration(run, selection.sequences, selection.rows["kept_tokens"][trained].tolist())
        if steps and not _holds_media(selection)
        else None,
    )


def _dataset_summary(one: LoadedDataset) -> DatasetSummary:
    return DatasetSummary(
        name=one.name,
        role="evaluation" if one.evaluates else "training",
        source=one.dataset.source if one.dataset else None,
        formatting=one.attr.formatting,
        files=[str(path) for path in one.files],
        rows=one.rows.read,
        columns=[*one.rows.column_types],
        note=one.note,
    )


def _report_notes(run: RunSettings, selection: RowSelection, reason: str) -> Iterator[str]:
    """Yield what keeps figures from being exact."""
    if reason:
        yield f"token counts are estimates: {reason}"
    elif not run.args.is_set("template") and run.task.stage != "pt":
        yield "no `template`: what the tokenizer's own chat template adds to a sample is not counted"
    if any(one.rows.tools_approximated for one in selection.sets):
        yield "descriptions and calls of tools are counted as they stand in the data, not as the template writes them"
    if _holds_media(selection):
        yield "images, videos and audios are not counted; each adds tokens"
    if run.args.flag("streaming"):
        yield "streamed data are read row by row until `max_steps`; the counts are those of the files"
    yield from selection.inexact_because


def _holds_media(selection: RowSelection) -> bool:
    """Whether rows hold more than text, so that their tokens alone say neither where to cut nor what a batch needs."""
    return any(one.attr.has_media for one in selection.sets)


def _dropped_rows(selection: RowSelection) -> Iterator[DroppedRows]:
    outcome = selection.rows["outcome"][selection.train]
    for code, rows in selection.drops.most_common():
        places = map(selection.place, selection.train[outcome == code][:_EXAMPLES])
        yield DroppedRows(STATUS_REASONS[code], rows, list(places))


def _token_totals(run: RunSettings, selection: RowSelection, counter: TokenCounter, trained: Positions) -> TokenTotals:
    tokens, kept, answers, cut = (
        selection.rows[name][trained] for name in ("tokens", "kept_tokens", "answer_tokens", "cut_answer_tokens")
    )
    ordered = np.sort(tokens).tolist()
    positions = run.model.positions if run.model else None
    recommended = ordered and not _holds_media(selection)
    return TokenTotals(
        source=counter.name,
        exact=counter.exact and not any(one.rows.tools_approximated for one in selection.sets),
        **vars(sequence_lengths.length_distribution(ordered)),
        per_epoch=int(kept.sum()) * selection.row_step,
        answers_per_epoch=int(answers.sum() - cut.sum()) * selection.row_step,
        rows_cut=int(np.count_nonzero(tokens > kept)) * selection.row_step,
        tokens_cut=int(tokens.sum() - kept.sum()) * selection.row_step,
        recommended_cutoff_len=sequence_lengths.recommend_cutoff_len(ordered, positions) if recommended else None,
    )


def _longest_batch_memory(run: RunSettings, selection: RowSelection, rows: Positions) -> LongestBatchMemory | None:
    """Return the device memory with the longest batch there is, and with `cutoff_len`; None if it is not known."""
    limit = int(run.args.number("cutoff_len"))
    most = int(selection.rows["kept_tokens"][rows].max(initial=0))
    longest = limit if run.batch.packing else min(padded_to_eight(most), limit)
    real, at_limit = (predict(each).device_memory for each in (run.updated({"cutoff_len": longest}), run))
    if not longest or _holds_media(selection) or at_limit is None or real is None:
        return None
    usable = run.machine.device.usable_gib if run.machine else None
    longest_gib, cutoff_gib = (round(each.expected / GIB, 2) for each in (real, at_limit))
    return LongestBatchMemory(longest, longest_gib, cutoff_gib, usable)


def _near_duplicate_issues(
    run: RunSettings, selection: RowSelection, first: Positions, rows: int, counter: TokenCounter, report: OnRows
) -> Iterator[QualityIssue]:
    """Yield the near duplicates within each data set. `rows` is the number of rows looked at, `first` are the positions
    of those that are no exact duplicates."""
    start, pairs = 0, []
    for one in selection.sets:
        end = start + len(one.rows)
        own = first[(start <= first) & (first < end)] - start
        if len(own):
            signed = near_duplicates.minhash_signatures(
                one.files, recipe_datasets.scan_settings(run, one.attr, counter), report
            )
            pairs += [(row + start, other + start) for row, other in near_duplicates.find_near_duplicates(signed, own)]
        start = end
    if pairs:
        yield quality.quality_issue(
            "near duplicates",
            len(pairs),
            rows,
            quality.example_pairs(selection, pairs),
            f"rows that share {near_duplicates.NEAR_THRESHOLD:.0%} of their word pairs with one before",
        )


def _why_near_duplicates_skipped(near: bool | None, rows: int, row_step: int) -> str:
    """Return why near duplicates are not looked for; empty if they are."""
    if near is not False and row_step > 1:
        return f"near duplicates are looked for among {reading_limits.MAX_SCANNED_ROWS:,} rows at most; these are more"
    if near is None and rows > MAX_NEAR_DUPLICATE_ROWS:
        return f"near duplicates among {rows:,} rows take a while; --near looks for them"
    return "near duplicates were not looked for, as asked" if near is False else ""


def report_on_source(
    source: str, model: str | None, near: bool | None, overrides: Sequence[str] = (), machine: str | None = None
) -> DataReport:
    """Return the report on the data of a recipe, after the overrides, or on a data file, with a progress bar meanwhile.
    Raises RecipeError."""
    run = user_data.job_of_source(source, model, overrides, machine)
    progress = ProgressBar(sum(dataset.rows.number for dataset in run.data.datasets if dataset.rows))
    try:
        return build_report(run, near, progress)
    finally:
        progress.close()
