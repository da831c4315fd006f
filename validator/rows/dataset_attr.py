"""Entries of dataset_info.json with LLaMA-Factory's defaults filled in (data/parser.py): the columns and tags of a data
set, and what is wrong with an entry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

Entry = Mapping[str, Any]


DataSource = Literal["hub", "script", "cloud", "file"]
# Keys that say where the data are, in the order in which LLaMA-Factory looks for them (data/parser.py).
SOURCE_OF_KEY: dict[str, DataSource] = {
    "hf_hub_url": "hub", "ms_hub_url": "hub", "om_hub_url": "hub", "script_url": "script", "cloud_file_name": "cloud",
    "file_name": "file",
}  # fmt: skip
FORMATTINGS = ("alpaca", "sharegpt", "openai")
# Columns of media, and the name of such input in a template that reads it (data/mm_plugin.py).
MODALITIES = {"images": "image", "videos": "video", "audios": "audio"}
# Parts of a sample for which an entry can name a column.
SAMPLE_PARTS = (
    *("prompt", "query", "response", "history", "messages", "system", "tools", "chosen", "rejected", "kto_tag"),
    *MODALITIES,
)
_DEFAULT_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}
_DEFAULT_COLUMNS = {"prompt": "instruction", "query": "input", "response": "output", "messages": "conversations"}


@dataclass(frozen=True)
class DatasetAttr:
    """The columns and tags of a data set, as its dataset_info.json entry defines them. A column or tag is None if
    LLaMA-Factory does not look for it."""

    formatting: str
    ranking: bool
    columns: Mapping[str, str | None]
    tags: Mapping[str, str | None]

    @classmethod
    def from_entry(cls, entry: Entry) -> DatasetAttr:
        """Return the columns and tags that a dataset_info.json entry defines. The default names count only if the whole
        mapping `columns` or `tags` is missing; a name that the mapping leaves out is None."""
        columns, tags = entry.get("columns"), entry.get("tags")
        return cls(
            str(entry.get("formatting", "alpaca")),
            bool(entry.get("ranking", False)),
            _text_names(columns, SAMPLE_PARTS) if isinstance(columns, Mapping) else _DEFAULT_COLUMNS,
            _text_names(tags, _DEFAULT_TAGS) if isinstance(tags, Mapping) else _DEFAULT_TAGS,
        )

    @cached_property
    def has_two_answers(self) -> bool:
        """True if LLaMA-Factory makes two answers of each row: chosen and rejected for preference data, or the answer
        and an empty one for KTO data."""
        return self.ranking or bool(self.columns.get("kto_tag"))

    @cached_property
    def roles(self) -> Mapping[str | None, str]:
        """LLaMA-Factory's own name of each role (such as assistant), by the name that the data use for it (such as
        gpt)."""
        return {self.tags[f"{name}_tag"]: name for name in ("user", "assistant", "observation", "function", "system")}

    @property
    def has_images(self) -> bool:
        """True if the entry names a column of images or videos."""
        return bool(self.columns.get("images") or self.columns.get("videos"))

    @cached_property
    def has_media(self) -> bool:
        """True if the entry names a column of images, videos or audios."""
        return any(self.columns.get(part) for part in MODALITIES)

    @property
    def columns_read(self) -> dict[str, str]:
        """The columns that LLaMA-Factory reads where they are there, by the part of a sample (data/converter.py)."""
        turns = ("prompt", "query", "response", "history")
        unread = ("messages",) if self.formatting == "alpaca" else turns
        return {part: column for part, column in self.columns.items() if column and part not in unread}

    def required_columns(self) -> Iterator[str | None]:
        """Yield the names of the columns that every row must have, because LLaMA-Factory raises KeyError without them
        (data/converter.py). Yield None in place of a name if the entry names no column for a part of the sample that
        LLaMA-Factory always reads."""
        parts = ["messages"] if self.formatting != "alpaca" else []
        optional = ["system", "tools", *MODALITIES, "kto_tag"]
        optional += ["prompt", "query", "history"] if self.formatting == "alpaca" else []
        if self.ranking:
            parts += ["chosen", "rejected"]
        elif self.formatting == "alpaca":
            optional.append("response")
        if self.formatting == "openai":  # read with a default there
            optional = [part for part in optional if part not in ("system", "tools")]
        yield from (self.columns.get(part) for part in parts)
        yield from (self.columns[part] for part in optional if self.columns.get(part))


def _text_names(names_by_part: Mapping[str, object], parts: Iterable[str]) -> Mapping[str, str | None]:
    """Return the name that a mapping (`columns` or `tags` of an entry) gives to each part in `parts`; None for a part
    whose name is missing or not a string. Rule PTH118 reports a name that is not a string."""
    return {part: name if isinstance(name := names_by_part.get(part), str) else None for part in parts}


def entry_faults(entry: Entry) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each value of a dataset_info.json entry that LLaMA-Factory cannot use: the keys that lead to the value, and
    what is wrong with the value, as text for a message. A column or tag whose value is false counts as left out
    (data/converter.py)."""
    source = next((key for key in SOURCE_OF_KEY if key in entry), None)
    if source and not (isinstance(entry[source], str) and (entry[source] or source == "file_name")):
        yield (source,), f"`{source}` in dataset_info.json must be text, not {json.dumps(entry[source])}"
    for part in ("columns", "tags"):
        inner = entry.get(part, {})
        if not isinstance(inner, Mapping):
            found = f"must be an object, not {json.dumps(inner)}"
            yield (part,), f"`{part}` in dataset_info.json {found}; leave it out for the default"
            continue
        faulty_names = [name for name, value in inner.items() if value and not isinstance(value, str)]
        yield from (((part, name), f"`{name}` in `{part}` of dataset_info.json must be text") for name in faulty_names)
    count = entry.get("num_samples")
    if count is not None and (not isinstance(count, int) or count < 1):
        found = f"must be a whole number above 0, not {json.dumps(count)}"
        yield ("num_samples",), f"`num_samples` in dataset_info.json {found}; remove it for all rows"


def is_same_data(entry: Entry, other: Entry) -> bool:
    """True if LLaMA-Factory makes of both entries the same samples. Of several sources it takes the first, so a
    further address of the same data is no difference."""
    source = next((key for key in SOURCE_OF_KEY if key in entry), None)
    return source is not None and entry[source] == other.get(source) and _samples_made(entry) == _samples_made(other)


def _samples_made(entry: Entry) -> list[Any]:
    """Return what decides which samples LLaMA-Factory makes of the rows that an entry leads to."""
    attr = DatasetAttr.from_entry(entry)
    tags = attr.tags if attr.formatting != "alpaca" else None
    chosen = [entry.get("split", "train"), *map(entry.get, ("subset", "folder", "num_samples"))]
    return [attr.formatting, attr.ranking, attr.columns_read, tags, *chosen]


def entry_as_json(name: str, entry: Entry) -> str:
    """Return an entry as a line of dataset_info.json: its name, a colon and the JSON object."""
    return f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}"
