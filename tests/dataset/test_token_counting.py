"""Counting tokens: with the model's own tokenizer where it is here and whole, else by an estimate, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from validator.dataset import token_counting
from validator.run.settings import run_of_values
from validator.run.workspace import Workspace

pytest.importorskip("tokenizers")

WORDS: dict[str, Any] = {
    "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
}  # fmt: skip
# The library cuts the prefix off each second half: here within a letter of two bytes, on which it panics.
PANICS = {"type": "BPE", "vocab": {"a": 0, "\u00e9": 1, "a\u00e9": 2}, "merges": [["a", "\u00e9"]],
          "continuing_subword_prefix": "x"}  # fmt: skip


def counter(folder: Path, text: str | None) -> tuple[token_counting.TokenCounter, str]:
    """Of a model whose tokenizer.json has this text; None: it has none."""
    model = folder / "model"
    model.mkdir()
    if text is not None:
        (model / "tokenizer.json").write_text(text, "utf-8")
    return token_counting.best_counter(
        run_of_values({"model_name_or_path": str(model)}, workspace=Workspace("recipe.yaml", (folder,)))
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "the model's tokenizer.json is not on this machine"),
        ("", "cannot be read: EOF while parsing"),
        ("{}", "cannot be read: "),
        (json.dumps({**WORDS, "model": PANICS}), "cannot be read: `é` is shorter than what is to be cut off"),
        (json.dumps({**WORDS, "model": {**PANICS, "continuing_subword_prefix": "long"}}), "`é` is shorter than what"),
        (json.dumps({**WORDS, "model": {**PANICS, "merges": ["a é"]}}), "`é` is shorter than what is to be cut off"),
        (json.dumps({**WORDS, "model": {**PANICS, "merges": [7]}}), "cannot be read: "),
    ],
)
def test_no_tokenizer(text: str | None, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    by, why = counter(tmp_path, text)
    assert reason in why
    assert not by.exact
    assert capfd.readouterr() == ("", "")


def test_a_prefix_that_can_be_cut_off(tmp_path: Path) -> None:
    pairs = {
        **PANICS,
        "vocab": {"a": 0, "##b": 1, "ab": 2},
        "merges": [["a", "##b"]],
        "continuing_subword_prefix": "##",
    }
    assert counter(tmp_path, json.dumps({**WORDS, "model": pairs}))[1] == ""


def test_a_tokenizer_counts(tmp_path: Path) -> None:
    by, why = counter(tmp_path, json.dumps(WORDS))
    assert why == ""
    assert by.exact
    assert by.count(["a b a", "", "c\ud800"]) == [3, 0, 1]
    assert by.count(["a " * 600_000])[0] > 100_000
