"""Steps timed from trainer_log.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.launch import trainer_log


def written(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def counted(seconds: list[float], tokens: int = 1000) -> list[dict[str, object]]:
    """Lines of a run that logs each step and counts tokens: as LLaMA-Factory rounds them."""
    total, rows = 0.0, []
    for step, each in enumerate(seconds, 1):
        total += each
        seen = {"throughput": round(step * tokens / total, 2), "total_tokens": step * tokens}
        rows.append({"current_steps": step, "loss": 1.0, "elapsed_time": "0:00:00", **seen})
    return rows


def coarse(times: list[tuple[int, str]]) -> list[dict[str, object]]:
    return [{"current_steps": step, "loss": 1.0, "elapsed_time": text} for step, text in times]


def test_first_steps_do_not_count(tmp_path: Path) -> None:
    timed = trainer_log.read_measured_steps(written(tmp_path / "log", counted([60, 9, 2, 2, 2, 3, 2], 100_000)))
    assert timed.steps == 5
    assert timed.seconds == pytest.approx(2, rel=1e-3)
    assert (timed.low, timed.high) == pytest.approx((2, 3), rel=1e-3)
    assert timed.tokens == 100_000


@pytest.mark.parametrize(
    "odd",
    [
        *('{"current_steps": 8, "lo', "", "[1]", "null", '{"current_steps": "x"}'),
        f'{{"current_steps": {"1" * 309}, "elapsed_time": "1 day, 1:00:00"}}',
        *(
            f'{{"current_steps": 9, "total_tokens": 9, "throughput": {speed}}}'
            for speed in ("NaN", "-1", "0", "1e-320")
        ),
    ],
)
def test_a_line_that_cannot_be_read_is_left_out(tmp_path: Path, odd: str) -> None:
    path = written(tmp_path / "log", counted([5, 2, 2, 2]))
    path.write_text(path.read_text() + odd)
    assert trainer_log.read_measured_steps(path).seconds == pytest.approx(2, rel=1e-3)


def test_of_several_runs_the_last(tmp_path: Path) -> None:
    timed = trainer_log.read_measured_steps(written(tmp_path / "log", counted([5, 2, 2, 2]) + counted([5, 3, 3, 3])))
    assert timed.seconds == pytest.approx(3, rel=1e-3)


def test_a_clock_that_was_set_back_times_no_step(tmp_path: Path) -> None:
    rows = coarse([(step, f"{hour}:00:00") for step, hour in ((2, 1), (3, 2), (4, 1), (5, 2))])
    assert trainer_log.read_measured_steps(written(tmp_path / "log", rows)).seconds == 3600


def test_an_evaluation_is_no_step(tmp_path: Path) -> None:
    rows = counted([5, 2, 2, 2])
    late = {"current_steps": 3, "eval_loss": 1.0, "throughput": 3000 / 109, "total_tokens": 3000}
    after = {"current_steps": 4, "loss": 1.0, "throughput": 4000 / 111, "total_tokens": 4000}
    timed = trainer_log.read_measured_steps(written(tmp_path / "log", [*rows[:3], late, after]))
    assert timed.seconds == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([(10, "0:01:00"), (20, "0:01:40"), (30, "0:02:20")], 4.0),
        ([(10, "23:59:50"), (20, "1 day, 0:00:40"), (30, "2 days, 0:00:40")], 4322.5),
    ],
)
def test_whole_seconds_give_the_mean(tmp_path: Path, times: list[tuple[int, str]], seconds: float) -> None:
    timed = trainer_log.read_measured_steps(written(tmp_path / "log", coarse(times)))
    assert timed.seconds == pytest.approx(seconds)
    assert timed.low < timed.seconds < timed.high
    assert timed.tokens is None


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no steps after the first 2"),
        (counted([5, 2]), "no steps after the first 2"),
        (coarse([(10, "0:00:05"), (20, "0:00:09")]), "include_num_input_tokens_seen"),
    ],
)
def test_what_tells_too_little_is_refused(tmp_path: Path, rows: list[dict[str, object]], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        trainer_log.read_measured_steps(written(tmp_path / "log", rows))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert trainer_log.read_last_step(tmp_path / "log") == 0
    with pytest.raises(RecipeError, match="no such file"):
        trainer_log.read_measured_steps(tmp_path / "log")


def test_reached(tmp_path: Path) -> None:
    assert trainer_log.read_last_step(written(tmp_path / "log", counted([5, 2, 2]))) == 3


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([(5, 2.31), (10, None), (10, 1.5), (50, 1.0214)], ["loss: 2.31 at step 5, 1.021 at step 50"]),
        ([(50, 3.0), (5, 2.0)], ["loss: 2 at step 5"]),  # a new run, with one entry
        ([(10, None)], []),
        (None, []),
    ],
)
def test_first_and_last_loss_of_the_last_run(
    tmp_path: Path, rows: list[tuple[int, float | None]] | None, lines: list[str]
) -> None:
    if rows is not None:
        entries = ({"current_steps": step, "elapsed_time": "0:00:01", "loss": loss} for step, loss in rows)
        written(tmp_path / "trainer_log.jsonl", [*entries])
    assert trainer_log.loss_lines(tmp_path) == lines
