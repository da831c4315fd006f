"""What the data sets of a recipe hold, and what LLaMA-Factory makes of their rows.

Answers what becomes of each row, how many tokens a run trains on and what is wrong with its data, without loading a
model. The modules know nothing about memory or devices, except for the report, which asks the run for them.

All modules except this one import the compiled packages of the extra [data]. Code outside this package therefore calls
`require_packages` before it imports one of the modules, or calls `summarize_data` or `count_samples`."""

from __future__ import annotations

from importlib.util import find_spec

from validator.errors import RecipeError
from validator.rows.reading_limits import TooLargeError
from validator.run.dataset_registry import CountedSamples
from validator.run.settings import RunSettings

# The extra [data] of pyproject.toml, and what installs it beside this package.
PACKAGES = ("numpy", "orjson", "pyarrow", "rensa", "tokenizers", "xxhash")
_INSTALL = 'pip install "llamafactory-recipes[data]"'


def _missing_packages() -> str:
    """Return a phrase that names the missing packages of the extra [data] and the pip command that installs them. The
    phrase is empty if all packages are installed."""
    names = ", ".join(name for name in PACKAGES if find_spec(name) is None)
    return f"needs {names}, which this Python lacks; run `{_INSTALL}`" if names else ""


def require_packages(asking: str) -> None:
    """Raise RecipeError if a package of the extra [data] is not installed. `asking` names the feature that needs the
    packages, and begins the message."""
    if problem := _missing_packages():
        raise RecipeError(f"{asking} {problem}")


def count_samples(run: RunSettings) -> CountedSamples | None:
    """Return the samples that the run makes of its local data. None if the data are too large to be read quickly or
    cannot be read, if tokens of media are not known, or if a package of the extra [data] is missing."""
    if _missing_packages():
        return None
    from . import short_report

    try:
        return short_report.count_samples(run)
    except (TooLargeError, RecipeError, OSError):
        return None


def summarize_data(run: RunSettings) -> tuple[list[str], bool]:
    """Return a summary of the run's data in a few lines, and whether LLaMA-Factory would stop because of the data. The
    list is empty if the run has no data files on this machine. If a package of the extra [data] is missing, the only
    line says so."""
    if not any(dataset.files for dataset in run.data.datasets):
        return [], False
    if problem := _missing_packages():
        return [f"data: not looked into: this {problem}"], False
    from . import short_report

    return short_report.summarize_data(run)
