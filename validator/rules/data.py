"""DAT: how many samples there are, and how many the model and method call for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import Severity
from validator.job.datasets import Rows
from validator.job.job import Job
from validator.rules import edits
from validator.rules.rule import Finding, rule
from validator.tables import guidance


@rule("DAT001", Severity.WARNING)
def too_few_samples(job: Job) -> Iterator[Finding]:
    """The data sets hold fewer samples than public work found to teach anything general.

    Why: the run succeeds and the model has learned little; found out days later.
    Source: own (guidance)
    Fix: more accurate, diverse samples, never repeated ones; or a smaller aim. data/samples.yaml lists the sources.
    """
    rows = _rows(job)
    if rows and (needed := _needed(job)) and rows.number < needed and not _repeats(job, rows, needed):
        given = needed == job.samples
        origin = f"the recipe is made for {needed:,}" if given else f"public work starts at {needed:,}{_advice(job)}"
        yield "dataset", f"{rows.samples} for {_model(job)}, {origin}"


@rule("DAT002", Severity.NOTE)
def more_than_useful(job: Job) -> Iterator[Finding]:
    """The data sets hold far more samples than a model of this size uses.

    Why: small models saturate; time and money go into steps that change little.
    Source: own (guidance)
    Fix: choose the best samples, or a larger model.
    """
    rows = _rows(job)
    if rows and (most := _guidance(job, "saturating")) and rows.number > most:
        yield "dataset", f"{rows.samples} for {_model(job)}, more than {most:,} are wasted on it; choose the best ones"


@rule("DAT003", Severity.WARNING)
def small_set_repeated(job: Job) -> Iterator[Finding]:
    """A small data set is passed over many times.

    Why: the model learns the samples by heart; the training loss falls and the answers get worse.
    Source: own (guidance)
    Fix: fewer epochs (2 to 5), or more samples.
    """
    rows = _rows(job)
    if rows and (needed := _needed(job)) and _repeats(job, rows, needed):
        epochs = f"{job.number('num_train_epochs'):g}"
        yield (
            "num_train_epochs",
            f"{epochs} epochs of {rows.samples} overfit; take 2 to 5, or more samples{_advice(job)}",
        )


@rule("DAT004", Severity.WARNING)
def data_cut_short(job: Job) -> Iterator[Finding]:
    """`max_samples` leaves out most of a local data set.

    Why: LLaMA-Factory's examples carry `max_samples: 1000`; copied along, it silently drops the rest of the data.
    Source: own (LLaMA-Factory's examples)
    Fix: remove `max_samples`; to shrink one data set on purpose, `num_samples` in its entry says so.
    """
    limit = job.get("max_samples")
    if not isinstance(limit, int) or limit < 1 or job.tokenized:
        return
    fix = edits.drop("max_samples", safe=False)
    for one in job.datasets:
        if one.rows and not one.rows.problem and one.rows.number > 2 * limit:
            yield "max_samples", f"keeps {limit:,} of {one.rows.samples} of `{one.name}`; remove it to use all", fix


@rule("DAT005", Severity.ERROR)
def nothing_left_to_train(job: Job) -> Iterator[Finding]:
    """`val_size` takes every sample for evaluation.

    Why: the data sets library refuses the split, after the data are read and converted.
    Source: llamafactory/data/data_utils.py:split_dataset, datasets/arrow_dataset.py:Dataset.train_test_split
    Fix: a fraction (0.1), or a number below that of the samples.
    """
    value, rows = job.number("val_size"), _rows(job)
    if rows is None or not rows.exact or job.flag("streaming") or not job.holds_back:
        return
    if value > 1 and value >= rows.number:
        yield "val_size", f"{value:g} samples for evaluation, but there are {rows}; write a fraction such as 0.1"
    elif value <= 1 and rows.number == 1:
        yield "val_size", "a single sample cannot be split; add samples or remove `val_size`"


@rule("DAT006", Severity.WARNING)
def more_evaluation_than_training(job: Job) -> Iterator[Finding]:
    """`val_size` takes more than half of the samples.

    Why: they are not trained on. A value above 1 is a number of samples, one up to 1 a fraction.
    Source: llamafactory/data/data_utils.py:split_dataset
    Fix: 0.01 to 0.1.
    """
    value, rows = job.number("val_size"), _rows(job)
    share = value if value < 1 else value / rows.number if rows and rows.number else 0
    if 0.5 < share < 1:
        yield "val_size", f"holds back {share:.0%} of the samples for evaluation; 0.01 to 0.1 is usual"


@rule("DAT007", Severity.WARNING)
def fewer_than_recommended(job: Job) -> Iterator[Finding]:
    """The data sets hold far fewer samples than the header block recommends.

    Why: the recipe's schedule, learning rate and number of epochs were chosen for the number in the block.
    Source: own (the header block)
    Fix: more good samples; or adapt the schedule and the block's `samples`.
    """
    rows = _rows(job)
    if rows and job.samples and rows.number < job.samples / 4 and rows.number >= (_needed(job) or 0):
        yield "dataset", f"{rows.samples}, the recipe is made for {job.samples:,}; add good ones or adapt the schedule"


@rule("DAT008", Severity.ERROR)
def no_sequence_filled(job: Job) -> Iterator[Finding]:
    """All texts together do not fill one packed sequence.

    Why: pretraining cuts its texts into sequences of exactly `cutoff_len` tokens and drops what is left over, here all
    of it: "Cannot find sufficient samples, consider increasing dataset size".
    Source: llamafactory/data/processor/pretrain.py:PretrainDatasetProcessor.preprocess_dataset,
    llamafactory/data/loader.py:_get_preprocessed_dataset
    Fix: a smaller `cutoff_len`, more text, or `packing: false`.
    """
    rows = _rows(job)
    if job.stage != "pt" or not job.packs or rows is None:
        return
    seen = [row for one in job.datasets if one.rows for row in one.rows.head]
    if rows.exact and len(seen) >= rows.number and (most := sum(map(_bytes, seen))) < job.number("cutoff_len"):
        length = f"{job.number('cutoff_len'):,.0f}"
        yield (
            "cutoff_len",
            f"the texts have at most {most:,} tokens, one packed sequence has {length}; lower it, or add text",
        )


def _bytes(row: Mapping[str, Any]) -> int:
    """No text has more tokens than bytes, with two for its start and end."""
    return 2 + sum(len(text.encode()) for text in row.values() if isinstance(text, str))


def _rows(job: Job) -> Rows | None:
    """Samples trained on, before `val_size`; None unless every data set can be counted here."""
    sets, limit = job.datasets, job.get("max_samples")
    if not sets or len(sets) != len(set(job.words("dataset"))) or job.tokenized or not job.trains:
        return None
    counted = [one.rows for one in sets]
    total, exact = 0, True
    for rows in counted:
        if rows is None or rows.problem or not rows.number:
            return None
        cut = isinstance(limit, int) and 0 < limit < rows.number
        total, exact = total + (limit if cut else rows.number), exact and (rows.exact or cut)
    return Rows(total, exact)


def _needed(job: Job) -> int | None:
    """Fewest samples that make sense: the guidance, unless the recipe itself is made for fewer."""
    least = _guidance(job, "minimum")
    return min(least, job.samples) if least and job.samples else least


def _repeats(job: Job, rows: Rows, needed: int) -> bool:
    passes = job.number("num_train_epochs") if job.number("max_steps") <= 0 else 0
    return rows.number < needed and passes >= guidance.MANY_EPOCHS


def _guidance(job: Job, figure: str) -> int | None:
    """A figure of data/samples.yaml for the model's size, between two sizes by interpolation; None: not published."""
    return guidance.samples(job.stage, job.method, job.model.billions, figure) if job.model else None


def _model(job: Job) -> str:
    return f"a model of {job.model.size}" if job.model else "this model"


def _advice(job: Job) -> str:
    good = job.samples or _guidance(job, "good")
    sure = guidance.basis(job.model, job.method, job.stage, good)
    return f"; {good:,} good ones are recommended{f' ({sure})' if sure else ''}" if good else ""
