"""`lmf-recipes calibrate`: real steps of the tiny model correct what is predicted for the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launch.test_measure_log import counted, written
from support.program import run

from validator.commands import calibrate, options
from validator.doctor import start_checks
from validator.errors import RecipeError
from validator.launch import device_allocation as targets
from validator.launch.device_allocation import DeviceAllocation
from validator.launch.short_run import timed_overrides
from validator.run import calibration
from validator.run.settings import resolve

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "recipes" / "tiny-cpu-lora.yaml")
QWEN = str(ROOT / "recipes" / "qwen3-8b-4090x1-qlora.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "kept"))
    return tmp_path


def log(path: Path, seconds: float, tokens: int) -> str:
    """A log of ten steps that take so long each, of so many tokens."""
    return str(written(path / "trainer_log.jsonl", counted([seconds] * 10, tokens)))


def hours(*words: str) -> dict[str, Any]:
    time = json.loads(run("explain", QWEN, "--format", "json", *words).stdout)["time"]
    return {"step": time["step_seconds"]["expected"], "correction": time["correction"]}


def test_a_log_corrects_its_machine_and_is_taken_back(tmp_path: Path) -> None:
    before = hours()
    assert before["correction"] is None
    done = run("calibrate", QWEN, "--log", log(tmp_path, 40.0, 16 * 2048))
    assert done.exit_code == 0, done.output
    (measured,) = calibration.load_calibrations()
    assert (measured.machine, measured.steps) == ("1xrtx-4090", 8)
    assert measured.seconds == pytest.approx(40)
    after = hours()
    assert after["correction"] == pytest.approx(measured.ratio, rel=1e-3)
    assert after["step"] == pytest.approx(before["step"] * measured.ratio, rel=1e-3)
    assert hours("--machine", "1xrtx-3090")["correction"] is None
    assert "1xrtx-4090" in run("calibrate", "--list").output
    assert "1 recipe on 1xrtx-4090" in run("calibrate", "--forget", "1xrtx-4090").output
    assert hours() == before


def test_a_machine_without_published_rates_has_times_once_it_was_measured(tmp_path: Path) -> None:
    assert json.loads(run("explain", QWEN, "--machine", "1x24g", "--format", "json").stdout)["time"] is None
    done = run("calibrate", QWEN, "--machine", "1x24g", "--log", log(tmp_path, 40.0, 16 * 2048))
    assert done.exit_code == 0, done.output
    assert hours("--machine", "1x24g")["step"] > 0
    assert "not predicted" not in run("train", QWEN, "--dry-run", "--machine", "1x24g").stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "Missing argument 'RECIPE'"),
        ((TINY, "--steps", "2"), 2, "--steps"),
        ((TINY, "--machine", "8xa100-80g"), 2, "--machine names where a --log is from"),
        (("-",), 2, "of a recipe in a file"),
        (("--forget", "8xa100-80g"), 1, "nothing was measured on `8xa100-80g`"),
        ((TINY, "--log", "nowhere.jsonl"), 1, "`nowhere.jsonl` cannot be read: no such file"),
        (("nothing.yaml",), 1, ""),  # what is wrong with it is printed as `check` does
    ],
)
def test_what_cannot_be_is_told(words: tuple[str, ...], code: int, message: str) -> None:
    done = run("calibrate", *words)
    assert done.exit_code == code
    assert isinstance(done.exception, SystemExit | RecipeError)
    assert message in f"{done.output}{done.exception}"


def test_steps_are_not_timed_where_no_device_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be kept as those of the recipe's machine."""
    monkeypatch.setattr(targets, "allocate_devices", lambda _job, **_options: DeviceAllocation())
    done = run("calibrate", QWEN)
    assert (done.exit_code, calibration.load_calibrations()) == (1, [])
    assert "no device that steps could be timed on" in str(done.exception)


def test_the_settings_of_timed_steps_are_not_reported_as_faults_of_the_recipe(tmp_path: Path) -> None:
    own = options.load_configured(TINY, (), starts_here=True)
    timed = options.load_configured(TINY, [*timed_overrides(resolve(own), 3, tmp_path)], starts_here=True)
    shown = [timed, calibrate._without_own_findings(timed, own, DeviceAllocation("1xcpu"))]
    first, second = (start_checks.judge_recipe(each, "1xcpu", None).files[0].diagnostics for each in shown)
    assert {"TRA803", "TRA015"} <= {each.code for each in first}
    assert second == []


def test_nothing_was_measured_yet() -> None:
    assert run("calibrate", "--list").output == "nothing was measured yet: lmf-recipes calibrate RECIPE\n"
