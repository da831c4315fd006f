"""Formats the answers of `data` and of `data --register` as text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from validator import escaping
from validator.dataset.data_report import DataReport, DroppedRows, better_cutoff
from validator.dataset.quality import QualityIssue
from validator.dataset.sample_guidance import SampleGuidance
from validator.dataset.user_input import Registration
from validator.escaping import shell_quote
from validator.knowledge import guidance
from validator.output.terminal import draw_bar
from validator.rows.dataset_attr import entry_as_json
from validator.wording import format_duration, format_duration_range, plural
from validator.wrapping import terminal_width, wrap_lines

# Stages whose samples are a prompt with two answers.
_PAIRED_STAGES = ("dpo", "rm")


def format_report(report: DataReport) -> str:
    """Return the answer of `data` as lines of text."""
    parts = (_head(report), map(str, report.problems), _rows(report), _lengths(report), _amount(report),
             _quality(report), _notes(report))  # fmt: skip
    return escaping.escape_lines(wrap_lines((line for part in parts for line in part), terminal_width()))


def _head(report: DataReport) -> Iterator[str]:
    yield report.path
    yield f"  model    {report.model or 'none named'}"
    yield f"  method   {method_sentence(report)}"
    for one in report.sets:
        columns = f" ({', '.join(one.columns[:6])})" if one.columns else ""
        content = one.note or f"{one.rows:,} {plural(one.rows, 'row')}{columns}"
        yield f"  {one.role:<10} {one.name}: {content}"


def method_sentence(report: DataReport) -> str:
    """Return the stage, the fine-tuning method, the template and `cutoff_len` as one phrase."""
    return f"{report.stage} {report.method}, template {report.template}, cutoff_len {report.cutoff_len:,}"


def _rows(report: DataReport) -> Iterator[str]:
    rows = report.rows
    about = "" if rows.exact else "about "
    packed = f", {about}{rows.sequences:,} sequences" if rows.sequences != rows.trained else ""
    evaluation = f", {rows.evaluated:,} for evaluation" if rows.evaluated else ""
    yield ""
    yield (f"rows: {rows.read:,} read, {rows.selected:,} selected for training, {rows.dropped:,} dropped, "
           f"{rows.trained:,} trained{packed}{evaluation}")  # fmt: skip
    for drop in report.drops:
        yield f"  {drop.rows:,} dropped: {drop.reason} ({', '.join(places(drop))})"
    yield from schedule_sentences(report)


def places(found: DroppedRows | QualityIssue) -> list[str]:
    """Return the places of some of the rows, and how many more there are."""
    more = found.rows - len(found.examples)
    return [*found.examples, *([f"and {more:,} more"] if more > 0 else [])]


def schedule_sentences(report: DataReport) -> Iterator[str]:
    """Yield a sentence on the number of steps and a sentence on the time of the run. A sentence is left out if its
    figures are not known."""
    if steps := report.steps:
        saves = f"{steps.saves:,} {plural(steps.saves, 'save')}"
        yield (f"steps: {steps.per_epoch:,} an epoch of batch {steps.batch}, {steps.total:,} in all "
               f"({steps.epochs:.3g} epochs), {steps.warmup:,} of warm-up, {saves}")  # fmt: skip
        if steps.warmup >= max(steps.total, 2):
            yield "  the warm-up does not end within the run, so the learning rate never reaches the recipe's value"
    if time := report.time:
        low, expected, high = (3600 * hours for hours in time.hours)
        yield (f"time: {format_duration_range(low, high)} on {time.machine}, {format_duration(expected)} expected, "
               f"{format_duration(time.step_seconds.expected)} a step")  # fmt: skip


def _lengths(report: DataReport) -> Iterator[str]:
    bars = report.tokens.histogram
    if not bars:
        return
    yield ""
    yield tokens_sentence(report)
    max_rows = max(bar.rows for bar in bars)
    for bar in bars:
        yield f"  {f'{bar.from_:,} to {bar.to:,}':>19} {bar.rows:>9,}  {draw_bar(bar.rows, max_rows)}".rstrip()
    yield from (f"  {sentence}" for sentence in cutoff_sentences(report))
    if report.time and report.tokens.exact and not report.images:
        lengths = f"# lengths: [{report.tokens.mean}, {report.tokens.longest}]"
        yield f"  `{lengths}` in the header block has `explain` and `train` predict by these lengths, too"
    if images := report.images:
        rows = f"{images.rows:,} {plural(images.rows, 'row')}"
        yield (f"  images: {images.images:,} in {rows}, some {images.mean:,} tokens each; "
               f"those of a row up to {images.longest:,}")  # fmt: skip


def tokens_sentence(report: DataReport) -> str:
    """Return the sentence on the number of tokens: how they were counted, tokens of an epoch and of its answers, and
    typical lengths."""
    tokens = report.tokens
    how = f"by {tokens.source}" if tokens.exact else tokens.source
    images = f", {report.images.per_epoch:,} of images" if report.images else ""
    images += " before any is cut" if report.images and report.images.rows_over else ""
    answers = f"{tokens.answers_per_epoch:,} of them answers"
    if report.stage in _PAIRED_STAGES:
        both = f"{tokens.answers_per_epoch:,}"
        answers = f"with the prompt and the longer answer of each pair; both answers without the prompt are {both}"
    return (f"tokens {how}: {tokens.per_epoch:,} an epoch, {answers}{images}; "
            f"median {tokens.median:,}, 99 % up to {tokens.p99:,}, longest {tokens.longest:,}")  # fmt: skip


def cutoff_sentences(report: DataReport) -> Iterator[str]:
    """Yield a sentence on what `cutoff_len` cuts off, and a sentence on the device memory that the longest batch and a
    batch of `cutoff_len` need."""
    rows, tokens = report.tokens.rows_cut, report.tokens.tokens_cut
    cut = f"{rows:,} {plural(rows, 'row')} and {tokens:,} {plural(tokens, 'token')}" if rows else "nothing"
    yield f"cutoff_len {report.cutoff_len:,} cuts {cut}{better_cutoff(report)}"
    if memory := report.memory:
        usable = f", of {memory.usable_gib:.1f} usable" if memory.usable_gib else ""
        yield (f"device memory: {memory.longest_gib:.1f} GiB with the longest batch there is "
               f"({memory.longest:,} tokens), {memory.cutoff_gib:.1f} at cutoff_len{usable}")  # fmt: skip


def _amount(report: DataReport) -> Iterator[str]:
    amount = report.amount
    if not amount.rows:
        return
    yield ""
    yield f"amount: {amount_sentence(amount)}"
    marks = [*amount.figures().items()]
    scale = max([amount.rows, *(size for _, size in marks)])
    for name, size in [*marks, ("here", amount.rows)] if marks else []:
        yield f"  {name:<11} {size:>9,}  {draw_bar(size, scale)}".rstrip()
    yield from (f"  {sentence}" for sentence in (*rows_not_counted(report), *amount_reasons(amount)))


def rows_not_counted(report: DataReport) -> Iterator[str]:
    """Yield a sentence on the rows that were read and are not among the different samples that are trained on, if there
    are such rows."""
    rows, amount = report.rows, report.amount
    repeated = sum(one.rows for one in report.quality if one.kind == "exact duplicates")
    dropped = (
        f"dropped, {rows.evaluation_dropped:,} of them of the evaluation" if rows.evaluation_dropped else "dropped"
    )
    why = {"for evaluation": rows.evaluated, dropped: rows.dropped + rows.evaluation_dropped, "repeated": repeated}
    why["left out by the recipe"] = rows.read - amount.rows - sum(why.values())
    if amount.unit == guidance.SAMPLE_UNIT and amount.rows < rows.read:
        others = ", ".join(f"{number:,} {words}" for words, number in why.items() if number > 0)
        yield f"here: {amount.rows:,} of the {rows.read:,} rows that were read; {others}"


def amount_sentence(amount: SampleGuidance) -> str:
    """Return the sentence that says whether there are enough samples, and what public guidance says."""
    count = f"{amount.counted} {'is' if amount.rows == 1 else 'are'} {amount.verdict}"
    return amount.message if amount.verdict == "unknown" else f"{count}: {amount.message}"


def amount_reasons(amount: SampleGuidance) -> Iterator[str]:
    """Yield the origin of the guidance's figures, a model size that suits the samples better, and the message on the
    number of epochs."""
    groups: dict[str, list[str]] = {}
    for figure, words in amount.sure.items():
        groups.setdefault(words, []).append(figure)
    yield from (f"{' and '.join(figures)}: {words}" for words, figures in groups.items())
    if better := amount.better_size:
        yield f"a model of {better.billions:g}B suits these samples better ({better.good:,} recommended)"
    if amount.epochs.message:
        yield amount.epochs.message


def _quality(report: DataReport) -> Iterator[str]:
    if not report.rows.trained:
        return
    yield ""
    yield "quality:" if report.quality else "quality: nothing found"
    for one in report.quality:
        yield f"  {one.kind}: {one.rows:,} ({one.share:.2%}) {one.message}"
        yield from (f"      {example}" for example in places(one))


def _notes(report: DataReport) -> Iterator[str]:
    if report.notes:
        yield ""
    yield from (f"note: {note}" for note in report.notes)


def format_registration(done: Registration) -> str:
    """Return the answer of `data --register` as lines of text: the entry, rows that are not trained on, keys for the
    recipe, and the next command."""
    return escaping.escape_lines(_registration_lines(done))


def _registration_lines(done: Registration) -> Iterator[str]:
    yield f"{done.path}: {'added' if done.added else 'holds already'} {entry_as_json(done.name, done.entry)}"
    for drop in done.drops:
        share = f"{drop.rows:,} of {done.rows:,} rows {'is' if drop.rows == 1 else 'are'}"
        yield f"warning: {share} not trained: {drop.reason} ({', '.join(places(drop))})"
    yield "in the recipe:"
    yield from (f"  {key}: {value}" for key, value in done.settings.items())
    yield from (f"note: {note}" for note in done.notes)
    file = os.path.normpath(Path(done.path).parent / str(done.entry["file_name"]))
    made = f"lmf-recipes plan --model M --machine MACHINE --data {shell_quote(file)} --write mine.yaml"
    yield f"then, with that recipe: lmf-recipes data RECIPE; without one: {made}"
