"""Reads trainer_log.jsonl, which LLaMA-Factory writes during training: the time of a step, its number of tokens, and
the last step that was logged."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from validator.errors import RecipeError, os_reason
from validator.recipe.safe_read import NoFileError, open_file

# The first steps compile, allocate and read data for the first time.
UNTIMED_STEPS = 2
# Where tokens are not counted, the log tells whole seconds.
_MIN_SECONDS = 30
# Of steps and tokens: no run has as many, and no float holds numbers of any length.
_MAX_COUNT = 2**63
_MAX_BYTES = 64 << 20  # of a log: a quarter of a million lines


class LogEntry(NamedTuple):
    """One line of the log. `step` is the number of optimizer steps done, `seconds` the time since training began.
    `tokens` are the tokens of all devices so far, padding included; None if the run does not count them.
    `allocated_gib` is the peak of allocated device memory (`vram_allocated`) in GiB; None if the run does not record
    it. `loss` is the mean training loss since the entry before; None in an entry of an evaluation."""

    step: int
    seconds: float
    tokens: int | None
    allocated_gib: float | None
    loss: float | None


class MeasuredSteps(NamedTuple):
    """Measured seconds of one optimizer step: the median (`seconds`), and the range from `low` to `high` that holds
    nine of ten steps. If the log does not count tokens, its times are whole seconds, and the three numbers are the mean
    and the range in which the mean lies. `steps` is the number of measured steps. `tokens` are the tokens of one step
    over all devices; None if the log does not count them. `allocated_gib` is the peak of allocated device memory in
    GiB; None if the log does not record it."""

    seconds: float
    low: float
    high: float
    steps: int
    tokens: float | None
    allocated_gib: float | None


def read_measured_steps(path: Path) -> MeasuredSteps:
    """Return the step times of the last run in the log, without the first two steps, which are slower. Raises
    RecipeError if the log holds too few steps, or cannot be read."""
    points = _entries_of_last_run(path)
    pairs = ((start, end) for start, end in pairwise(points) if end.seconds > start.seconds)
    spans = [(start, end) for start, end in pairs if end.step > start.step >= UNTIMED_STEPS]
    if not spans:
        slower = f"the first {UNTIMED_STEPS}, which are slower"
        raise RecipeError(f"`{path}` tells of no steps after {slower}; log more of them")
    steps = spans[-1][1].step - spans[0][0].step
    live = max((point.allocated_gib or 0.0 for point in points), default=0.0) or None
    first, last = spans[0][0].tokens, spans[-1][1].tokens
    if first is None or last is None:
        return MeasuredSteps(*_mean_of_whole_seconds(path, spans), steps, None, live)
    each = sorted((end.seconds - start.seconds) / (end.step - start.step) for start, end in spans)
    edge = len(each) // 20
    return MeasuredSteps(median(each), each[edge], each[-1 - edge], steps, (last - first) / steps, live)


def read_last_step(path: Path) -> int:
    """Return the last step that the last run in the log has written; 0 if there is no log yet."""
    points = _entries_of_last_run(path) if path.is_file() else []
    return points[-1].step if points else 0


def loss_lines(output: Path) -> list[str]:
    """Return a line with the first and the last training loss that the last run has logged; empty if there is none."""
    path = output / "trainer_log.jsonl"
    losses = [point for point in _entries_of_last_run(path) if point.loss is not None] if path.is_file() else []
    named = [f"{point.loss:.4g} at step {point.step:,}" for point in dict.fromkeys(losses[:1] + losses[-1:])]
    return [f"loss: {', '.join(named)}"] if named else []


def _mean_of_whole_seconds(path: Path, spans: list[tuple[LogEntry, LogEntry]]) -> tuple[float, float, float]:
    """Return the mean seconds of one step, and the lowest and highest mean that the log allows. The log states times
    cut to whole seconds. `spans` are pairs of log entries; the steps between the two entries of a pair are measured.
    Raises RecipeError if all steps together took less than 30 seconds."""
    seconds = sum(end.seconds - start.seconds for start, end in spans)
    steps = sum(end.step - start.step for start, end in spans)
    if seconds < _MIN_SECONDS:
        counted = "`include_num_input_tokens_seen: true` makes it exact"
        raise RecipeError(f"`{path}` tells whole seconds, and its steps took {seconds:.0f} in all; {counted}")
    return seconds / steps, (seconds - len(spans)) / steps, (seconds + len(spans)) / steps


def _entries_of_last_run(path: Path) -> list[LogEntry]:
    """Read the log entries of the last run. Runs append to the same file: an entry with a lower step number than the
    entry before belongs to a new run."""
    points: list[LogEntry] = []
    for point in _read_entries(path):
        if points and point.step < points[-1].step:
            points.clear()
        points.append(point)
    return points


def _read_entries(path: Path) -> Iterator[LogEntry]:
    """Yield a log entry for each line that can be parsed. Other lines, such as a half-written last line, are skipped.
    Of more than 64 MiB only the end is read. Raises RecipeError if the file cannot be read."""
    try:
        with open_file(path) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _MAX_BYTES, 0))
            text = (file.read(_MAX_BYTES) or b"").decode(errors="replace")
    except NoFileError as err:
        raise RecipeError(f"`{path}` {os_reason(err)}") from None
    except (OSError, ValueError) as err:
        raise RecipeError(f"`{path}` cannot be read: {os_reason(err) if isinstance(err, OSError) else err}") from None
    for line in text.splitlines():
        try:
            yield _parse_entry(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ZeroDivisionError, OverflowError):
            continue


def _parse_entry(row: Mapping[str, object]) -> LogEntry:
    """Convert a line of the log into an entry. With tokens, the seconds are `total_tokens` divided by `throughput`
    (tokens per second since the start), which is more exact than `elapsed_time`, cut to whole seconds (LLaMA-Factory,
    train/callbacks.py, LogCallback.on_log)."""
    tokens = _parse_count(row["total_tokens"]) if row.get("total_tokens") else None
    seconds = tokens / float(str(row["throughput"])) if tokens else _parse_duration(str(row["elapsed_time"]))
    if not 0 <= seconds < math.inf:
        raise ValueError(seconds)
    live = float(str(row["vram_allocated"])) if row.get("vram_allocated") else None
    loss = float(str(row["loss"])) if row.get("loss") is not None else None
    return LogEntry(_parse_count(row["current_steps"]), seconds, tokens, live, loss)


def _parse_count(value: object) -> int:
    """Convert a value into a whole number. Raises ValueError if the value is not a whole number, or 2^63 or more."""
    number = int(str(value))
    if number >= _MAX_COUNT:
        raise ValueError(value)
    return number


def _parse_duration(text: str) -> float:
    """Return the seconds of a duration that Python's timedelta prints, such as `1 day, 2:03:04`."""
    days, _, clock = text.rpartition(", ")
    hours, minutes, seconds = clock.split(":")
    number = int(days.split()[0]) if days else 0
    return timedelta(days=number, hours=int(hours), minutes=int(minutes), seconds=int(seconds)).total_seconds()
