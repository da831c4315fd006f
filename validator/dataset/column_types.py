"""Columns of a data set with the types that the datasets library would settle on, and what of that ends the run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice

from validator.dataset import json_rows
from validator.dataset.data_files import open_raw
from validator.dataset.row_scan import ScannedRows
from validator.rows import reading_limits
from validator.rows.dataset_attr import DatasetAttr
from validator.rows.outcomes import DATE_ANSWER, TRAINED

_FIRST_PART_BYTES = 10 << 20  # bytes that the datasets library reads at once (packaged_modules/json/json.py)


def column_problems(scan: ScannedRows, attr: DatasetAttr) -> Iterator[str]:
    """Yield why LLaMA-Factory cannot use the columns, with the row where it shows."""
    known, wanted = scan.column_types, dict.fromkeys(attr.required_columns())
    if None in wanted:
        yield "`columns` in dataset_info.json leaves out a column that this form needs"
    absent = [f"`{column}`" for column in wanted if column and column not in known]
    if absent and known:
        single = (
            "; it is one object, its rows stand inside: save that list alone"
            if [[*kinds] for kinds in known.values()] == [[list]] and scan.read == 1
            else ""
        )
        yield f"has no column {', '.join(absent)}; it has {', '.join([*known][:8])}{single}"
    yield from islice(_type_conflicts(scan), 1)
    yield from _late_columns(scan)
    dated = [attr.columns.get(part) for part in ("prompt", "query")]
    for column in _date_columns(scan):
        if column in dated and attr.formatting == "alpaca":
            yield f"every value of `{column}` reads as a date, which is not text to the datasets library"


def _type_conflicts(scan: ScannedRows) -> Iterator[str]:
    first = {(number, column): kind for column, kinds in scan.column_types.items() for kind, number in kinds.items()}
    known: dict[str, type] = {}
    for number, column in sorted(first, key=lambda cell: cell[0]):
        kind = first[number, column]
        kind = float if kind is int else kind  # whole numbers and others are one type
        if kind is not type(None) and (before := known.setdefault(column, kind)) is not kind:
            found = f"`{column}` is {_type_in_words(kind)} at {scan.place(number)}, {_type_in_words(before)} before"
            yield f"{found}; a column has one type"


def _late_columns(scan: ScannedRows) -> Iterator[str]:
    """Yield the first column that holds nothing in the first part that the datasets library reads: later parts have no
    columns besides, and a column that holds nothing there holds nothing at all."""
    part_rows = _first_part_rows(scan)
    lines = scan.files[0][1].suffix in (".json", ".jsonl")
    for column, kinds in scan.column_types.items():
        numbers = [number for kind, number in kinds.items() if kind is not type(None) or not lines]
        if numbers and min(numbers) >= part_rows:
            yield (f"`{column}` holds nothing before {scan.place(min(numbers))}, and the first part that is read "
                   "settles the columns and their types; write such a row first")  # fmt: skip
            return


def _first_part_rows(scan: ScannedRows) -> int:
    """Rows of the first part: the first file, of a file of lines its first 10 MB."""
    rows = next((start for start, _ in scan.files if start), scan.read)
    path = [path for start, path in scan.files if not start][-1]  # behind empty ones
    if (
        path.suffix not in (".json", ".jsonl")
        or path.stat().st_size <= _FIRST_PART_BYTES
        or not json_rows.is_json_lines(path)
    ):
        return rows
    with open_raw(path) as stream:
        part = stream.read(_FIRST_PART_BYTES) + stream.readline(reading_limits.MAX_ROW_BYTES)
    return min(sum(1 for line in io.BytesIO(part) if line.strip()), rows)


def _type_in_words(kind: type) -> str:
    return {str: "text", float: "a number", bool: "true or false", list: "a list", dict: "an object"}.get(kind, "mixed")


def _date_columns(scan: ScannedRows) -> list[str]:
    """Columns of JSON lines that hold nothing but dates: Arrow makes timestamps of them."""
    texts = {column for column, kinds in scan.column_types.items() if str in kinds}
    lines = all(path.suffix in (".json", ".jsonl") and json_rows.is_json_lines(path) for _, path in scan.files)
    return sorted(texts - scan.not_dates) if lines else []


def drop_date_answers(scan: ScannedRows, attr: DatasetAttr) -> None:
    """Mark the rows whose answer is a date: they have none."""
    if attr.formatting == "alpaca" and attr.columns.get("response") in _date_columns(scan):
        outcome = scan.rows["outcome"]
        outcome[outcome == TRAINED] = DATE_ANSWER
