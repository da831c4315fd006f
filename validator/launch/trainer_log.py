"""Reads trainer_log.jsonl, which LLaMA-Factory writes while it trains: how long steps took, how many tokens they had,
and the last step that was logged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from validator.errors import RecipeError, os_reason

# The first steps compile, allocate and read data for the first time.
UNTIMED_STEPS = 2
# Where tokens are not counted, the log tells whole seconds.
_MIN_SECONDS = 30
# Of steps and tokens: no run has as many, and no float holds numbers of any length.
_MAX_COUNT = 2**63


class LogEntry(NamedTuple):
    """A line of the log: steps done, and seconds since training began. `tokens` of all devices so far, padding
    included, and the most GiB of live tensors; None where the run does not count them."""

    step: int
    seconds: float
    tokens: int | None
    allocated_gib: float | None


class MeasuredSteps(NamedTuple):
    """Seconds of one optimizer step as it ran: the median, and those that nine of ten steps lie between. `tokens` of a
    step over all devices."""

    seconds: float
    low: float
    high: float
    steps: int
    tokens: float | None
    allocated_gib: float | None


def read_measured_steps(path: Path) -> MeasuredSteps:
    """Read the steps of the file's last run, without the first ones. Raises RecipeError if it holds too few."""
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
    """Return the last step that the file's last run has logged; 0 if there is no file yet."""
    points = _entries_of_last_run(path) if path.is_file() else []
    return points[-1].step if points else 0


def _mean_of_whole_seconds(path: Path, spans: list[tuple[LogEntry, LogEntry]]) -> tuple[float, float, float]:
    """Return the mean of times that are cut to whole seconds, and the least and the most that it can be."""
    seconds = sum(end.seconds - start.seconds for start, end in spans)
    steps = sum(end.step - start.step for start, end in spans)
    if seconds < _MIN_SECONDS:
        counted = "`include_num_input_tokens_seen: true` makes it exact"
        raise RecipeError(f"`{path}` tells whole seconds, and its steps took {seconds:.0f} in all; {counted}")
    return seconds / steps, (seconds - len(spans)) / steps, (seconds + len(spans)) / steps


def _entries_of_last_run(path: Path) -> list[LogEntry]:
    """Read the entries of the last run. Runs append to the file: steps that begin again belong to another run."""
    points: list[LogEntry] = []
    for point in _read_entries(path):
        if points and point.step < points[-1].step:
            points.clear()
        points.append(point)
    return points


def _read_entries(path: Path) -> Iterator[LogEntry]:
    """Yield an entry for each line that can be parsed; the last line may be half-written."""
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError as err:
        raise RecipeError(f"`{path}` cannot be read: {os_reason(err)}") from None
    for line in lines:
        try:
            yield _parse_entry(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ZeroDivisionError, OverflowError):
            continue


def _parse_entry(row: Mapping[str, object]) -> LogEntry:
    """Return a line as an entry. `throughput` is `total_tokens` over the seconds so far, which `elapsed_time` has in
    whole seconds (LLaMA-Factory, train/callbacks.py, LogCallback.on_log)."""
    tokens = _parse_count(row["total_tokens"]) if row.get("total_tokens") else None
    seconds = tokens / float(str(row["throughput"])) if tokens else _parse_duration(str(row["elapsed_time"]))
    if not 0 <= seconds < math.inf:
        raise ValueError(seconds)
    live = float(str(row["vram_allocated"])) if row.get("vram_allocated") else None
    return LogEntry(_parse_count(row["current_steps"]), seconds, tokens, live)


def _parse_count(value: object) -> int:
    """Return a whole number. Raises ValueError if it is none, or larger than a run can have."""
    number = int(str(value))
    if number >= _MAX_COUNT:
        raise ValueError(value)
    return number


def _parse_duration(text: str) -> float:
    """Return the seconds of a timedelta as Python writes it: `1 day, 2:03:04`."""
    days, _, clock = text.rpartition(", ")
    hours, minutes, seconds = clock.split(":")
    number = int(days.split()[0]) if days else 0
    return timedelta(days=number, hours=int(hours), minutes=int(minutes), seconds=int(seconds)).total_seconds()
