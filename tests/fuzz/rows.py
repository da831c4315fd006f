"""Data sets in every format, and the tokenizer that their tokens are counted with."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

from support import small_sets

from fuzz import given, odd, trees
from fuzz.damage import damaged
from fuzz.given import ROOT, Input, Words
from fuzz.trees import Pool
from fuzz.written import encoded, text_csv, text_json, text_lines

_NAMED: Sequence[Words] = (
    *(("data", "r.yaml"),) * 4,
    ("data", "--format", "json", "r.yaml"),
    ("data", "--html", "page.html", "r.yaml"),
    ("train", "--dry-run", "--machine", "1xrtx-4090", "r.yaml"),
    ("check", "r.yaml"),
)
_ALONE: Sequence[Words] = (
    ("data",),
    ("data", "--format", "json", "--model", "qwen3-8b"),
    ("data", "--register", "mine"),
)
# It searches for what fits, which takes several times as long.
_PLANNED: Words = ("plan", "--machine", "1xrtx-4090", "--model", "qwen3-8b", "--data")
_MODEL = ("config.json", "tokenizer.json", "tokenizer_config.json")


@cache
def _sets() -> tuple[list[tuple[Any, Any, Mapping[str, Any]]], Pool]:
    """Rows, the entry that describes them and the recipe's keys, of small data sets of every form."""
    cases = [case for case in small_sets.CASES.values() if len(case.files) == 1]
    sets: list[tuple[Any, Any, Mapping[str, Any]]]
    sets = [(rows[:9], next(iter(case.entries.values())), case.recipe) for case in cases
            for rows in case.files.values() if isinstance(rows, list)]  # fmt: skip
    keys = ("tools", "images", "system", "tool_calls", "chosen", "label")
    return sets, trees.pool([rows for rows, _, _ in sets], odd.JSON, keys)


def _named(random: Random, name: str, data: bytes, entry: Mapping[str, Any], keys: Mapping[str, Any]) -> Input:
    """Data that a recipe names, or that a command is given alone."""
    if random.random() < 0.6:
        words = _PLANNED if random.random() < 0.01 else random.choice(_ALONE)
        return Input((*words, name), {name: data})
    entries = text_json({"mine": {**entry, "file_name": name}}).encode()
    recipe = given.recipe(**{**keys, "model_name_or_path": "model", "dataset": "mine", "dataset_dir": "."})
    files = {**_model(), "r.yaml": recipe, "dataset_info.json": entries, name: data}
    return Input(random.choice(_NAMED), files)


def written(random: Random, name: str, write: Callable[[Any], bytes], share: float = 0.3) -> Input:
    """Rows that were changed, then written to a file of that name, of which this share is damaged."""
    sets, pool = _sets()
    rows, entry, keys = random.choice(sets)
    data = damaged(random, write(trees.mutated(random, rows, pool)), share)
    return _named(random, name, data, entry, keys)


def texts(write: Callable[[Any], str]) -> Callable[[Any], bytes]:
    """What writes a tree as text, as what writes bytes."""
    return lambda tree: encoded(write(tree))


def lines(random: Random) -> Input:
    """Lines of text."""
    held = ["First line of text.", "", *random.choices(odd.WORDS, k=random.randrange(9))]
    data = damaged(random, encoded("\n".join(held)))
    return _named(random, "a.txt", data, {"columns": {"prompt": "text"}}, {"stage": "pt"})


def packed(random: Random) -> Input:
    """What gzip has packed."""
    name, write = random.choice((("a.json", text_json), ("a.jsonl", text_lines), ("a.csv", text_csv)))
    return written(random, name, lambda tree: gzip.compress(encoded(write(tree)), 1, mtime=0), 0.6)


def parquet(tree: Any) -> bytes:
    """Rows as a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    try:
        pq.write_table(_table(tree), sink)
    except pa.ArrowNotImplementedError:  # a mapping without keys
        return b"PAR1"
    return sink.getvalue()


def arrow(tree: Any) -> bytes:
    """Rows in Arrow's own format: a file, or a stream where they have an even number of columns."""
    import pyarrow as pa

    table, sink = _table(tree), io.BytesIO()
    with (pa.ipc.new_file if table.num_columns % 2 else pa.ipc.new_stream)(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _table(tree: Any) -> Any:
    import pyarrow as pa

    rows = [row for row in (tree if isinstance(tree, list) else [tree]) if isinstance(row, dict)]
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({_known(name): _column([row.get(name) for row in rows]) for name in names})


def _known(name: str) -> str:
    return name.encode("utf-8", "replace").decode()


def _column(values: list[Any]) -> Any:
    """One type for all values; where they have none in common, that is text."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError):
        return pa.array([None if each is None else _known(text_json(each)) for each in values])


@cache
def _model() -> Mapping[str, bytes]:
    return {f"model/{name}": (ROOT / "demo/tiny-qwen3" / name).read_bytes() for name in _MODEL}


@cache
def _tokenizer(name: str) -> tuple[Any, Pool]:
    sample = json.loads(_model()[f"model/{name}"])
    return sample, trees.pool([sample], odd.JSON, ("chat_template", "added_tokens", "normalizer", "add_bos_token"))


def tokenizer(random: Random) -> Input:
    """tokenizer.json or tokenizer_config.json of a model's folder."""
    name = random.choice(("tokenizer.json", "tokenizer.json", "tokenizer_config.json"))
    sample, pool = _tokenizer(name)
    data = damaged(random, encoded(text_json(trees.mutated(random, sample, pool))), 0.1)
    recipe = given.recipe(model_name_or_path="model", dataset="mine", dataset_dir=".")
    return Input(random.choice(_NAMED), {**_model(), **SET, "r.yaml": recipe, f"model/{name}": data})


SET: Mapping[str, bytes] = {
    "dataset_info.json": b'{"mine": {"file_name": "a.json"}}',
    "a.json": json.dumps(small_sets.alpaca(4)).encode(),
}
