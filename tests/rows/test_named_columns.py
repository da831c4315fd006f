"""Columns that a user names: how they are written, and the entry and stage that they make."""

from __future__ import annotations

from typing import Any

import pytest

from validator.errors import RecipeError
from validator.rows.csv_rows import separator_fault
from validator.rows.named_columns import entry_of_columns, format_columns, parse_columns

TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("prompt=frage,response=antwort", {"prompt": "frage", "response": "antwort"}),
        ("prompt=frage, response=antwort", {"prompt": "frage", "response": "antwort"}),
        ("prompt=Frage, kurz,response=a=b", {"prompt": "Frage, kurz", "response": "a=b"}),
        ("prompt=问题,response=my answer", {"prompt": "问题", "response": "my answer"}),
        ("messages=chat", {"messages": "chat"}),
    ],
)
def test_a_text_names_columns(text: str, columns: dict[str, str]) -> None:
    assert parse_columns(text) == columns
    assert parse_columns(format_columns(columns)) == columns


@pytest.mark.parametrize("text", ["", "frage", "frage=prompt", "prompt=", "prompt=a,prompt=b", "question=a"])
def test_what_names_no_column_is_refused(text: str) -> None:
    with pytest.raises(RecipeError):
        parse_columns(text)


@pytest.mark.parametrize(
    ("columns", "row", "entry", "stage"),
    [
        ({"prompt": "x", "response": "y"}, {"x": "q", "y": "a", "z": "c"}, {}, "sft"),
        ({"prompt": "x", "query": "z", "response": "y"}, {"x": "q", "y": "a", "z": "c"}, {}, "sft"),
        ({"prompt": "x"}, {"x": "some text"}, {}, "pt"),
        ({"prompt": "x", "chosen": "y", "rejected": "z"}, {"x": "q", "y": "a", "z": "c"}, {"ranking": True}, "dpo"),
        ({"prompt": "x", "response": "y", "kto_tag": "good"}, {"x": "q", "y": "a", "good": True}, {}, "kto"),
        (
            {"messages": "chat"},
            {"chat": TALK, "messages": "other"},
            {"formatting": "sharegpt", "tags": {"role_tag": "role", "content_tag": "content"}},
            "sft",
        ),
    ],
)
def test_named_columns_make_an_entry(
    columns: dict[str, str], row: dict[str, Any], entry: dict[str, Any], stage: str
) -> None:
    form = entry_of_columns(columns, [row] * 3)
    tags = {key: form.entry.get("tags", {}).get(key) for key in entry.get("tags", {})}
    assert ({**form.entry, "tags": tags}, form.stage) == ({"columns": columns, "tags": {}, **entry}, stage)


@pytest.mark.parametrize(
    ("columns", "row", "said"),
    [
        ({"prompt": "x", "response": "gone"}, {"x": "q", "y": "a"}, "no column `gone`; there are x, y"),
        ({"prompt": "x", "response": "y"}, {"x": "q", "y": 7}, "with columns prompt=x,response=y: "),
        ({"messages": "x"}, {"x": "q"}, "with columns messages=x: "),
    ],
)
def test_columns_with_which_nothing_is_trained_are_refused(
    columns: dict[str, str], row: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said.replace("(", "[(]")):
        entry_of_columns(columns, [row] * 3)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["frage;antwort;quelle"], "semicolons"), (["Frage", " kurz;antwort;quelle"], "semicolons"),
        (["a\tb"], "tabs"), (["a|b|c"], "bars"), (["a", "b"], ""), (["text"], ""), (["a; b", "c"], ""), ([], ""),
    ],
)  # fmt: skip
def test_other_separators_are_told(names: list[str], words: str) -> None:
    assert words in separator_fault(names)
    assert bool(separator_fault(names)) is bool(words)
