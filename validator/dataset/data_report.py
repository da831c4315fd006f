"""The answer of `data`: its dataclasses, and the function that fills them for a run.

The fields are the keys of the JSON output, in the same order. A `_` at the end of a field's name is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from validator.dataset import quality, recipe_datasets, sample_guidance, sequence_lengths, token_counting
from validator.dataset.quality import QualityIssue
from validator.dataset.recipe_datasets import FatalProblem, LoadedDataset
from validator.dataset.row_scan import OnRows
from validator.dataset.row_selection import Positions, RowSelection, select_rows
from validator.dataset.sample_guidance import SampleGuidance
from validator.dataset.sequence_lengths import HistogramBar
from validator.dataset.token_counting import CharacterCounter, TokenCounter
from validator.errors import RecipeError
from validator.knowledge.guidance import BLOCK_TOKENS
from validator.physics import Band
from validator.physics.estimate import GIB
from validator.rows import reading_limits
from validator.rows.outcomes import STATUS_REASONS
from validator.run import calibration
from validator.run.assumptions import fitting_length, longer_samples_in_words
from validator.run.hyperparameters import padded_to_eight
from validator.run.image_tokens import image_counter
from validator.run.prediction import predict
from validator.run.schedule import Schedule, training_schedule
from validator.run.settings import RunSettings
from validator.run.training_time import predict_training_time
from validator.wording import four_digits, plural


@dataclass(frozen=True)
class DatasetSummary:
    """One data set of the recipe. `role` is training or evaluation. `note` says why the data set has no rows on this
    machine although it may be fine, for example because it is on a hub."""

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
    """Numbers of rows. `read` is the number of rows in the files, `selected` the number that is left for training after
    splits, `max_samples` and rows held back for evaluation. LLaMA-Factory drops `dropped` of these rows and trains on
    `trained`; `evaluated` is the number of evaluation rows, without the `evaluation_dropped` that are dropped.
    `sequences` is the number of examples that the Trainer counts. `exact` is true if the real run has the same
    numbers."""

    read: int
    selected: int
    dropped: int
    trained: int
    evaluated: int
    evaluation_dropped: int
    sequences: int
    exact: bool


@dataclass(frozen=True)
class DroppedRows:
    """Rows that LLaMA-Factory drops for the same reason, and a few of their places as examples."""

    reason: str
    rows: int
    examples: list[str]


@dataclass(frozen=True)
class TokenTotals:
    """Numbers of tokens in the samples. `mean` to `histogram` describe the lengths of samples before `cutoff_len`; 95
    and 99 of 100 samples have at most `p95` and `p99` tokens. `per_epoch` and `answers_per_epoch` count all tokens and
    answer tokens that `cutoff_len` leaves, in one epoch. `cutoff_len` cuts `tokens_cut` tokens from `rows_cut` rows.
    `source` says how the tokens were counted."""

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
class ImageTotals:
    """Images of the rows that are trained on. `images` is their number, in `rows` rows. `per_epoch` is their number of
    tokens in one epoch, before `cutoff_len`, and `mean` that of one image. `longest` is the most tokens that the images
    of one row have. `cutoff_len` cuts an image of `rows_over` rows."""

    images: int
    rows: int
    per_epoch: int
    mean: int
    longest: int
    rows_over: int


@dataclass(frozen=True)
class LongestBatchMemory:
    """Predicted device memory in GiB (2^30 bytes). `longest_gib` is for a batch with the longest sample of the data,
    which has `longest` tokens; `cutoff_gib` is for samples of `cutoff_len` tokens. `fitting_length` is the number of
    tokens of a sample up to which the run fits, if it would not fit with the recommended `cutoff_len`."""

    longest: int
    longest_gib: float
    cutoff_gib: float
    usable_gib: float | None
    fitting_length: int | None


@dataclass(frozen=True)
class RunDuration:
    """Predicted seconds of one optimizer step and hours of the whole run on a machine, each with its band."""

    machine: str
    step_seconds: Band
    hours: Band


@dataclass(frozen=True)
class DataReport:
    """The answer of `data`: what a run trains on. A field is None if its value is not known, or if there is nothing to
    report."""

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
    images: ImageTotals | None
    memory: LongestBatchMemory | None
    amount: SampleGuidance
    quality: Sequence[QualityIssue]
    time: RunDuration | None


_LENGTH_QUANTILES = 500  # equally likely lengths that stand for those of all samples
ESTIMATES_BECAUSE = "token counts are estimates: "  # begins a note
# Near duplicates among more rows are looked for only with --near, for that takes most of the time.
MAX_NEAR_DUPLICATE_ROWS = 200_000


def build_report(run: RunSettings, near: bool | None, report: OnRows) -> DataReport:
    """Return the report on a run's data. `near` says whether to look for near duplicates; None looks for them only if
    that is quick. `report` is called with the number of rows read since its last call. Raises RecipeError if the recipe
    names no data set, or only data that are tokenized already."""
    if run.data.is_tokenized:
        raise RecipeError(
            f"{run.workspace.recipe}: `tokenized_path` holds tokenized data, whose rows cannot be examined"
        )
    counter = token_counting.best_counter(run)
    sets = recipe_datasets.load_datasets(run, counter, report)
    if not sets:
        raise RecipeError(f"{run.workspace.recipe}: names no data set; set `dataset`")
    selection = select_rows(run, sets)
    trained = selection.trained(selection.train)
    rows, evaluated = np.unique(trained), np.unique(selection.trained(selection.evaluation))
    complete = not any(one.note for one in sets)
    steps = training_schedule(run, selection.sequences) if selection.sequences and complete else None
    exact = not selection.inexact_because and (counter.exact or not run.batch.packing)
    distinct, duplicates = quality.exact_duplicates(selection, rows)
    skipped = _why_near_duplicates_skipped(near, len(rows), selection.row_step)
    settings = partial(recipe_datasets.scan_settings, run, CharacterCounter())
    similar = () if skipped else quality.near_duplicates(selection, distinct, settings, report)
    tokens = _token_totals(run, selection, counter, trained)
    samples = len(distinct) * selection.row_step
    if run.task.stage == "pt":  # for which guidance counts blocks of tokens
        samples = math.ceil(tokens.per_epoch / BLOCK_TOKENS)
    return DataReport(
        path=run.workspace.recipe,
        model=run.model_name,
        stage=run.task.stage,
        method=run.task.method,
        template=run.args.get("template"),
        cutoff_len=int(run.args.number("cutoff_len")),
        sets=[_dataset_summary(one) for one in sets],
        problems=selection.problems,
        notes=[*_report_notes(run, selection, counter.reason), *filter(None, [skipped])],
        rows=RowCounts(
            read=sum(one.rows.read for one in sets),
            selected=len(selection.train) * selection.row_step,
            dropped=selection.drops.total(),
            trained=len(trained) * selection.row_step,
            evaluated=selection.evaluated,
            evaluation_dropped=len(selection.evaluation) * selection.row_step - selection.evaluated,
            sequences=selection.sequences,
            exact=exact,
        ),
        drops=dropped_rows(selection),
        steps=steps,
        tokens=tokens,
        images=_image_totals(selection, trained),
        memory=_longest_batch_memory(run, selection, rows, tokens.recommended_cutoff_len),
        amount=sample_guidance.judge_sample_count(run, samples if complete else 0, steps.epochs if steps else 0.0),
        quality=list(quality.quality_issues(selection, rows, evaluated, duplicates, similar)),
        time=_run_duration(run, selection, trained, counter.exact) if steps and not selection.uncounted_media else None,
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


_IMAGE_FAULTS = {
    "unread": "the size of {images} is not known ({place}); each counts as one of `image_max_pixels`",
    "cut": "{images} cut off ({place}), at which Pillow may stop; fetch again what is cut off, or remove its rows",
}


def _report_notes(run: RunSettings, selection: RowSelection, reason: str) -> Iterator[str]:
    """Yield the reasons why figures of the report are not exact. `reason` says why token counts are estimates; it is
    empty if they are exact."""
    if reason:
        yield f"{ESTIMATES_BECAUSE}{reason}"
    elif not run.args.is_set("template") and run.task.stage != "pt":
        yield "no `template`: what the tokenizer's own chat template adds to a sample is not counted"
    if any(one.rows.tools_approximated for one in selection.sets):
        yield "descriptions and calls of tools are counted as they stand in the data, not as the template writes them"
    if uncounted := selection.uncounted_media:
        why = image_counter(run)[1] if uncounted == ["images"] else "those of images alone can be told from a file"
        yield f"tokens of {' and '.join(uncounted)} are not counted: {why}; with them samples are longer"
    for one in selection.sets:
        for fault, (number, row) in one.rows.image_faults.items():
            yield _IMAGE_FAULTS[fault].format(images=f"{number:,} {plural(number, 'image')}", place=one.rows.place(row))
        if unread := [name for name in one.rows.column_types if name not in one.attr.columns_read.values()]:
            names, verb = ", ".join(unread[:8]), "is" if len(unread) == 1 else "are"
            yield f"{one.name}: {plural(len(unread), 'column')} {names} {verb} not trained on"
    if run.args.flag("streaming"):
        yield "streamed data are read row by row until `max_steps`; the counts are those of the files"
    yield from selection.inexact_because


def dropped_rows(selection: RowSelection) -> list[DroppedRows]:
    """Return the rows that are not trained on, grouped by reason, the most frequent reason first."""
    outcome = selection.rows["outcome"][selection.train]
    return [
        DroppedRows(STATUS_REASONS[code], rows, selection.places(selection.train[outcome == code]))
        for code, rows in selection.drops.most_common()
    ]


def _token_totals(run: RunSettings, selection: RowSelection, counter: TokenCounter, trained: Positions) -> TokenTotals:
    tokens, kept, answers, cut = (
        selection.rows[name][trained] for name in ("tokens", "kept_tokens", "answer_tokens", "cut_answer_tokens")
    )
    ordered = np.sort(tokens).tolist()
    positions = run.model.positions if run.model else None
    recommended = ordered and not selection.uncounted_media
    return TokenTotals(
        source=counter.name,
        exact=counter.exact and not any(one.rows.tools_approximated for one in selection.sets),
        mean=round(sum(ordered) / max(len(ordered), 1)),
        median=sequence_lengths.length_quantile(ordered, 0.5),
        p95=sequence_lengths.length_quantile(ordered, 0.95),
        p99=sequence_lengths.length_quantile(ordered, 0.99),
        longest=ordered[-1] if ordered else 0,
        histogram=sequence_lengths.length_histogram(ordered),
        per_epoch=int(kept.sum()) * selection.row_step,
        answers_per_epoch=int(answers.sum() - cut.sum()) * selection.row_step,
        rows_cut=int(np.count_nonzero(tokens > kept)) * selection.row_step,
        tokens_cut=int(tokens.sum() - kept.sum()) * selection.row_step,
        recommended_cutoff_len=sequence_lengths.recommend_cutoff_len(ordered, positions) if recommended else None,
    )


def _image_totals(selection: RowSelection, trained: Positions) -> ImageTotals | None:
    """Return the totals of the images in the rows that are trained on. Return None if there are none, or if their
    tokens are not counted."""
    rows = selection.rows[trained]
    images, step = int(rows["images"].sum()), selection.row_step
    if not images:
        return None
    tokens = int(rows["image_tokens"].sum())
    return ImageTotals(
        images=images * step,
        rows=int(np.count_nonzero(rows["images"])) * step,
        per_epoch=tokens * step,
        mean=round(tokens / images),
        longest=int(rows["image_tokens"].max()),
        rows_over=int(np.count_nonzero(selection.are_images_cut[trained])) * step,
    )


def _longest_batch_memory(
    run: RunSettings, selection: RowSelection, rows: Positions, recommended: int | None
) -> LongestBatchMemory | None:
    """Return the predicted device memory for a batch with the longest sample of the data, and for samples of
    `cutoff_len`. Return None if the memory is not known, or if the data have media whose tokens are not counted.
    `recommended`: the recommended `cutoff_len`."""
    limit = int(run.args.number("cutoff_len"))
    max_tokens = int(selection.rows["kept_tokens"][rows].max(initial=0))
    longest = limit if run.batch.packing else min(max_tokens and padded_to_eight(max_tokens), limit)
    if not longest or selection.uncounted_media:
        return None
    if tower_tokens := int(selection.rows["tower_tokens"][rows].max(initial=0)):
        real, at_limit = (predict(run).memory_of_batch(each, tower_tokens) for each in (longest, run.batch.max_tokens))
    else:
        real, at_limit = (predict(each).device_memory for each in (run.updated({"cutoff_len": longest}), run))
    if at_limit is None or real is None:
        return None
    usable = run.machine.device.usable_gib if run.machine else None
    longest_gib, cutoff_gib = (round(each.expected / GIB, 2) for each in (real, at_limit))
    fits = fitting_length(run, recommended) if recommended and recommended > limit else None
    return LongestBatchMemory(longest, longest_gib, cutoff_gib, usable, fits)


def _why_near_duplicates_skipped(near: bool | None, rows: int, row_step: int) -> str:
    """Return the reason why near duplicates are not looked for; empty if they are looked for. `near` is the user's
    choice (None: no choice), `rows` the number of rows. `row_step` is above 1 if the data have so many rows that only
    every n-th row was kept."""
    if near is not False and row_step > 1:
        return f"near duplicates were not looked for: these are more than {reading_limits.MAX_SCANNED_ROWS:,} rows"
    if near is None and rows > MAX_NEAR_DUPLICATE_ROWS:
        return f"near duplicates were not looked for: among {rows:,} rows that takes a while; --near does it"
    return "near duplicates were not looked for, as asked" if near is False else ""


def _run_duration(run: RunSettings, selection: RowSelection, trained: Positions, exact: bool) -> RunDuration | None:
    """Return the predicted time of a run on the rows that are trained on; None if the machine, its speed or the model
    is not known. `exact`: their tokens were counted with the model's tokenizer."""
    ordered = np.sort(selection.rows["kept_tokens"][trained]).tolist()
    if not selection.sequences or not ordered:
        return None
    tower_tokens = math.ceil(selection.rows["tower_tokens"][trained].sum() / selection.sequences) or None
    correction = calibration.time_correction(str(run.machine))
    found = predict_training_time(run, selection.sequences, length_quantiles(ordered), correction, tower_tokens, exact)
    if found is None or found.hours is None:
        return None
    step = Band(found.step.low, found.step.expected, found.step.high)
    return RunDuration(str(run.machine), *(Band(*map(four_digits, band)) for band in (step, found.hours)))


def length_quantiles(ordered: Sequence[int]) -> tuple[int, ...]:
    """Return equally likely lengths that stand for those of all samples. `ordered`: these, ascending."""
    return tuple(ordered[at * len(ordered) // _LENGTH_QUANTILES] for at in range(_LENGTH_QUANTILES))


def better_cutoff(report: DataReport) -> str:
    """Return the recommended `cutoff_len` as the end of a message, with the length up to which the run fits if it would
    not fit with that one. Empty if the recipe's own cuts nothing or is as long."""
    tokens, better = report.tokens, report.tokens.recommended_cutoff_len
    if not better or not tokens.rows_cut or better <= report.cutoff_len:
        return ""
    left = "fewer" if better < tokens.p99 else "at most one in 200"  # the model may read no longer ones
    fits = report.memory.fitting_length if report.memory else None
    return f"; `cutoff_len: {better}` would cut {left}{longer_samples_in_words(report.cutoff_len, better, fits)}"
