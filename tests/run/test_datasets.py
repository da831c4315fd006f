"""Registries and row counts, on files as people have them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.count_calls import calls

from validator.recipe.recipe_file import parse_recipe
from validator.run import dataset_registry, row_counts
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
    found = row_counts.count_rows(path)
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
    found = row_counts.count_rows(tmp_path / name)
    assert found is not None
    assert found.problem is not None
    assert said in found.problem


def test_an_empty_file_holds_no_row(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    assert row_counts.count_rows(tmp_path / "none.jsonl") == row_counts.Rows(0)


def _parquet(rows: int, columns: int) -> bytes:
    stream = io.BytesIO()
    names = [f"c{number}" for number in range(columns)]
    table = pa.table({name: [{"turns": [name], "kept": True}] * rows for name in names})
    pq.write_table(table, stream, row_group_size=max(rows // 3, 1))
    return stream.getvalue()


# Without the time of its making, by which each worker of xdist would collect another test.
PACKED = gzip.compress(LINE.encode() * 3, mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "rows"),
    [
        ("packed.jsonl", PACKED, 3),
        ("packed.json", gzip.compress(json.dumps([ROW] * 3).encode(), mtime=0), 3),
        ("packed.csv", bz2.compress(b"a,b\n1,2\n"), 1),
        ("few.parquet", _parquet(5, 1), 5),
        ("many.parquet", _parquet(3000, 40), 3000),
        ("none.parquet", _parquet(0, 2), 0),
    ],
)
def test_packed_files_and_tables_are_counted(tmp_path: Path, name: str, data: bytes, rows: int) -> None:
    (tmp_path / name).write_bytes(data)
    found = row_counts.count_rows(tmp_path / name)
    assert found is not None
    assert (found.number, found.exact, found.problem) == (rows, True, None)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("magic.parquet", b"PAR1", "its end is not that of one"),
        ("cut.parquet", _parquet(5, 1)[:-40], "its end is not that of one"),
        ("footer.parquet", b"PAR1" + b"\xff" * 40 + (40).to_bytes(4, "little") + b"PAR1", "footer is damaged"),
        ("endless.parquet", b"PAR1" + b"\x19\xf1" + b"\xff" * 9 + (11).to_bytes(4, "little") + b"PAR1", "is damaged"),
        ("cut.jsonl", PACKED[:-12], "is a damaged gzip file"),
    ],
)
def test_damaged_files_say_so(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    found = row_counts.count_rows(tmp_path / name)
    assert found is not None
    assert said in (found.problem or "")


@pytest.mark.parametrize(("name", "data"), [("rows.arrow", b"ARROW1"), ("packed.jsonl", b"\x28\xb5\x2f\xfdrows")])
def test_files_that_only_data_can_read_are_not_counted(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert row_counts.count_rows(tmp_path / name) is None


NESTED = {"messages": [{"role": "user", "content": 'a, "b" {c}'}, {"role": "assistant", "content": "]}\n{"}]}
LARGE = 30_000


@pytest.mark.parametrize("row", [ROW, NESTED], ids=["flat", "nested"])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("lines.jsonl", lambda rows: "".join(map("{}\n".format, map(json.dumps, rows)))),
        ("blank-lines.jsonl", lambda rows: "".join(map("{}\n \n".format, map(json.dumps, rows)))),
        ("lines-in.json", lambda rows: "\ufeff" + "\n".join(map(json.dumps, rows))),
        ("one-line.json", json.dumps),
        ("indented.json", lambda rows: json.dumps(rows, indent=2)),
        ("indent-0.json", lambda rows: json.dumps(rows, indent=0)),
        ("a-row-a-line.json", lambda rows: "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]"),
        ("spread.jsonl", lambda rows: "\n".join(json.dumps(row, indent=1) for row in rows)),
    ],
)
def test_a_large_file_is_counted_exactly(
    tmp_path: Path, name: str, write: Callable[[list[Any]], str], row: dict[str, Any]
) -> None:
    text = {**row, "long": "text " * 30}
    path = tmp_path / name
    path.write_text(write([text] * LARGE), "utf-8")
    assert calls(lambda: row_counts.count_rows(path)) < 8 * LARGE
    found = row_counts.count_rows(path)
    assert found is not None
    assert (found.number, found.exact, found.columns, found.problem) == (LARGE, True, None, None)
    assert found.head[0] == text


def test_a_large_csv_with_line_breaks_is_counted_exactly(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text("a,b\n" + '"one\n""two""\n","' + "x, " * 30 + '"\n' + "\n" + ("1,2\n" + '3,"4\n5"\n') * LARGE * 5)
    found = row_counts.count_rows(path)
    assert found is not None
    assert (found.number, found.exact) == (LARGE * 10 + 1, True)
    assert found.head


def test_a_huge_file_is_estimated_and_says_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_counts, "_MAX_LINES_BYTES", 8 << 20)
    path = tmp_path / "huge.jsonl"
    path.write_text("".join(json.dumps({**ROW, "n": "x" * (number % 700)}) + "\n" for number in range(LARGE)))
    found = row_counts.count_rows(path)
    assert found is not None
    assert not found.exact
    assert str(found).startswith("about ")
    assert found.number == pytest.approx(LARGE, rel=0.01)


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("tiny.json", "[" + '{"a":1},' * 600_000 + '{"a":1}]', 600_001),
        ("tiny.jsonl", '{"a":1}\n' * 1_000_000 + "\n" * 500_000, 1_000_000),
        ("tiny.csv", "a,b\n" + "1,2\n" * 3_000_000, 3_000_000),
        ("spread.jsonl", '{"a":\n1}' * 600_000, 600_000),
    ],
)
def test_of_very_many_tiny_rows_a_part_is_counted(tmp_path: Path, name: str, text: str, number: int) -> None:
    (tmp_path / name).write_text(text)
    found = row_counts.count_rows(tmp_path / name)
    assert found is not None
    assert found.number == pytest.approx(number, rel=0.02)
    assert found.exact is (name == "tiny.jsonl")


@pytest.mark.parametrize(
    ("name", "end", "said"),
    [
        ("list.json", ', {"a": 1,}]', "is not valid JSON"),
        ("list.json", ', {"a": 1}', "the list is not closed"),
        ("list.json", '] {"a": 1}', "goes on after the end of its list"),
    ],
)
def test_a_large_list_that_is_broken_at_its_end_says_so(tmp_path: Path, name: str, end: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps([ROW] * LARGE * 2)[:-1] + end)
    found = row_counts.count_rows(path)
    assert found is not None
    assert said in (found.problem or "")


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
    assert drawn.rows == row_counts.Rows(20, columns=frozenset(ROW), head=(ROW,) * 8)
    part = Dataset("mine", {"file_name": "set", "split": "train[1:25%]"}, tmp_path).rows
    assert part == row_counts.Rows(1, columns=frozenset(ROW), head=(ROW,))
    assert Dataset("mine", {"file_name": "set", "split": "test"}, tmp_path).rows is None


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
