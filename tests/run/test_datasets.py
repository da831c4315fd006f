"""Registries and row counts, on files as people have them."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest
from support.count_calls import calls

from validator.recipe.recipe_file import parse_recipe
from validator.run import dataset_registry
from validator.run.dataset_registry import Dataset
from validator.run.settings import resolve

ROW = {"instruction": "Say hi.", "input": "", "output": "hi"}
LINE = json.dumps(ROW) + "\n"


@pytest.mark.parametrize(
    ("name", "text", "rows", "columns"),
    [
        ("list.json", json.dumps([ROW, ROW]), 2, set(ROW)),
        ("spread.json", json.dumps([{"a": 1}, {"b": 2}], indent=2), 2, {"a", "b"}),
        ("lines.jsonl", LINE * 3, 3, set(ROW)),
        ("blank-lines.jsonl", LINE + "\n\n" + LINE, 2, set(ROW)),
        ("lines-in.json", LINE * 3, 3, set(ROW)),
        ("one-object.json", json.dumps(ROW, indent=2), 1, set(ROW)),
        ("bom.jsonl", "\ufeff" + LINE, 1, set(ROW)),
        ("separator.jsonl", '{"a": "x\u2028y"}\n', 1, {"a"}),
        ("quoted.csv", 'a,b\n1,"two\nlines"\n3,4\n', 2, {"a", "b"}),
        ("old-mac.csv", "a,b\r1,2\r3,4\r", 2, {"a", "b"}),
        ("wide.csv", "a,b\n1," + "x" * 200_000 + "\n", 1, {"a", "b"}),
        ("text.txt", "one\n\ntwo\n", 3, {"text"}),
        ("digits.jsonl", '{"a": 1}\n{"a": ' + "9" * 5000 + "}\n", 2, {"a"}),
    ],
)
def test_rows_and_columns(tmp_path: Path, name: str, text: str, rows: int, columns: Set[str]) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    found = dataset_registry.count_rows(path)
    assert found is not None
    assert (found.number, found.exact, found.columns, found.problem) == (rows, True, columns, None)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("half.json", b'[{"a": 1},', "the list is not closed"),
        ("half.jsonl", b'{"a": 1}\n{"a"\n', "ends in the middle"),
        ("numbers.json", b"[1, 2]", "is no JSON object"),
        ("digits.json", b'[{"a": ' + b"9" * 5000 + b"}]", "which is too large"),
        ("twice.jsonl", b'{"a": 1, "a": 2}\n', "has the key `a` twice"),
        ("deep.json", b'[{"a": ' + b"[" * 200 + b"]" * 200 + b"}]", "is nested deeper than 63 levels"),
        ("latin.json", b'[{"a": "\xe9"}]', "not UTF-8"),
        ("bom.json", b'\xef\xbb\xbf[{"a": 1}]', "byte order mark"),
    ],
)
def test_unreadable_files_say_why(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    found = dataset_registry.count_rows(tmp_path / name)
    assert found is not None
    assert found.problem is not None
    assert said in found.problem


def test_an_empty_file_holds_no_row(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    assert dataset_registry.count_rows(tmp_path / "none.jsonl") == dataset_registry.Rows(0)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rows.parquet", b"PAR1"),
        ("rows.arrow", b"ARROW1"),
        # Without the time of its making, by which each worker of xdist would collect another test.
        ("packed.jsonl", gzip.compress(LINE.encode(), mtime=0)),
        ("packed.csv", bz2.compress(b"a,b\n1,2\n")),
    ],
)
def test_binary_formats_are_not_counted(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert dataset_registry.count_rows(tmp_path / name) is None


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_a_large_file_is_estimated_at_once(tmp_path: Path, suffix: str) -> None:
    rows = 200_000
    path = tmp_path / f"large.{suffix}"
    path.write_text(LINE * rows if suffix == "jsonl" else "[" + ",\n".join([LINE.strip()] * rows) + "]")
    assert calls(lambda: dataset_registry.count_rows(path)) < rows / 2
    found = dataset_registry.count_rows(path)
    assert found is not None
    assert not found.exact
    assert str(found).startswith("about ")
    assert found.number == pytest.approx(rows, rel=0.02)


@pytest.mark.parametrize(
    ("entry", "source"),
    [
        ({"file_name": "a.json"}, "file"),
        ({"file_name": "a.json", "hf_hub_url": "org/name"}, "hub"),
        ({"ms_hub_url": "org/name"}, "hub"),
        ({"script_url": "script"}, "script"),
        ({"cloud_file_name": "s3://bucket/a.json"}, "cloud"),
        ({"columns": {}}, None),
    ],
)
def test_source(entry: dict[str, Any], source: str | None) -> None:
    assert Dataset("mine", entry, Path()).source == source


def test_columns_replace_all_defaults() -> None:
    assert Dataset("mine", {"columns": {"prompt": "p"}}, Path()).attr.columns.get("response") is None
    assert Dataset("mine", {}, Path()).attr.columns["response"] == "output"


def test_a_folder_counts_all_files_and_num_samples_overrides(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / "set" / name).write_text(LINE * 4)
    whole = Dataset("mine", {"file_name": "set"}, tmp_path)
    assert whole.rows is not None
    assert (len(whole.files), whole.rows.number, whole.rows.columns) == (2, 8, frozenset(ROW))
    drawn = Dataset("mine", {"file_name": "set", "num_samples": 20}, tmp_path)
    assert drawn.rows == dataset_registry.Rows(20, columns=frozenset(ROW), head=(ROW,) * 8)
    assert Dataset("mine", {"file_name": "set", "split": "train[:2]"}, tmp_path).rows is None


@pytest.mark.parametrize("text", ["[]", "{", ""])
def test_a_broken_registry_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset_info.json").write_text(text)
    assert dataset_registry.read_registry(tmp_path / "dataset_info.json").problem


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ("dataset: tiny_demo", ["tiny_demo"]),
        ("dataset: tiny_demo, alpaca_gpt4_en,tiny_demo", ["tiny_demo", "alpaca_gpt4_en"]),
        ("dataset: [tiny_demo]", ["tiny_demo"]),
        ("dataset: unknown", []),
        ("dataset: tiny_demo\ndataset_dir: ONLINE", []),
        ('dataset: mine\ndataset_dir: {mine: {file_name: "a.json"}}', ["mine"]),
    ],
)
def test_a_recipe_finds_its_data_sets(recipe: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert [found.name for found in resolve(parse_recipe("-", recipe)).data.datasets] == names
