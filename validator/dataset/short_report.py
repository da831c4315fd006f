"""The report on a run's data in a few lines, for `train` and `doctor`: what a user should know before a run of days."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from validator.dataset import data_files
from validator.dataset.data_report import DataReport, build_report
from validator.dataset.row_scan import BLOCK_ROWS
from validator.errors import RecipeError
from validator.rows import reading_limits
from validator.rows.reading_limits import TooLargeError, UnreadableError
from validator.run.settings import RunSettings
from validator.wording import plural

_MAX_BYTES = 32 << 20  # bytes; more would keep the user waiting
_MAX_PARQUET_ROWS = 200_000  # rows, of which a small parquet file can have any number
# What a recipe or its data can be cured of. Repeated prompts and short answers may be meant.
_REPORTED_ISSUES = ("exact duplicates", "empty answers", "control characters", "garbled text", "answers cut",
         "evaluation rows in training")  # fmt: skip


def summarize_data(run: RunSettings) -> tuple[list[str], bool]:
    """Return what to say of the run's data, and whether the run would stop at them; nothing where they are large."""
    files = [path for dataset in run.data.datasets for path in dataset.files]
    try:
        if not all(map(_is_small, files)) or sum(path.stat().st_size for path in files) > _MAX_BYTES:
            return [], False
        study = build_report(run, False, _BlockBudget(len(files)))
    except TooLargeError as err:
        return [f"data: not looked into: {err}"], False
    except (RecipeError, OSError):
        return [], False
    # Streamed rows are read while training; the run may end before the one that is to blame.
    return list(_report_lines(study)), bool(study.problems) and not run.args.flag("streaming")


def _is_small(path: Path) -> bool:
    """Whether a file is small unpacked, too; one that cannot be read is, as that is soon told."""
    try:
        if path.suffix == ".parquet" and data_files.count_rows(path) > _MAX_PARQUET_ROWS:
            return False
        return data_files.decompressed_size(path, _MAX_BYTES + 1) <= _MAX_BYTES
    except UnreadableError:
        return True


class _BlockBudget:
    """Counts blocks in place of a progress bar, and raises TooLargeError after too many small ones: in a small file,
    rows that share their values can be any number of gigabytes, and large rows come in blocks of few rows."""

    def __init__(self, files: int) -> None:
        self._left = files + _MAX_BYTES // reading_limits.MAX_BLOCK_BYTES

    def __call__(self, rows: int) -> None:
        self._left -= rows < BLOCK_ROWS
        if self._left < 0:
            raise TooLargeError("it is large when unpacked; `lmf-recipes data` takes its time for it")


def _report_lines(study: DataReport) -> Iterator[str]:
    yield from map(str, study.problems)
    rows, steps, tokens = study.rows, study.steps, study.tokens
    if not steps or study.problems:
        return
    about = "" if tokens.exact else "about "
    total = f"{steps.total:,} {plural(steps.total, 'step')}"
    yield (f"data: {rows.trained:,} of {rows.read:,} rows trained in {total}, "
           f"{about}{tokens.per_epoch:,} tokens an epoch")  # fmt: skip
    for drop in study.drops:
        yield f"data: {drop.rows:,} {plural(drop.rows, 'row')} dropped: {drop.reason} ({drop.examples[0]})"
    for one in study.quality:
        if one.kind in _REPORTED_ISSUES:
            yield f"data: {one.kind}: {one.rows:,} ({one.share:.1%}), such as {one.examples[0]}"
