"""Data that nobody means to have: what LLaMA-Factory refuses, and what it takes after all."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.small_sets import GOOD, OPENAI, TALK, Case, Rows, alpaca, one

ROWS = alpaca(4)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
LIST = json.dumps(ROWS)
DEEP = f'"deep": {"[" * 3000}{"]" * 3000}'
PT = {"stage": "pt", "packing": False}
HEAD = "instruction,input,output\n"
LONG = "x y z " * 2000  # a thousand of it are more than is read at once


def row(**more: Any) -> dict[str, Any]:
    return {**ROWS[0], **more}


def folder(**files: Any) -> Case:
    """A data set of several files."""
    return Case({f"d/{name.replace('_', '.')}": held for name, held in files.items()}, {"mine": {"file_name": "d"}})


def entry(settings: Any, rows: Rows = ROWS) -> Case:
    """An odd entry of dataset_info.json for a good file."""
    return Case({"a.json": rows}, {"mine": settings})


def talk(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": value} for role, value in turns]}


def parquet(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def arrow_file(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


WORDS = pa.table({"instruction": pa.array(["a", "b", "a"]).dictionary_encode(), "input": ["", "", ""],
                  "output": pa.array(["x", "y", "x"], pa.large_string())})  # fmt: skip
NESTED = pa.Table.from_pylist([{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                                "meta": {"x": [1, 2], "y": {"z": None}}}])  # fmt: skip

CASES = {
    "packed-json": one("a.json", gzip.compress(LIST.encode())),
    "packed-csv": one("a.csv", gzip.compress(f"{HEAD}a,b,c\n".encode())),
    "packed-txt": one("a.txt", gzip.compress(b"abc def\nghi\n"), PT, columns={"prompt": "text"}),
    "utf-16-lines": one("a.jsonl", LINES.encode("utf-16")),
    "utf-16-without-mark": one("a.jsonl", LINES.encode("utf-16-le")),
    "half-a-pair-in-lines": one("a.jsonl", LINES + LINES[:40].replace("Count", "\\ud800") + LINES[40:80]),
    "half-a-pair-in-a-list": one("a.json", '[{"instruction": "x \\ud800 y", "input": "", "output": "z"}]'),
    "not-a-number": one("a.jsonl", LINES.replace('"output"', '"score": NaN, "output"')),
    "infinity": one("a.jsonl", LINES.replace('"output"', '"score": -Infinity, "output"')),
    "thirty-digits": one("a.jsonl", LINES.replace('"output"', '"id": 123456789012345678901234567890, "output"')),
    "whole-and-other-numbers": one("a.jsonl", [row(score=1), row(score=1.5)]),
    "deep-in-lines": one("a.jsonl", f"{LINES}{LINES.splitlines()[0][:-1]}, {DEEP}}}\n"),
    "deep-in-a-list": one("a.json", f"[{LINES.splitlines()[0][:-1]}, {DEEP}}}]"),
    "a-key-twice-in-lines": one("a.jsonl", LINES + '{"instruction": "x", "instruction": "y", "output": "z"}\n'),
    "a-key-twice-in-a-list": one("a.json", '[{"instruction": "x", "instruction": "y", "input": "", "output": "z"}]'),
    "zero-bytes": one("a.jsonl", LINES.replace("Count", "Co\x00unt")),
    "zero-characters": one("a.jsonl", LINES.replace("Count", "Co\\u0000unt")),
    "nothing-but-zeros": one("a.jsonl", b"\x00" * 500),
    "a-tab-in-a-text": one("a.jsonl", LINES.replace("Count", "Co\tunt")),
    "single-quotes": one("a.jsonl", LINES.replace('"', "'")),
    "a-comment": one("a.json", f"// rows\n{LIST}"),
    "crlf": one("a.jsonl", LINES.replace("\n", "\r\n")),
    "cr": one("a.jsonl", LINES.replace("\n", "\r")),
    "line-separators": one("a.jsonl", [row(output="a\u2028b\u0085c")]),
    "a-row-without-keys": one("a.jsonl", LINES + "{}\n"),
    "rows-without-keys": one("a.json", "[{}]"),
    "list-of-lists": one("a.json", '[["a", "b"], ["c", "d"]]'),
    "a-text": one("a.json", '"hello"'),
    "more-behind-a-list": one("a.json", f"{LIST} x"),
    "lines-behind-a-list": one("a.json", f"{LIST}\n{LINES}"),
    "a-list-on-each-line": one("a.jsonl", f"{LIST}\n{LIST}\n"),
    "an-object-over-lines": one("a.json", f'{{"data": [{LINES.splitlines()[0]}\n]}}'),
    "a-long-list": one("a.json", [row(input=LONG)] * 200),
    "a-list-of-a-late-column": one("a.json", [*([row(input=LONG)] * 1000), row(note="x")]),
    "a-late-column": one("a.jsonl", [*([row(input=LONG)] * 1000), row(note="x")]),
    "a-late-value": one("a.jsonl", [*([row(input=LONG, note=None)] * 1000), row(note="x")]),
    "a-column-that-ends": one("a.jsonl", [*([row(input=LONG, note="x")] * 1000), row()]),
    "a-column-in-between": one("a.jsonl", [*([row()] * 100), row(note="x")]),
    "other-files-beside": folder(a_json=ROWS, README_md="x"),
    "a-hidden-file-beside": folder(a_json=ROWS, _DS_Store="x"),
    "json-and-jsonl": folder(a_json=ROWS, b_jsonl=ROWS),
    "a-folder-in-the-folder": Case({"d/a.json": ROWS, "d/e/b.json": ROWS}, {"mine": {"file_name": "d"}}),
    "an-empty-file-beside": folder(a_jsonl=ROWS, b_jsonl=""),
    "other-columns-beside": folder(a_json=ROWS, b_json=[{"x": "1"}]),
    "a-value-only-in-one-file": folder(a_json=[row(note=None)], b_json=[row(note="x")]),
    "a-column-only-in-one-file": folder(a_json=[row(note="x")], b_json=ROWS),
    "a-windows-path": Case({"d/a.json": ROWS}, {"mine": {"file_name": "d\\a.json"}}),
    "capitals": one("a.JSON", LIST),
    "no-suffix": one("data", LIST),
    "entry-null": entry(None),
    "entry-text": entry("a.json"),
    "entry-columns-list": entry({"file_name": "a.json", "columns": ["instruction"]}),
    "entry-columns-null": entry({"file_name": "a.json", "columns": None}),
    "entry-columns-empty": entry({"file_name": "a.json", "columns": {}}),
    "entry-tags-null": entry({"file_name": "a.json", "formatting": "sharegpt", "tags": None}, GOOD),
    "entry-tags-empty": entry({"file_name": "a.json", "formatting": "sharegpt", "tags": {}}, GOOD),
    "entry-formatting-capital": entry({"file_name": "a.json", "formatting": "Alpaca"}),
    "entry-file-name-number": entry({"file_name": 5}),
    "entry-num-samples-text": entry({"file_name": "a.json", "num_samples": "3"}),
    "entry-num-samples-zero": entry({"file_name": "a.json", "num_samples": 0}),
    "entry-other-split": entry({"file_name": "a.json", "split": "test"}),
    "parquet-nested": one("a.parquet", parquet(NESTED), formatting="sharegpt", tags=OPENAI,
                          columns={"messages": "messages"}),
    "parquet-numbers": one("a.parquet", [row(instruction=1)]),
    "parquet-bytes": one("a.parquet", [{"instruction": b"a", "input": b"", "output": b"x"}]),
    "parquet-without-rows": one("a.parquet", parquet(WORDS.slice(0, 0))),
    "parquet-cut": one("a.parquet", parquet(WORDS)[:-20]),
    "parquet-words": one("a.parquet", parquet(WORDS)),
    "parquet-named-json": one("a.json", parquet(WORDS)),
    "arrow-file": one("a.arrow", arrow_file(pa.Table.from_pylist(ROWS))),
    "csv-lines-in-quotes": one("a.csv", f'{HEAD}"a\nb",,"c, d\n\ne"\nx,y,"he said ""hi"""\n'),
    "csv-semicolons": one("a.csv", f"{HEAD}a,b,c\n".replace(",", ";")),
    "csv-open-quote": one("a.csv", f'{HEAD}"a,b,c\nx,y,z\n'),
    "csv-lone-quote": one("a.csv", f'{HEAD}a 5" pipe,b,c\n'),
    "csv-header-alone": one("a.csv", HEAD),
    "csv-short-rows": one("a.csv", f"{HEAD}a\nb,c\nd,e,f\n"),
    "csv-more-values-than-names": one("a.csv", f"{HEAD}a,b,c,d\ne,f,g\nh,i,j,k\nl\n"),
    "csv-a-name-twice": one("a.csv", "instruction,input,output,output\na,b,c,d\n"),
    "csv-spaces-before-names": one("a.csv", "instruction, input, output\na,b,c\n"),
    "csv-latin-1": one("a.csv", f"{HEAD}a,b,\xe9\n".encode("latin-1")),
    "csv-missing-values": one("a.csv", f"{HEAD}a,,NA\nb,,None\nc,,x\n"),
    "csv-named-json": one("a.json", f"{HEAD}a,b,c\n"),
    "txt-line-ends": one("a.txt", "a\u2028b\x0bc\x0cd\x1ce\u0085f\rg\n\n\r\nh\r\n\x00i".encode(), PT,
                         columns={"prompt": "text"}),
    "txt-latin-1": one("a.txt", b"caf\xe9\n", PT, columns={"prompt": "text"}),
    "txt-in-sft": one("a.txt", "abc\n"),
    "a-huge-row": one("a.jsonl", [*ROWS, row(output="x y " * 300_000)]),
    "a-list-as-answer": one("a.jsonl", [row(output=["a"])]),
    "a-list-as-question": one("a.jsonl", [row(instruction=["a"])]),
    "a-text-as-conversation": one("a.jsonl", [{"conversations": "hi"}], formatting="sharegpt"),
    "no-turn": one("a.json", [*GOOD, {"conversations": []}], formatting="sharegpt"),
    "numbers-as-turns": one("a.json", [talk(("human", 1), ("gpt", 2))], formatting="sharegpt"),
    "a-late-system-turn": one("a.json", [talk(("human", "a"), ("system", "s"), ("gpt", "b")), *GOOD],
                              formatting="sharegpt", columns=TALK),
}  # fmt: skip
