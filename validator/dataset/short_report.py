"""The short report on data that are read quickly, which `train`, `doctor`, `plan` and `copy` show, and the samples by
which they predict steps and time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from validator.dataset import data_files, recipe_datasets, token_counting
from validator.dataset.data_report import (
    ESTIMATES_BECAUSE,
    DataReport,
    better_cutoff,
    build_report,
    length_quantiles,
)
from validator.dataset.row_scan import BLOCK_ROWS
from validator.dataset.row_selection import select_rows
from validator.errors import RecipeError
from validator.rows import reading_limits
from validator.rows.reading_limits import TooLargeError, UnreadableError
from validator.run import row_counts
from validator.run.dataset_registry import CountedSamples
from validator.run.first_rows import MOST
from validator.run.settings import RunSettings
from validator.wording import plural

_MAX_BYTES = 32 << 20  # bytes; more would keep the user waiting
_MAX_ROWS = 300_000  # rows, of which a small table can have any number
# Issues that are surely faults. Repeated prompts and short answers may be meant.
_REPORTED_ISSUES = ("exact duplicates", "empty answers", "empty prompts", "control characters", "garbled text",
         "answers cut", "images cut", "evaluation rows in training")  # fmt: skip


def summarize_data(run: RunSettings) -> tuple[list[str], bool]:
    """Return a summary of the run's data as a few lines of text, and True if LLaMA-Factory would stop because of the
    data. There are no lines if the data are too large to be read quickly, or cannot be read."""
    try:
        found = quick_report(run)
    except TooLargeError as err:
        return [f"data: not looked into: {err}"], False
    except (RecipeError, OSError):
        return [], False
    if found is None:
        return [], False
    # Streamed rows are read while training; the run may end before the one that is to blame.
    return list(_report_lines(found)), bool(found.problems) and not run.args.flag("streaming")


def quick_report(run: RunSettings) -> DataReport | None:
    """Return the report on the run's data, without near duplicates; None if the data are too large to be read quickly.
    Raises TooLargeError if they are large when unpacked, RecipeError or OSError if they cannot be read."""
    budget = _reading_budget(run)
    return build_report(run, False, budget) if budget else None


def count_samples(run: RunSettings) -> CountedSamples | None:
    """Return the samples that the run makes of its data; None if the data are too large to be read quickly, if no row
    is trained on, or if tokens of media are not known. Raises like `quick_report`."""
    if not (budget := _reading_budget(run)):
        return None
    counter = token_counting.best_counter(run)
    selection = select_rows(run, recipe_datasets.load_datasets(run, counter, budget))
    trained, evaluated = (selection.trained(each) for each in (selection.train, selection.evaluation))
    if selection.problems or selection.uncounted_media or not len(trained):
        return None
    ordered = np.sort(selection.rows["tokens"][trained])
    longest = int(selection.rows["tokens"][np.concatenate([trained, evaluated])].max())
    return CountedSamples(
        len(trained) / len(selection.train),
        length_quantiles(ordered.tolist()),
        longest if counter.exact else math.ceil(MOST * longest),
        counter.exact,
    )


def _reading_budget(run: RunSettings) -> _BlockBudget | None:
    """Return how much of the run's data may be read; None if the data are too large to be read quickly."""
    files = [path for dataset in run.data.datasets for path in dataset.files]
    if not all(map(_is_small, files)) or sum(path.stat().st_size for path in files) > _MAX_BYTES:
        return None
    return _BlockBudget(len(files))


def _is_small(path: Path) -> bool:
    """Return True if a file is small after decompression (at most 32 MiB, and 300,000 rows in Parquet). A file that
    cannot be read counts as small, because the report fails quickly at that file."""
    try:
        if path.suffix == ".parquet" and (rows := row_counts.count_rows(path)) and rows.number > _MAX_ROWS:
            return False
        return data_files.decompressed_size(path, _MAX_BYTES + 1) <= _MAX_BYTES
    except UnreadableError:
        return True


class _BlockBudget:
    """Stops a report that would take too long. An instance is called in place of a progress bar, and raises
    TooLargeError after too many rows, or too many blocks of few rows. Blocks have few rows if the rows are large; even
    a small file can expand to gigabytes if its rows share values."""

    def __init__(self, files: int) -> None:
        self._blocks, self._rows = files + _MAX_BYTES // reading_limits.MAX_BLOCK_BYTES, _MAX_ROWS

    def __call__(self, rows: int) -> None:
        self._blocks -= rows < BLOCK_ROWS
        self._rows -= rows
        if self._blocks < 0 or self._rows < 0:
            raise TooLargeError("the data are large when unpacked; `lmf-recipes data` examines them")


def _report_lines(report: DataReport) -> Iterator[str]:
    yield from map(str, report.problems)
    rows, steps, tokens = report.rows, report.steps, report.tokens
    if not steps or report.problems:
        return
    about = "" if tokens.exact else "about "
    total = f"{steps.total:,} {plural(steps.total, 'step')}"
    trained = rows.trained if rows.sequences != rows.trained else min(rows.trained, steps.total * steps.batch)
    yield (f"data: {trained:,} of {rows.read:,} rows trained in {total}, "
           f"{about}{tokens.per_epoch:,} tokens an epoch")  # fmt: skip
    for note in report.notes:
        if note.startswith(ESTIMATES_BECAUSE) and not note.endswith(token_counting.NO_TOKENIZER):
            yield f"data: {note}"
    for drop in report.drops:
        yield f"data: {drop.rows:,} {plural(drop.rows, 'row')} dropped: {drop.reason} ({drop.examples[0]})"
    for one in report.quality:
        if one.kind in _REPORTED_ISSUES:
            remedy = better_cutoff(report) if one.kind == "answers cut" else ""
            yield f"data: {one.kind}: {one.rows:,} ({one.share:.1%}), such as {one.examples[0]}{remedy}"
