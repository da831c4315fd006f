"""What was measured, kept by machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.run import calibration
from validator.run.calibration import Calibration

ONE = Calibration("8xa100-80g", "a.yaml", 3.0, 2.0, 10, "2026-11-22")
OTHER = Calibration("8xa100-80g", "b.yaml", 6.0, 1.0, 10, "2026-11-22")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_nothing_is_kept_at_first() -> None:
    assert calibration.load_calibrations() == []
    assert calibration.time_correction("8xa100-80g") is None
    assert calibration.remove_calibrations("8xa100-80g") == 0


def test_a_machine_is_corrected_by_all_its_recipes() -> None:
    calibration.save_calibration(ONE)
    assert calibration.time_correction("8xa100-80g") == pytest.approx(1.5)
    calibration.save_calibration(OTHER)
    assert calibration.time_correction("8xa100-80g") == pytest.approx(3.0)  # the geometric mean of 1.5 and 6
    assert calibration.time_correction("4xa100-80g") is None


def test_a_recipe_measured_again_replaces_what_was_kept() -> None:
    calibration.save_calibration(ONE)
    calibration.save_calibration(ONE._replace(seconds=2.0))
    assert calibration.load_calibrations() == [ONE._replace(seconds=2.0)]


def test_forgetting_leaves_other_machines() -> None:
    for measured in (ONE, OTHER, ONE._replace(machine="2xa100-80g")):
        calibration.save_calibration(measured)
    assert calibration.remove_calibrations("8xa100-80g") == 2
    assert [each.machine for each in calibration.load_calibrations()] == ["2xa100-80g"]


@pytest.mark.parametrize("text", ["", '{"a": 1}', "[1]", '[{"machine": "x"}]', "[" * 100_000])
def test_a_file_that_is_not_ours_is_told_and_left(text: str) -> None:
    path = calibration.calibration_file()
    assert path
    path.parent.mkdir()
    path.write_text(text)
    for ask in (
        calibration.load_calibrations,
        lambda: calibration.time_correction("x"),
        lambda: calibration.save_calibration(ONE),
        lambda: calibration.remove_calibrations("x"),
    ):
        with pytest.raises(RecipeError, match="is not as `calibrate` writes it"):
            ask()
    assert path.read_text() == text


@pytest.mark.parametrize(
    "bad",
    [
        {"seconds": 0},
        {"expected": "inf"},
        {"expected": "nan"},
        {"seconds": -1},
        {"expected": 5e-324},
        {"seconds": 1e-300},
    ],
)
def test_figures_that_correct_nothing_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        calibration._parse_calibration({**ONE._asdict(), **bad})
