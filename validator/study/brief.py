"""The study in a few lines, for `train`: what a user should know before a run of days."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from validator.diagnostic import RecipeError, plural
from validator.job.job import Job
from validator.study import ceiling, opening, reading
from validator.study.ceiling import TooLargeError
from validator.study.overview import overview
from validator.study.results import Study
from validator.study.survey import BLOCK
from validator.study.values import UnreadableError

_LARGEST = 32 << 20  # bytes; more would keep the user waiting
_MOST = 200_000  # rows, of which a small parquet file can have any number
# What a recipe or its data can be cured of. Repeated prompts and short answers may be meant.
_TOLD = ("exact duplicates", "empty answers", "control characters", "garbled text", "answers cut",
         "evaluation rows in training")  # fmt: skip


def brief(job: Job) -> tuple[list[str], bool]:
    """What to say of the job's data, and whether the run would stop at them. Nothing where they are large, elsewhere or
    in need of a library that is not there."""
    files = [path for dataset in job.datasets for path in dataset.files]
    try:
        if not files or not all(map(_small, files)) or sum(path.stat().st_size for path in files) > _LARGEST:
            return [], False
        study = overview(job, False, _Patience(len(files)))
    except TooLargeError as err:
        return [f"data: not looked into: {err}"], False
    except (RecipeError, OSError):
        return [], False
    # Streamed rows are read while training; the run may end before the one that is to blame.
    return list(_lines(study)), bool(study.problems) and not job.flag("streaming")


def _small(path: Path) -> bool:
    """Whether a file is small unpacked, too; one that cannot be read is, as that is soon told."""
    try:
        if path.suffix == ".parquet" and reading.count(path) > _MOST:
            return False
        return opening.size(path, _LARGEST + 1) <= _LARGEST
    except UnreadableError:
        return True


class _Patience:
    """Small data need no bar. Rows that share their values can be any number of gigabytes in a small file: they come in
    blocks of fewer rows, of which there is one at the end of every file, too. Raises TooLargeError."""

    def __init__(self, files: int) -> None:
        self._left = files + _LARGEST // ceiling.HELD

    def __call__(self, rows: int) -> None:
        self._left -= rows < BLOCK
        if self._left < 0:
            raise TooLargeError("it is large when unpacked; `lmf-recipes data` takes its time for it")


def _lines(study: Study) -> Iterator[str]:
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
        if one.kind in _TOLD:
            yield f"data: {one.kind}: {one.rows:,} ({one.share:.1%}), such as {one.examples[0]}"
