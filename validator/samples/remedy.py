"""What to write where an entry of dataset_info.json does not suit its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence

from validator.samples.guess import UnknownFormError, guess
from validator.samples.kinds import STAGES
from validator.samples.outcome import Entry, Row

# What rows that look like samples of sft must have beside that for the others.
_ELSE = {
    "dpo": "map the two answers as `chosen` and `rejected`",
    "kto": "map the column of true and false as `kto_tag`",
}
_MEANING = ("formatting", "ranking", "columns", "tags")


def remedy(name: str, entry: Entry, stage: str, rows: Sequence[Row]) -> str:
    """The entry and the stage that suit the rows, as what to do; empty where that is not known, or is there already."""
    try:
        form, suits = guess(rows)
    except UnknownFormError:
        return ""
    right = {**{key: value for key, value in entry.items() if key not in _MEANING}, **form}
    steps = [] if stage in STAGES[suits] else [f"set `stage: {suits}`"]
    steps += [] if right == dict(entry) else [f"write {written(name, right)} in dataset_info.json"]
    other = _ELSE.get("dpo" if stage == "rm" else stage, "") if suits == "sft" else ""
    return " and ".join(steps) + (f", or {other}" if other else "")


def written(name: str, entry: Entry) -> str:
    """A member of dataset_info.json as text."""
    return f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}"
