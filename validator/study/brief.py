"""The study in a few lines, for `train`: what a user should know before a run of days."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import RecipeError, plural
from validator.job.job import Job
from validator.study.overview import overview
from validator.study.results import Study

_LARGEST = 32 << 20  # bytes; more would keep the user waiting
# What a recipe or its data can be cured of. Repeated prompts and short answers may be meant.
_TOLD = ("exact duplicates", "empty answers", "control characters", "garbled text", "answers cut",
         "evaluation rows in training")  # fmt: skip


def brief(job: Job) -> tuple[list[str], bool]:
    """What to say of the job's data, and whether the run would stop at them. Nothing where they are large, elsewhere or
    in need of a library that is not there."""
    files = [path for dataset in job.datasets for path in dataset.files]
    try:
        if not files or sum(path.stat().st_size for path in files) > _LARGEST:
            return [], False
        study = overview(job, False, _silent)
    except (RecipeError, OSError):
        return [], False
    # Streamed rows are read while training; the run may end before the one that is to blame.
    return list(_lines(study)), bool(study.problems) and not job.flag("streaming")


def _silent(_rows: int) -> None:
    """Small data need no bar."""


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
