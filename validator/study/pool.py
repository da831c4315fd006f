"""Surveys of whole data sets: large files of lines in parts, on all cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from validator.study import ceiling, reading, workers
from validator.study.estimate import Estimate
from validator.study.opening import plain
from validator.study.survey import Plan, Report, Survey, parts, survey

# Smaller parts cost more to hand over than they save.
_PART = 16 << 20


def whole(files: Sequence[Path], plan: Plan, report: Report) -> Survey:
    """All rows of the files of a data set. It ends with the first problem: LLaMA-Factory then loads nothing."""
    rows = Survey()
    for path in files:
        for part, continues in _parts(path, plan, report):
            rows.extend(part, continues)
            if part.problems:
                return rows
    return rows


def _parts(path: Path, plan: Plan, report: Report) -> Iterator[tuple[Survey, bool]]:
    # A real tokenizer keeps all cores busy by itself.
    spread = spans(path) if isinstance(plan.counter, Estimate) else []
    if len(spread) < 2:
        yield from ((part, index > 0) for index, part in enumerate(parts(path, plan, report)))
        return
    for index, part in enumerate(workers.results(survey, [(path, plan, _silent, span) for span in spread])):
        report(len(part))
        yield part, index > 0


def _silent(_rows: int) -> None:
    """Only the first process has a terminal."""


def spans(path: Path) -> list[tuple[int, int]]:
    """Parts of a file of JSON lines, in bytes, that end with a line; none where it is small or of another kind."""
    size = path.stat().st_size if path.is_file() else 0  # a pipe has none, and is told of where it is opened
    if size <= _PART or path.suffix not in (".json", ".jsonl") or not reading.in_lines(path):
        return []
    ends: list[tuple[int, int]] = []
    with plain(path) as stream:
        while (start := ends[-1][1] if ends else 0) < size:
            stream.seek(min(start + _PART, size))
            stream.readline(ceiling.ROW + 1)
            ends.append((start, stream.tell()))
    return ends
