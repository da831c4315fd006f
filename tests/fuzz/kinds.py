"""The kinds of input, each a function from random numbers to an input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import NamedTuple

from fuzz import left, named, options, recipes, rows
from fuzz.given import Input
from fuzz.written import text_csv, text_json, text_lines


class Kind(NamedTuple):
    """What is fed, in words, and what makes it."""

    what: str
    make: Callable[[Random], Input]


KINDS: Mapping[str, Kind] = {
    "recipe": Kind("recipe", recipes.recipe),
    "header": Kind("header block", recipes.header),
    "deepspeed": Kind("DeepSpeed JSON", named.deepspeed),
    "accelerate": Kind("accelerate YAML", named.accelerate),
    "registry": Kind("dataset_info.json", named.registry),
    "config": Kind("config.json of a model", named.config),
    "tokenizer": Kind("tokenizer.json, tokenizer_config.json", rows.tokenizer),
    "json": Kind("data: json", partial(rows.written, name="a.json", write=rows.texts(text_json))),
    "jsonl": Kind("data: jsonl", partial(rows.written, name="a.jsonl", write=rows.texts(text_lines))),
    "csv": Kind("data: csv", partial(rows.written, name="a.csv", write=rows.texts(text_csv))),
    "txt": Kind("data: txt", rows.lines),
    "parquet": Kind("data: parquet", partial(rows.written, name="a.parquet", write=rows.parquet, share=0.5)),
    "arrow": Kind("data: arrow", partial(rows.written, name="a.arrow", write=rows.arrow, share=0.5)),
    "gzip": Kind("data packed by gzip", rows.packed),
    "overrides": Kind("overrides, KEY=VALUE", options.overrides),
    "options": Kind("options", options.options),
    "log": Kind("trainer_log.jsonl, measured.json", left.log),
    "checkpoint": Kind("checkpoint, adapter", left.checkpoint),
    "driver": Kind("what drivers' programs print", left.driver),
    "site": Kind("site.yaml", named.site),
}


def made(kind: str, number: int) -> Input:
    """The input of that number: the same on every machine."""
    return KINDS[kind].make(Random(f"{kind} {number}"))
