"""Measured step times by recipe and machine, kept in the user's data folder. Their ratio to the predicted times
corrects later predictions for that machine."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import NamedTuple

from validator.errors import RecipeError, os_reason
from validator.recipe import atomic_write, known_folders, safe_read

# Times that a step may take what was predicted: no machine is so far from it.
_MAX_RATIO = 1e9
_MAX_BYTES = 16 << 20  # of measured.json: tens of thousands of measurements


class Calibration(NamedTuple):
    """Measured steps of one recipe on one machine. `seconds`: the measured time of all `steps` together; `expected`:
    the time that was predicted for the same steps, without correction."""

    machine: str
    recipe: str
    seconds: float
    expected: float
    steps: int
    date: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.expected


def calibration_file() -> Path | None:
    """Return the path of measured.json in the user's data folder; None if the user has no home folder."""
    base = known_folders.user_folder("XDG_DATA_HOME", ".local/share")
    return base and base / "lmf-recipes" / "measured.json"


def load_calibrations() -> list[Calibration]:
    """Return all saved measurements, oldest first; an empty list if the file does not exist. Raises RecipeError if the
    file cannot be read, or does not hold what `calibrate` writes."""
    path = calibration_file()
    if path is None:
        return []
    try:
        with safe_read.open_file(path) as file:
            rows = json.loads(file.read(_MAX_BYTES))
        return [_parse_calibration(row) for row in rows]
    except FileNotFoundError:
        return []
    except OSError as err:
        raise RecipeError(f"`{path}` cannot be read: {os_reason(err)}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RecipeError(f"`{path}` is not as `calibrate` writes it; mend or remove it") from None


def _parse_calibration(row: dict[str, object]) -> Calibration:
    kept = Calibration(
        str(row["machine"]),
        str(row["recipe"]),
        float(str(row["seconds"])),
        float(str(row["expected"])),
        int(str(row["steps"])),
        str(row["date"]),
    )
    if not (kept.seconds > 0 and kept.expected > 0 and 1 / _MAX_RATIO < kept.ratio < _MAX_RATIO):
        raise ValueError(row)
    return kept


def time_correction(machine: str) -> float | None:
    """Return the factor by which predicted times on a machine must be multiplied: measured seconds divided by predicted
    seconds, as the geometric mean over the recipes that were measured on the machine. None if no recipe was measured on
    the machine. `machine`: the machine's name."""
    ratios = [kept.ratio for kept in load_calibrations() if kept.machine == machine]
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None


def save_calibration(measured: Calibration) -> None:
    """Save a measurement. An older measurement of the same recipe and machine is replaced. Raises RecipeError if there
    is no home folder, or the file cannot be read or written."""
    path, run = _writable_file(), (measured.machine, measured.recipe)
    atomic_write.make_folder(path.parent)

    def add(_: bytes | None) -> str:
        other_calibrations = (kept for kept in load_calibrations() if (kept.machine, kept.recipe) != run)
        return _calibrations_json([*other_calibrations, measured])

    atomic_write.edit_file(path, add)


def remove_calibrations(machine: str) -> int:
    """Remove the saved measurements of the machine with this name, and return how many were removed. Raises RecipeError
    if the file of measurements cannot be read or written."""
    number = sum(each.machine == machine for each in load_calibrations())
    if number:
        atomic_write.edit_file(
            _writable_file(),
            lambda _: _calibrations_json([each for each in load_calibrations() if each.machine != machine]),
        )
    return number


def _writable_file() -> Path:
    if path := calibration_file():
        return path
    raise RecipeError("there is no home folder to keep what is measured in; name one: XDG_DATA_HOME=FOLDER")


def _calibrations_json(every: list[Calibration]) -> str:
    return json.dumps([each._asdict() for each in every], indent=1) + "\n"
