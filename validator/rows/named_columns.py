"""Columns that a user names for the parts of a sample, such as `prompt=frage,response=antwort`, and the
dataset_info.json entry that they make."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from validator.errors import RecipeError
from validator.rows.converter import Row
from validator.rows.dataset_attr import SAMPLE_PARTS, DatasetAttr
from validator.rows.entry_inference import InferredEntry, conversation_form
from validator.rows.outcomes import count_trained, first_fatal_row, why_none_trained

# A comma or an equals sign within a column's name separates nothing.
_SEPARATOR = re.compile(rf",\s*(?=(?:{'|'.join(SAMPLE_PARTS)})=)")


def parse_columns(text: str) -> dict[str, str]:
    """Return the column of each part that a text such as `prompt=frage,response=antwort` names. Raises RecipeError if
    it names an unknown part, no column for a part, or a part twice."""
    columns: dict[str, str] = {}
    for pair in _SEPARATOR.split(text.strip()):
        part, _, column = pair.partition("=")
        if part not in SAMPLE_PARTS or not column:
            found = f"`{pair}` names no column for a part of a sample ({', '.join(SAMPLE_PARTS)})"
            raise RecipeError(f"{found}; write such as prompt=frage,response=antwort")
        if part in columns:
            raise RecipeError(f"`{part}` has two columns, `{columns[part]}` and `{column}`; name one")
        columns[part] = column
    return columns


def format_columns(columns: Mapping[str, str]) -> str:
    """Return the text that names these columns, which `parse_columns` reads."""
    return ",".join(f"{part}={column}" for part, column in columns.items())


def entry_of_columns(columns: Mapping[str, str], rows: Sequence[Row]) -> InferredEntry:
    """Return the dataset_info.json entry with these columns and no others. Raises RecipeError if the rows lack one of
    the columns, or if LLaMA-Factory would train on none of the rows."""
    present = [*dict.fromkeys(name for row in rows for name in row)]
    if absent := [name for name in columns.values() if name not in present]:
        raise RecipeError(f"no column `{'`, `'.join(absent)}`; there are {', '.join(map(str, present[:12]))}")
    entry: dict[str, Any] = {"columns": dict(columns)}
    if "messages" in columns:
        form_of_turns = conversation_form(rows, columns["messages"])
        entry = {"formatting": form_of_turns["formatting"], **entry, "tags": form_of_turns["tags"]}
    if "chosen" in columns:
        entry["ranking"] = True
    form = form_of_entry(entry)
    if not count_trained(form.attr, form.stage, rows):
        ended = first_fatal_row(form.attr, form.stage, rows)
        why = why_none_trained(form.attr, form.stage, rows) or ended or "no row is trained"
        raise RecipeError(f"with columns {format_columns(columns)}: {why}")
    return form


def form_of_entry(entry: Mapping[str, Any]) -> InferredEntry:
    """Return an entry with the training stage that suits its columns, without the key that names the file."""
    attr = DatasetAttr.from_entry(entry)
    stage = "dpo" if attr.ranking else "kto" if attr.columns.get("kto_tag") else "sft"
    if stage == "sft" and attr.formatting == "alpaca" and not attr.columns.get("response"):
        stage = "pt"
    return InferredEntry({key: value for key, value in entry.items() if key != "file_name"}, stage)
