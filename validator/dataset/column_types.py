"""Columns of a data set with the types that the datasets library would settle on, and what of that ends the run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from validator.dataset import json_rows
from validator.dataset.data_files import open_raw
from validator.dataset.row_scan import ScannedRows
from validator.rows import reading_limits
from validator.rows.dataset_attr import DatasetAttr
from validator.rows.outcomes import DATE_ANSWER, TRAINED

_FIRST_PART_BYTES = 10 << 20  # bytes that the datasets library reads at once (packaged_modules/json/json.py)


def column_names(survey: ScannedRows) -> list[str]:
    """The columns, in the order they appear."""
    return list(dict.fromkeys(name for shape in survey.shapes for name, _ in _names_and_types(shape)))


def _names_and_types(shape: tuple[Any, ...]) -> Iterator[tuple[str, type]]:
    """Names and types of one row: the names come first."""
    return zip(shape[: len(shape) // 2], shape[len(shape) // 2 :], strict=True)


def column_problems(survey: ScannedRows, form: DatasetAttr) -> Iterator[str]:
    """Why LLaMA-Factory cannot use the columns, with the row where it shows."""
    known, wanted = column_names(survey), dict.fromkeys(form.required_columns())
    if None in wanted:
        yield "`columns` in dataset_info.json leaves out a column that this form needs"
    absent = [f"`{column}`" for column in wanted if column and column not in known]
    if absent and known:
        kinds = [kind for shape in survey.shapes for _, kind in _names_and_types(shape)]
        single = (
            "; it is one object, its rows stand inside: save that list alone"
            if kinds == [list] and len(survey) == 1
            else ""
        )
        yield f"has no column {', '.join(absent)}; it has {', '.join(known[:8])}{single}"
    yield from _type_conflicts(survey)
    yield from _late_columns(survey)
    dated = [form.columns.get(part) for part in ("prompt", "query")]
    for column in _date_columns(survey):
        if column in dated and form.formatting == "alpaca":
            yield f"every value of `{column}` reads as a date, which is not text to the datasets library"


def _type_conflicts(survey: ScannedRows) -> Iterator[str]:
    kinds: dict[str, type] = {}
    for shape, index in sorted(survey.shapes.items(), key=lambda item: item[1]):
        for name, kind in _names_and_types(shape):
            kind = float if kind is int else kind  # whole numbers and others are one type
            if kind is not type(None) and (before := kinds.setdefault(name, kind)) is not kind:
                said = f"`{name}` is {_type_in_words(kind)} at {survey.place(index)}, {_type_in_words(before)} before"
                yield f"{said}; a column has one type"
                return


def _late_columns(survey: ScannedRows) -> Iterator[str]:
    """The first part that the datasets library reads settles the columns: later ones have none besides, and a column
    that holds nothing there holds nothing at all."""
    first = _first_part_rows(survey)
    lines = survey.files[0][1].suffix in (".json", ".jsonl")
    begins: dict[str, int] = {}
    for shape, index in survey.shapes.items():
        for name, kind in _names_and_types(shape):
            if kind is not type(None) or not lines:
                begins[name] = min(index, begins.get(name, index))
    for name, index in begins.items():
        if index >= first:
            yield (f"`{name}` holds nothing before {survey.place(index)}, and the first part that is read settles the "
                   "columns and their types; write such a row first")  # fmt: skip
            return


def _first_part_rows(survey: ScannedRows) -> int:
    """Rows of the first part: the first file, of a file of lines its first 10 MB."""
    rows = next((start for start, _ in survey.files if start), len(survey))
    path = [path for start, path in survey.files if not start][-1]  # behind empty ones
    if (
        path.suffix not in (".json", ".jsonl")
        or path.stat().st_size <= _FIRST_PART_BYTES
        or not json_rows.is_json_lines(path)
    ):
        return rows
    with open_raw(path) as stream:
        part = stream.read(_FIRST_PART_BYTES) + stream.readline(reading_limits.MAX_ROW_BYTES)
    lines = sum(1 for line in io.BytesIO(part) if line.strip())
    return min(-(-lines // survey.stride), rows)


def _type_in_words(kind: type) -> str:
    return {str: "text", float: "a number", bool: "true or false", list: "a list", dict: "an object"}.get(kind, "mixed")


def _date_columns(survey: ScannedRows) -> list[str]:
    """Columns of JSON lines that hold nothing but dates: Arrow makes timestamps of them."""
    texts = {name for shape in survey.shapes for name, kind in _names_and_types(shape) if kind is str}
    lines = all(path.suffix in (".json", ".jsonl") and json_rows.is_json_lines(path) for _, path in survey.files)
    return sorted(texts - survey.undated) if lines else []


def drop_date_answers(survey: ScannedRows, form: DatasetAttr) -> None:
    """Rows whose answer is a date have none."""
    if form.formatting == "alpaca" and form.columns.get("response") in _date_columns(survey):
        survey.fates = bytearray(DATE_ANSWER if code == TRAINED else code for code in survey.fates)
