"""Surveys of whole data sets: large files of lines in parts, on all cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from validator.study import reading
from validator.study.estimate import Estimate
from validator.study.survey import Plan, Report, Survey, survey

# Smaller parts cost more to hand over than they save.
_PART = 16 << 20
WORKERS = os.cpu_count() or 1


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
    parts = spans(path) if isinstance(plan.counter, Estimate) else []
    if len(parts) < 2:
        yield survey(path, plan, report), False
        return
    tasks = zip(*((path, plan, _silent, span) for span in parts), strict=True)
    with ProcessPoolExecutor(WORKERS) as workers:
        for index, part in enumerate(workers.map(survey, *tasks)):
            report(len(part))
            yield part, index > 0


def _silent(_rows: int) -> None:
    """Only the first process has a terminal."""


def spans(path: Path) -> list[tuple[int, int]]:
    """Parts of a file of JSON lines, in bytes, that end with a line; none where it is small or of another kind."""
    size = path.stat().st_size if path.is_file() else 0
    if size <= _PART or path.suffix not in (".json", ".jsonl") or not reading.in_lines(path):
        return []
    parts: list[tuple[int, int]] = []
    with path.open("rb") as stream:
        while (start := parts[-1][1] if parts else 0) < size:
            stream.seek(min(start + _PART, size))
            stream.readline()
            parts.append((start, stream.tell()))
    return parts
