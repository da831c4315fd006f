"""The study of what the user names, with a bar for the time it takes."""

from __future__ import annotations

from collections.abc import Sequence

from validator.study import subject
from validator.study.overview import overview
from validator.study.progress import Progress
from validator.study.results import Study


def study(
    source: str, model: str | None, near: bool | None, overrides: Sequence[str] = (), machine: str | None = None
) -> Study:
    """The study of a recipe, after the overrides, or a data file; memory is that of the machine if one is named. Raises
    RecipeError."""
    job = subject.job(source, model, overrides, machine)
    progress = Progress(sum(dataset.rows.number for dataset in job.datasets if dataset.rows))
    try:
        return overview(job, near, progress)
    finally:
        progress.close()
