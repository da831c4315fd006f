"""What the data sets of a recipe hold, and what LLaMA-Factory makes of their rows.

Answers what becomes of each row, how many tokens a run trains on and what is wrong with its data, without loading a
model. It knows nothing of memory or devices, except for the report, which asks the run for them.

Its modules import the compiled packages of the extra [data]. Only this one can be imported without them, so others
come in through it: they call `require_packages` before they import a module, or `summarize_data`."""

from __future__ import annotations

from importlib.util import find_spec

from validator.errors import RecipeError
from validator.run.settings import RunSettings

# The extra [data] of pyproject.toml, and what installs it beside this package.
PACKAGES = ("numpy", "orjson", "pyarrow", "rensa", "tokenizers", "xxhash")
_INSTALL = 'pip install "llamafactory-recipes[data]"'


def _missing_packages() -> str:
    """Return the packages that this Python lacks and the command that installs them; empty if it lacks none."""
    lacking = ", ".join(name for name in PACKAGES if find_spec(name) is None)
    return f"needs {lacking}, which this Python lacks; run `{_INSTALL}`" if lacking else ""


def require_packages(asking: str) -> None:
    """Raise RecipeError if the modules of this room cannot be imported; `asking` is what needs them."""
    if lacking := _missing_packages():
        raise RecipeError(f"{asking} {lacking}")


def summarize_data(run: RunSettings) -> tuple[list[str], bool]:
    """Return what to say of the run's data in a few lines, and whether the run would stop at them."""
    if not any(dataset.files for dataset in run.data.datasets):
        return [], False
    if lacking := _missing_packages():
        return [f"data: not looked into: this {lacking}"], False
    from . import data_report

    return data_report.summarize_data(run)
