"""What becomes of rows under an entry of dataset_info.json, and why none of them would be trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from validator.samples.conversion import Sample, StopsRunError, converter
from validator.samples.fate import KEPT, REASONS, fate
from validator.samples.form import Form, form

Row = Mapping[str, Any]
Entry = Mapping[str, Any]


def trained(entry: Entry, stage: str, rows: Sequence[Row]) -> int:
    """How many of the rows LLaMA-Factory trains on."""
    meant = form(entry)
    return 0 if lacking(meant, rows) else sum(not (why or stops) for why, stops in map(judge(meant, stage), rows))


def reason(entry: Entry, stage: str, rows: Sequence[Row]) -> str:
    """Why LLaMA-Factory trains on none of the rows; empty where it does on one, and where there is none."""
    meant = form(entry)
    if why := lacking(meant, rows):
        return why
    first = ""
    for why, stops in map(judge(meant, stage), rows):
        if not (why or stops):
            return ""
        first = first or why or stops
    return _unnamed(meant, rows) or first


def lacking(meant: Form, rows: Sequence[Row]) -> str:
    """What no row holds though it is looked up in each: a KeyError. Empty where all is there."""
    names = dict.fromkeys(name for row in rows for name in row)
    absent = [name for name in dict.fromkeys(meant.looked_up()) if name and name not in names]
    if absent and rows:
        return f"the rows have no `{'`, `'.join(absent)}` (they have {', '.join([*names][:8])})"
    keys = dict.fromkeys(key for turn in turns(meant, rows) for key in turn)
    wanted = [tag for tag in (meant.tags["role_tag"], meant.tags["content_tag"]) if tag and tag not in keys]
    return f"the turns have no `{'`, `'.join(wanted)}` (they have {', '.join(keys)})" if keys and wanted else ""


def turns(meant: Form, rows: Sequence[Row]) -> Iterator[Row]:
    """The turns of all conversations; none of rows of another form."""
    column = meant.columns.get("messages") if meant.formatting != "alpaca" else None
    for row in rows if column else ():
        held = row.get(column or "")
        yield from (turn for turn in held if isinstance(turn, Mapping)) if isinstance(held, list) else ()


def stopping(entry: Entry, stage: str, rows: Sequence[Row]) -> str:
    """The first row that ends the run, and why; empty where there is none."""
    said = ((row, stops) for row, (_, stops) in enumerate(map(judge(form(entry), stage), rows), 1))
    return next((f"row {row} ends the run: {stops}" for row, stops in said if stops), "")


class Verdict(NamedTuple):
    """Why a row is dropped, or why it stops the run; both are empty for one that is trained."""

    dropped: str = ""
    stops: str = ""


def judge(meant: Form, stage: str) -> Callable[[Row], Verdict]:
    """The function that says what becomes of a row."""
    convert: Callable[[Any], Sample] = converter(meant)

    def verdict(row: Row) -> Verdict:
        try:
            sample = convert(row)
            code = fate(sample, stage)
            return Verdict(stops=_unread(sample)) if code == KEPT else Verdict(REASONS[code])
        except StopsRunError as err:
            return Verdict(stops=str(err))
        except (AttributeError, KeyError, TypeError):
            return Verdict(stops="a value is of a kind that LLaMA-Factory cannot convert")

    return verdict


def _unread(sample: Sample) -> str:
    texts = all(isinstance(content, str) for _, content in (*sample.prompt, *sample.answers))
    return "" if texts else "a turn holds something other than text"


def _unnamed(meant: Form, rows: Sequence[Row]) -> str:
    """Roles of the turns that no tag names."""
    tags = [tag for name, tag in meant.tags.items() if name not in ("role_tag", "content_tag")]
    seen = dict.fromkeys(str(turn.get(meant.tags["role_tag"] or "")) for turn in turns(meant, rows))
    unnamed = [role for role in seen if role not in tags]
    known = ", ".join(tag for tag in tags if tag)
    return f"the turns are of `{'`, `'.join(unnamed)}`, and the tags are {known}" if unnamed else ""
