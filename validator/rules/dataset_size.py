"""DAT, TRA009 and TRA010: the number of samples that exist and that are used, compared with what public work used for
the model size and method."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from validator.knowledge import guidance
from validator.knowledge.guidance import SampleAmounts
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.run.row_counts import Rows
from validator.run.sample_lengths import first_row_lengths
from validator.run.settings import RunSettings


def _training_rows(run: RunSettings) -> Rows | None:
    """Return the number of samples to train on, including those that `val_size` holds back; None unless the rows of
    every data set can be counted."""
    count = run.data.count
    if count is None or count.source != "files" or not count.number or run.data.is_tokenized or not run.task.trains:
        return None
    return Rows(count.number, count.exact)


class _CountedSamples(NamedTuple):
    """The number of samples of a run. `number`: samples, or blocks of tokens for pre-training. `words`: the number as
    text for a message. `guidance`: numbers of samples that public work used, in the same unit."""

    number: int
    words: str
    guidance: SampleAmounts


def _counted_samples(run: RunSettings) -> Iterator[tuple[_CountedSamples]]:
    """Yield the number of samples of a run; for pre-training the number of token blocks, estimated from the first rows.
    Yields nothing if the rows cannot be counted or no guidance is known for the model."""
    rows, amounts = _training_rows(run), run.guidance
    if rows is None or amounts is None:
        return
    if amounts.unit == guidance.SAMPLE_UNIT:
        yield (_CountedSamples(rows.number, rows.samples, amounts),)
    elif lengths := first_row_lengths(run):
        blocks = math.ceil(rows.number * sum(lengths) / len(lengths) / guidance.BLOCK_TOKENS)
        yield (
            _CountedSamples(blocks, f"{rows.samples}, some {guidance.count_in_words(blocks, amounts.unit)}", amounts),
        )


@rule("DAT001", WARNING, about=_counted_samples)
def too_few_samples(run: RunSettings, counted: _CountedSamples) -> Findings:
    """The data sets hold fewer samples than any public run in which a model learned a skill or a preference.

    Why: the run succeeds, and the model has learned a form or a style at most, which shows days later.
    Source: own (guidance)
    Fix: more accurate, diverse samples, never repeated ones; or a smaller aim, and the number of samples in the header
    block. data/samples.yaml lists the sources.
    """
    few = _too_few_message(run, counted)
    if few and not _repeats_often(run):
        yield "dataset", f"{counted.words}: {few}"


@rule("DAT002", NOTE, about=_counted_samples)
def more_than_useful(_run: RunSettings, counted: _CountedSamples) -> Findings:
    """The data sets hold more samples than a model of this size was seen to benefit from.

    Why: small models saturate; time and money go into steps that change little.
    Source: own (guidance)
    Fix: train on a chosen part and compare; or a larger model.
    """
    if many := counted.guidance.many(counted.number):
        yield "dataset", f"{counted.words}: {many}"


@rule("DAT003", WARNING, about=_counted_samples)
def small_set_repeated(run: RunSettings, counted: _CountedSamples) -> Findings:
    """A small data set is repeated for many epochs.

    Why: the model learns the samples by heart; the training loss falls and the answers get worse.
    Source: own (guidance)
    Fix: fewer epochs (2 to 5), or more samples.
    """
    if _too_few_message(run, counted) and _repeats_often(run):
        epochs = f"{run.args.number('num_train_epochs'):g} epochs over {counted.words}"
        remedy = "set `num_train_epochs` to 2 to 5, or add different, checked samples"
        yield "num_train_epochs", f"in {epochs} the model learns the samples by heart; {remedy}"


@rule("DAT004", WARNING)
def data_cut_short(run: RunSettings) -> Findings:
    """`max_samples` leaves out most of a local data set.

    Why: LLaMA-Factory's examples carry `max_samples: 1000`; copied along, it silently drops the rest of the data.
    Source: own (LLaMA-Factory's examples)
    Fix: remove `max_samples`; to shrink one data set on purpose, `num_samples` in its entry says so.
    """
    limit = run.args.get("max_samples")
    if not isinstance(limit, int) or limit < 1 or run.data.is_tokenized:
        return
    for one in run.data.datasets:
        if one.rows and not one.rows.problem and one.rows.number > 2 * limit:
            found = f"`max_samples: {limit}` keeps {limit:,} of {one.rows.samples} of `{one.name}`"
            yield "max_samples", f"{found}; remove `max_samples` to use all"


@rule("DAT005", ERROR)
def nothing_left_to_train(run: RunSettings) -> Findings:
    """`val_size` takes every sample for evaluation.

    Why: the data sets library refuses the split, after the data are read and converted.
    Source: llamafactory/data/data_utils.py:split_dataset, datasets/arrow_dataset.py:Dataset.train_test_split
    Fix: a fraction (0.1), or a number below that of the samples.
    """
    value, rows = run.args.number("val_size"), _training_rows(run)
    if rows is None or not rows.exact or run.args.flag("streaming") or not run.evaluation.splits_validation_set:
        return
    if value > 1 and value >= rows.number:
        found = f"`val_size` takes {value:g} samples for evaluation, and there are only {rows}"
        yield "val_size", f"{found}; write a share such as `val_size: 0.1`"
    elif value <= 1 and rows.number == 1:
        found = "the only sample cannot be both trained on and held back for evaluation"
        yield "val_size", f"{found}; add samples, or remove `val_size`"


@rule("DAT006", WARNING)
def more_evaluation_than_training(run: RunSettings) -> Findings:
    """`val_size` takes more than half of the samples.

    Why: they are not trained on. A value above 1 is a number of samples, one up to 1 a fraction.
    Source: llamafactory/data/data_utils.py:split_dataset
    Fix: 0.01 to 0.1.
    """
    value, rows = run.args.number("val_size"), _training_rows(run)
    share = value if value < 1 else value / rows.number if rows and rows.number else 0
    if 0.5 < share < 1:
        found = f"`val_size` holds back {share:.0%} of the samples for evaluation"
        yield "val_size", f"{found}; write 0.01 to 0.1, the usual share"


@rule("DAT007", NOTE, about=_counted_samples)
def fewer_than_usual(run: RunSettings, counted: _CountedSamples) -> Findings:
    """The data sets hold fewer samples than public runs usually took, and far fewer than the header block states.

    Why: so few may do, if each is right; whether they did is seen on samples that were held back. The number in a
    header block is often somebody else's count, copied along.
    Source: own (guidance)
    Fix: hold some back (`val_size`) and compare with the model before training; your number in the block ends the note.
    """
    stated = run.declared.samples
    if stated and counted.number < min(counted.guidance.low, stated / 4) and not _too_few_message(run, counted):
        whose = counted.guidance.whose(stated) or "the recipe's own count"
        usual = f"{counted.guidance.usual}, and the {stated:,} of the header block is {whose}"
        held_back = run.evaluation.splits_validation_set or run.data.evaluation_datasets
        check = "check each sample" if held_back else "check each sample, set `val_size` to see if they suffice"
        yield "dataset", f"{counted.words}: {usual}; {check}, and write `# samples: {counted.number}` into the block"


@rule("DAT008", ERROR)
def no_sequence_filled(run: RunSettings) -> Findings:
    """All texts together do not fill one packed sequence.

    Why: pretraining cuts its texts into sequences of exactly `cutoff_len` tokens and drops what is left over, here all
    of it: "Cannot find sufficient samples, consider increasing dataset size".
    Source: llamafactory/data/processor/pretrain.py:PretrainDatasetProcessor.preprocess_dataset,
    llamafactory/data/loader.py:_get_preprocessed_dataset
    Fix: a smaller `cutoff_len`, more text, or `packing: false`.
    """
    rows = _training_rows(run) if run.task.stage == "pt" and run.batch.packing else None
    first = [row for one in run.data.datasets if one.rows for row in one.rows.head]
    limit = run.args.number("cutoff_len")
    if rows and rows.exact and len(first) >= rows.number and (most := sum(map(_max_tokens_of_row, first))) < limit:
        found = f"all texts together have at most {most:,} tokens, and one packed sequence takes {limit:,.0f}"
        yield "cutoff_len", f"{found}; lower `cutoff_len`, or add text"


def _max_tokens_of_row(row: Mapping[str, Any]) -> int:
    """Return an upper bound of the tokens of a row: one per byte of its texts, because no text has more tokens than
    bytes, and two for start and end."""
    return 2 + sum(len(text.encode()) for text in row.values() if isinstance(text, str))


def _too_few_message(run: RunSettings, counted: _CountedSamples) -> str | None:
    """Return the message that the run has few samples for its model and method. None if they are enough, or at least as
    many as the recipe's header block recommends."""
    as_stated = run.declared.samples and counted.number >= run.declared.samples
    return None if as_stated else counted.guidance.few(counted.number)


def _repeats_often(run: RunSettings) -> bool:
    passes = run.args.number("num_train_epochs") if run.args.number("max_steps") <= 0 else 0
    return passes >= guidance.MANY_EPOCHS


_EXAMPLE_ROWS = 1_000  # rows, as every example of LLaMA-Factory has it; a larger number its author chose


@rule("TRA009", WARNING)
def sample_limit_contradicts(run: RunSettings) -> Findings:
    """`max_samples` cuts the data below the number of samples the recipe is made for.

    Why: every official example carries `max_samples: 1000`; copied along, the run trains on the first rows of each data
    set only, with no message.
    Source: llamafactory/data/loader.py:_load_single_dataset, own (LLaMA-Factory's examples)
    Fix: remove `max_samples`.
    """
    limit = run.args.number("max_samples")
    sets = max(1, len(run.args.words("dataset")))
    if limit > 0 and run.declared.samples and limit * sets < run.declared.samples:
        left = f"{limit * sets:,.0f} rows of the {run.declared.samples:,} recommended"
        yield "max_samples", f"`max_samples: {limit:.0f}` leaves at most {left}; remove `max_samples`"


@rule("TRA010", NOTE)
def sample_limit(run: RunSettings) -> Findings:
    """`max_samples`, a debugging aid, is set.

    Why: the run trains on the first rows of each data set only.
    Source: llamafactory/data/loader.py:_load_single_dataset
    Fix: remove it for a real run.
    """
    limit = run.args.number("max_samples")
    if not 0 < limit <= _EXAMPLE_ROWS or not run.task.trains or run.declared.samples or run.args.flag("streaming"):
        return
    counted = [one.rows for one in run.data.datasets if one.rows and not one.rows.problem]
    whole = len(counted) == len(run.args.words("dataset")) and all(rows.number <= limit for rows in counted)
    if not whole and not any(rows.number > 2 * limit for rows in counted):  # which DAT004 reports
        yield (
            "max_samples",
            f"only the first {limit:,.0f} rows of each data set are used; remove `max_samples` to use all",
        )
