"""One entry of dataset_info.json with LLaMA-Factory's defaults filled in (data/parser.py): the columns and tags of a
data set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Entry = Mapping[str, Any]


_TEXT_COLUMNS = (
    "prompt",
    "query",
    "response",
    "history",
    "messages",
    "system",
    "tools",
    "chosen",
    "rejected",
    "kto_tag",
)
_MEDIA_COLUMNS = ("images", "videos", "audios")
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
    """Names of columns and tags (data/parser.py). None: LLaMA-Factory looks for no such column."""

    formatting: str
    ranking: bool
    columns: Mapping[str, str | None]
    tags: Mapping[str, str | None]

    @cached_property
    def special(self) -> bool:
        """Whether rows have two answers."""
        return self.ranking or bool(self.columns.get("kto_tag"))

    def looked_up(self) -> Iterator[str | None]:
        """Columns without which every row fails with a KeyError; None where the entry leaves a needed one out."""
        parts = ["messages"] if self.formatting != "alpaca" else []
        optional = ["system", "tools", *_MEDIA_COLUMNS, "kto_tag"]
        optional += ["prompt", "query", "history"] if self.formatting == "alpaca" else []
        if self.ranking:
            parts += ["chosen", "rejected"]
        elif self.formatting == "alpaca":
            optional.append("response")
        if self.formatting == "openai":  # read with a default there (data/converter.py)
            optional = [part for part in optional if part not in ("system", "tools")]
        yield from (self.columns.get(part) for part in parts)
        yield from (self.columns[part] for part in optional if self.columns.get(part))


def parse_dataset_attr(entry: Mapping[str, object]) -> DatasetAttr:
    """The form of an entry. Once `columns` or `tags` is there, what it leaves out is None."""
    columns, tags = entry.get("columns"), entry.get("tags")
    return DatasetAttr(
        str(entry.get("formatting", "alpaca")),
        bool(entry.get("ranking", False)),
        _text_names(columns, (*_TEXT_COLUMNS, *_MEDIA_COLUMNS)) if isinstance(columns, Mapping) else _DEFAULT_COLUMNS,
        _text_names(tags, _DEFAULT_TAGS) if isinstance(tags, Mapping) else _DEFAULT_TAGS,
    )


def _text_names(given: Mapping[str, object], parts: Iterable[str]) -> Mapping[str, str | None]:
    """What is named for each part; nothing where that is no text, which rule PTH118 tells."""
    return {part: name if isinstance(name := given.get(part), str) else None for part in parts}


def entry_as_json(name: str, entry: Entry) -> str:
    """A member of dataset_info.json as text."""
    return f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}"
