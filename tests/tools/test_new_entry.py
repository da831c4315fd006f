"""tools/new_entry.py: what an entry lacks is said key by key, with what to write."""

from __future__ import annotations

from pathlib import Path

import new_entry
import pytest

from validator.errors import RecipeError
from validator.knowledge import tables

WHOLE = """
tiny-new:
  hub: [neworg/Tiny-New]
  modelscope: []
  short: null
  template: qwen3
  base: []
  licence: apache-2.0
  released: 2026-11
  parameters: 1000
  dtype: bfloat16
  config: {model_type: qwen3}
  source: https://huggingface.co/neworg/Tiny-New/blob/main/config.json
"""


def table(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> tables.YamlTable:
    """Return a table of the package with another text."""
    (folder / f"{name}.yaml").write_text(text, "utf-8")
    monkeypatch.setattr(tables, "DATA_FOLDER", folder)
    return tables.YamlTable(name)


def test_an_entry_without_its_keys_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(tmp_path, "models", "tiny:\n  hub: [a/b]\n  config: {}\n", monkeypatch)
    with pytest.raises(RecipeError, match=r"models\.yaml: `tiny` lacks `modelscope`, `short`, .*`source`; the head of"):
        made["tiny"]


def test_a_whole_entry_lacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(tmp_path, "models", WHOLE, monkeypatch)["tiny-new"]["released"] == "2026-11"


def test_the_entries_that_there_are_have_no_faults() -> None:
    assert list(new_entry.faults()) == []


def test_another_count_of_parameters_is_said_with_the_one_of_the_shapes() -> None:
    (said,) = new_entry.miscounted("qwen3-8b", 8_000_000_000)
    assert "`parameters: 8000000000`, but its config counts 8190735360; write `parameters: 8190735360`" in said
    assert list(new_entry.miscounted("qwen3-8b", 8_190_735_360)) == []
