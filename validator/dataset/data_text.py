"""The answers of `data` and of `data --register` as text."""

from __future__ import annotations

from collections.abc import Iterator

from validator import escaping
from validator.dataset.data_report import DataReport
from validator.dataset.sample_guidance import SampleGuidance
from validator.dataset.user_input import Registration
from validator.output.terminal import draw_bar
from validator.rows.dataset_attr import entry_as_json
from validator.wording import format_duration, format_duration_range, plural


def format_study(study: DataReport) -> str:
    """The study as lines of text."""
    parts = (_head(study), _problems(study), _rows(study), _steps(study), _tokens(study), _amount(study.amount),
             _quality(study), _notes(study))  # fmt: skip
    return escaping.escape_lines(line for part in parts for line in part)


def _head(study: DataReport) -> Iterator[str]:
    yield study.path
    how = f"{study.stage} {study.method}, template {study.template}, cutoff_len {study.cutoff_len:,}"
    yield f"  model    {study.model or 'none named'}"
    yield f"  method   {how}"
    for one in study.sets:
        named = f" ({', '.join(one.columns[:6])})" if one.columns else ""
        held = one.note or f"{one.rows:,} {plural(one.rows, 'row')}{named}"
        yield f"  {one.role:<10} {one.name}: {held}"


def _problems(study: DataReport) -> Iterator[str]:
    yield from map(str, study.problems)


def _rows(study: DataReport) -> Iterator[str]:
    rows = study.rows
    yield ""
    about = "" if rows.exact else "about "
    packed = f", {about}{rows.sequences:,} sequences" if rows.sequences != rows.trained else ""
    held = f", {rows.evaluated:,} for evaluation" if rows.evaluated else ""
    yield (f"rows: {rows.read:,} read, {rows.selected:,} selected for training, {rows.dropped:,} dropped, "
           f"{rows.trained:,} trained{packed}{held}")  # fmt: skip
    for drop in study.drops:
        yield f"  {drop.rows:,} dropped: {drop.reason} ({', '.join(drop.examples)})"


def _steps(study: DataReport) -> Iterator[str]:
    if steps := study.steps:
        saves = f"{steps.saves:,} {plural(steps.saves, 'save')}"
        yield (f"steps: {steps.per_epoch:,} an epoch of batch {steps.batch}, {steps.total:,} in all "
               f"({steps.epochs:.3g} epochs), {steps.warmup:,} of warm-up, {saves}")  # fmt: skip
    if time := study.time:
        low, expected, high = (3600 * hours for hours in time.hours)
        yield (f"time: {format_duration_range(low, high)} on {time.machine}, {format_duration(expected)} expected, "
               f"{format_duration(time.step_seconds.expected)} a step")  # fmt: skip


def _tokens(study: DataReport) -> Iterator[str]:
    tokens = study.tokens
    if not tokens.histogram:
        return
    how = f"by {tokens.source}" if tokens.exact else tokens.source
    yield ""
    yield (f"tokens {how}: {tokens.per_epoch:,} an epoch, {tokens.answers_per_epoch:,} of them answers; "
           f"median {tokens.median:,}, 99 % up to {tokens.p99:,}, longest {tokens.longest:,}")  # fmt: skip
    most = max(interval.rows for interval in tokens.histogram)
    for interval in tokens.histogram:
        edge = f"{interval.from_:,} to {interval.to:,}"
        yield f"  {edge:>19} {interval.rows:>9,}  {draw_bar(interval.rows, most)}".rstrip()
    better = tokens.recommended_cutoff_len
    yield (f"  cutoff_len {study.cutoff_len:,} cuts {tokens.rows_cut:,} rows and {tokens.tokens_cut:,} tokens"
           f"{f'; {better:,} would cut at most one row in 200' if better else ''}")  # fmt: skip
    if memory := study.memory:
        usable = f", of {memory.usable_gib:.1f} usable" if memory.usable_gib else ""
        yield (f"  device memory: {memory.longest_gib:.1f} GiB with the longest batch there is "
               f"({memory.longest:,} tokens), {memory.cutoff_gib:.1f} at cutoff_len{usable}")  # fmt: skip


def _amount(amount: SampleGuidance) -> Iterator[str]:
    if not amount.rows:
        return
    yield ""
    there = f"{amount.counted} {'is' if amount.rows == 1 else 'are'} {amount.verdict}"
    yield f"amount: {amount.message}" if amount.verdict == "unknown" else f"amount: {there}: {amount.message}"
    marks = [*amount.figures().items()]
    scale = max([amount.rows, *(size for _, size in marks)])
    for name, size in [*marks, ("here", amount.rows)] if marks else []:
        yield f"  {name:<11} {size:>9,}  {draw_bar(size, scale)}".rstrip()
    yield from _basis_lines(amount)
    if better := amount.better_size:
        yield f"  a model of {better.billions:g}B suits these samples better ({better.good:,} recommended)"
    if amount.epochs.message:
        yield f"  {amount.epochs.message}"


def _basis_lines(amount: SampleGuidance) -> Iterator[str]:
    """What the figures rest on, those with the same basis together."""
    groups: dict[str, list[str]] = {}
    for figure, words in amount.sure.items():
        groups.setdefault(words, []).append(figure)
    for words, figures in groups.items():
        yield f"  {' and '.join(figures)}: {words}"


def _quality(study: DataReport) -> Iterator[str]:
    if not study.rows.trained:
        return
    yield ""
    yield "quality:" if study.quality else "quality: nothing found"
    for one in study.quality:
        yield f"  {one.kind}: {one.rows:,} ({one.share:.2%}) {one.message}"
        for example in one.examples:
            yield f"      {example}"


def _notes(study: DataReport) -> Iterator[str]:
    if study.notes:
        yield ""
    for note in study.notes:
        yield f"note: {note}"


def format_registration(done: Registration) -> str:
    """The entry, rows that are of another form, the keys for the recipe and the next command as lines of text."""
    return escaping.escape_lines(_registration_lines(done))


def _registration_lines(done: Registration) -> Iterator[str]:
    yield f"{done.path}: {'added' if done.added else 'holds already'} {entry_as_json(done.name, done.entry)}"
    for drop in done.drops:
        share = f"{drop.rows:,} of {done.rows:,} rows {'is' if drop.rows == 1 else 'are'}"
        yield f"warning: {share} not trained: {drop.reason} ({', '.join(drop.examples)})"
    yield "in the recipe:"
    yield from (f"  {key}: {value}" for key, value in done.settings.items())
    yield from (f"note: {note}" for note in done.notes)
    yield "then, with that recipe: lmf-recipes data RECIPE"
