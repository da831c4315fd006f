"""Outcomes of the rows of a data set under their dataset_info.json entry: LLaMA-Factory trains on a row, drops it, or
stops. Also why no row would be trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from validator.rows.converter import FatalRowError, Row, Sample, row_converter
from validator.rows.dataset_attr import DatasetAttr

TRAINED = 0
NON_TEXT_TURN = "a turn holds something other than text"  # it ends the run
# What each code means. LLaMA-Factory's processors (data/processor/*.py) log a row that they drop, and go on.
STATUS_REASONS = (
    "trained",
    "no answer: null, missing, or not text",
    "turns out of order, or not in pairs",
    "an incomplete pair: chosen or rejected is not text",
    "no label: neither true nor false",
    "two answers, which only dpo, rm and kto use",
    "every answer of the column reads as a date, and dates are no text",
    "the run stops",
)
NO_ANSWER, TURN_ORDER, INCOMPLETE_PAIR, NO_LABEL, TWO_ANSWERS, DATE_ANSWER, ENDS_RUN = range(1, 8)


def row_status(sample: Sample, stage: str) -> int:
    """Return the code of what LLaMA-Factory does with a sample in a training stage. TRAINED means that it trains on the
    sample; any other code is an index of STATUS_REASONS, why it drops the sample. Raises FatalRowError if LLaMA-Factory
    stops at the sample."""
    if stage == "pt":
        if not sample.prompt:
            raise FatalRowError("no turn; pre-training reads the first one")
        return TRAINED
    if sample.broken or len(sample.prompt) % 2 != 1:
        return TURN_ORDER
    if stage in ("dpo", "rm", "kto"):
        return TRAINED if len(sample.answers) >= 2 else NO_LABEL if stage == "kto" else INCOMPLETE_PAIR
    if stage == "sft" and len(sample.answers) != 1:
        return TWO_ANSWERS if sample.answers else NO_ANSWER
    return TRAINED


class RowOutcome(NamedTuple):
    """What LLaMA-Factory does with a row. `sample`: the converted row if LLaMA-Factory trains on it; else None.
    `dropped`: why the row is dropped, `stops`: why the run ends at the row, as text for a message; else empty."""

    sample: Sample | None = None
    dropped: str = ""
    stops: str = ""


def row_checker(attr: DatasetAttr, stage: str) -> Callable[[Row], RowOutcome]:
    """Return a function that takes a row and returns whether LLaMA-Factory trains on it, drops it, or stops at it.
    `attr`: the columns and tags of the data set. `stage`: the training stage."""
    convert = row_converter(attr)

    def check(row: Row) -> RowOutcome:
        try:
            sample = convert(row)
            code = row_status(sample, stage)
        except FatalRowError as err:
            return RowOutcome(stops=str(err))
        except (AttributeError, KeyError, TypeError):
            return RowOutcome(stops="a value is of a kind that LLaMA-Factory cannot convert")
        if code != TRAINED:
            return RowOutcome(dropped=STATUS_REASONS[code])
        if not all(isinstance(content, str) for _, content in (*sample.prompt, *sample.answers)):
            return RowOutcome(stops=NON_TEXT_TURN)
        return RowOutcome(sample)

    return check


def tools_fault(tools: Any) -> str:
    """Return why LLaMA-Factory stops at a row's description of tools, as text for a message; an empty string if it does
    not. Source: llamafactory/data/formatter.py, ToolFormatter.apply, which every template has."""
    if not tools:
        return ""
    if not isinstance(tools, str):
        return "the description of tools is not text; write it as JSON text"
    try:
        value = json.loads(tools)
    except (ValueError, RecursionError):
        found = "is not JSON text" if tools.strip() else 'is blank text; write "" for none'
        return f"the description of tools {found}"
    return "" if isinstance(value, (list, dict, str)) else "the description of tools is not a JSON list"


def count_trained(attr: DatasetAttr, stage: str, rows: Sequence[Row]) -> int:
    """Return how many of the rows LLaMA-Factory trains on."""
    check = row_checker(attr, stage)
    return 0 if missing_columns(attr, rows) else sum(check(row).sample is not None for row in rows)


def first_fatal_row(attr: DatasetAttr, stage: str, rows: Sequence[Row]) -> str:
    """Return the number of the first row at which LLaMA-Factory stops, and the reason, as text for a message; an empty
    string if it stops at no row."""
    check = row_checker(attr, stage)
    for number, outcome in enumerate(map(check, rows), 1):
        tools = outcome.sample.tools if outcome.sample and stage != "pt" else ""
        if stops := outcome.stops or tools_fault(tools):
            return f"row {number} ends the run: {stops}"
    return ""


def why_none_trained(attr: DatasetAttr, stage: str, rows: Sequence[Row]) -> str:
    """Return why LLaMA-Factory trains on none of the rows, as text for a message. An empty string if it trains on at
    least one row, or if there are no rows."""
    if why := missing_columns(attr, rows):
        return why
    first: RowOutcome | None = None
    for outcome in map(row_checker(attr, stage), rows):
        if outcome.sample:
            return ""
        first = first or outcome
    if first is None:
        return ""
    tags = [tag for name, tag in attr.tags.items() if name not in ("role_tag", "content_tag")]
    roles = dict.fromkeys(str(turn.get(attr.tags["role_tag"])) for turn in conversation_turns(attr, rows))
    if unnamed := [role for role in roles if role not in tags]:
        return f"the turns have the roles `{'`, `'.join(unnamed)}`, and the tags name {', '.join(filter(None, tags))}"
    return first.dropped or first.stops


def missing_columns(attr: DatasetAttr, rows: Sequence[Row]) -> str:
    """Return, as text for a message, the columns or turn keys that LLaMA-Factory needs and no row has, so that the run
    ends with a KeyError. An empty string if none is missing."""
    names = dict.fromkeys(name for row in rows for name in row)
    absent = [name for name in dict.fromkeys(attr.required_columns()) if name and name not in names]
    if absent and rows:
        return f"the rows have no `{'`, `'.join(absent)}` (they have {', '.join([*names][:8])})"
    keys = dict.fromkeys(key for turn in conversation_turns(attr, rows) for key in turn)
    missing_tags = [tag for tag in (attr.tags["role_tag"], attr.tags["content_tag"]) if tag and tag not in keys]
    return (
        f"the turns have no `{'`, `'.join(missing_tags)}` (they have {', '.join(keys)})"
        if keys and missing_tags
        else ""
    )


def conversation_turns(attr: DatasetAttr, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the turns of all conversations in the rows; nothing for rows of formatting alpaca."""
    column = attr.columns.get("messages") if attr.formatting != "alpaca" else None
    for row in rows if column else ():
        turns = row.get(column or "")
        yield from (turn for turn in turns if isinstance(turn, Mapping)) if isinstance(turns, list) else ()
