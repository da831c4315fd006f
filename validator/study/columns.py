"""Columns of a data set as the datasets library types them, and what of that ends the run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from validator.samples.fate import DATE, KEPT
from validator.samples.form import Form
from validator.study import ceiling, reading
from validator.study.opening import plain
from validator.study.survey import Survey

_PART = 10 << 20  # bytes that the datasets library reads at once (packaged_modules/json/json.py)


def names(survey: Survey) -> list[str]:
    """The columns, in the order they appear."""
    return list(dict.fromkeys(name for shape in survey.shapes for name, _ in _typed(shape)))


def _typed(shape: tuple[Any, ...]) -> Iterator[tuple[str, type]]:
    """Names and types of one row: the names come first."""
    return zip(shape[: len(shape) // 2], shape[len(shape) // 2 :], strict=True)


def problems(survey: Survey, form: Form) -> Iterator[str]:
    """Why LLaMA-Factory cannot use the columns, with the row where it shows."""
    known, wanted = names(survey), dict.fromkeys(form.looked_up())
    if None in wanted:
        yield "`columns` in dataset_info.json leaves out a column that this form needs"
    absent = [f"`{column}`" for column in wanted if column and column not in known]
    if absent and known:
        kinds = [kind for shape in survey.shapes for _, kind in _typed(shape)]
        single = (
            "; it is one object, its rows stand inside: save that list alone"
            if kinds == [list] and len(survey) == 1
            else ""
        )
        yield f"has no column {', '.join(absent)}; it has {', '.join(known[:8])}{single}"
    yield from _conflicts(survey)
    yield from _late(survey)
    dated = [form.columns.get(part) for part in ("prompt", "query")]
    for column in _dates(survey):
        if column in dated and form.formatting == "alpaca":
            yield f"every value of `{column}` reads as a date, which is not text to the datasets library"


def _conflicts(survey: Survey) -> Iterator[str]:
    kinds: dict[str, type] = {}
    for shape, index in sorted(survey.shapes.items(), key=lambda item: item[1]):
        for name, kind in _typed(shape):
            kind = float if kind is int else kind  # whole numbers and others are one type
            if kind is not type(None) and (before := kinds.setdefault(name, kind)) is not kind:
                said = f"`{name}` is {_spoken(kind)} at {survey.place(index)}, {_spoken(before)} before"
                yield f"{said}; a column has one type"
                return


def _late(survey: Survey) -> Iterator[str]:
    """The first part that the datasets library reads settles the columns: later ones have none besides, and a column
    that holds nothing there holds nothing at all."""
    first = _first_part(survey)
    lines = survey.files[0][1].suffix in (".json", ".jsonl")
    begins: dict[str, int] = {}
    for shape, index in survey.shapes.items():
        for name, kind in _typed(shape):
            if kind is not type(None) or not lines:
                begins[name] = min(index, begins.get(name, index))
    for name, index in begins.items():
        if index >= first:
            yield (f"`{name}` holds nothing before {survey.place(index)}, and the first part that is read settles the "
                   "columns and their types; write such a row first")  # fmt: skip
            return


def _first_part(survey: Survey) -> int:
    """Rows of the first part: the first file, of a file of lines its first 10 MB."""
    rows = next((start for start, _ in survey.files if start), len(survey))
    path = [path for start, path in survey.files if not start][-1]  # behind empty ones
    if path.suffix not in (".json", ".jsonl") or path.stat().st_size <= _PART or not reading.in_lines(path):
        return rows
    with plain(path) as stream:
        part = stream.read(_PART) + stream.readline(ceiling.ROW)
    lines = sum(1 for line in io.BytesIO(part) if line.strip())
    return min(-(-lines // survey.stride), rows)


def _spoken(kind: type) -> str:
    return {str: "text", float: "a number", bool: "true or false", list: "a list", dict: "an object"}.get(kind, "mixed")


def _dates(survey: Survey) -> list[str]:
    """Columns of JSON lines that hold nothing but dates: Arrow makes timestamps of them."""
    texts = {name for shape in survey.shapes for name, kind in _typed(shape) if kind is str}
    lines = all(path.suffix in (".json", ".jsonl") and reading.in_lines(path) for _, path in survey.files)
    return sorted(texts - survey.undated) if lines else []


def recode(survey: Survey, form: Form) -> None:
    """Rows whose answer is a date have none."""
    if form.formatting == "alpaca" and form.columns.get("response") in _dates(survey):
        survey.fates = bytearray(DATE if code == KEPT else code for code in survey.fates)
