"""The JSON that programs rely on: its keys and their order, for each command that prints a result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from validator.cli import group
from validator.output import json_output
from validator.output.terminal import format_table

pytestmark = [
    pytest.mark.usefixtures("from_the_root"),
    pytest.mark.sample(one_in=3, whole_for=["validator/output/*", "validator/commands/*"]),
]

ROOT = Path(__file__).parents[2]
NAME = "qwen3-4b-2507-4090x1-lora"
PLAN = ["method", "speed", "device_gib", "headroom_gib", "host_gib", "zero", "micro_batch", "accumulation",
        "effective_batch", "learning_rate", "epochs", "cutoff_len", "samples", "set", "gives_up",
        "nearest", "hours", "device_hours", "bottleneck", "money", "by_length", "steps", "assumes"]  # fmt: skip
WHOLE = ["model", "machine", "samples", "plans", "choices", "reasons", "upgrades", "tight", "notes", "scale",
         "machines"]  # fmt: skip
NEED = ["verdict", "device_gib", "host_gib"]


def answer(words: str) -> Any:
    return json.loads(CliRunner().invoke(group, [*words.split(), "--format", "json"]).stdout)


@pytest.mark.parametrize(
    ("words", "route", "keys"),
    [
        ("list --model qwen7b", [0], ["name", "summary", "model", "machine", "method", "device_gib", "host_gib",
                                      "samples", "verdict", "hours", "rows", "enough_for_tokens",
                                      "assumes", "made_for"]),
        ("plan --model qwen3b --machine 1xa100-80g", [], WHOLE),
        ("plan --model qwen3b --machine 1xa100-80g", ["machine"], ["name", "host_ram_gib", "usable_gib"]),
        ("plan --model qwen3b --machine 1xa100-80g", ["plans", 0], PLAN),
        ("plan --machine 1xrtx-3090 --samples 20000", ["choices", 0], ["model", "recommended", "cost", *PLAN]),
        ("plan --model qwen72b --machine 1xt4-16g", ["upgrades", 0], ["machine", "host_ram_gib", "method", "zero",
                                                                      "note"]),
        (f"diff {NAME} recipes/{NAME}.yaml", [], ["recipe", "path", "changed", "added", "removed", "before", "after"]),
        (f"diff {NAME} recipes/{NAME}.yaml", ["after"], NEED),
        ("data data/tiny_demo.json", [], ["path", "model", "stage", "method", "template", "cutoff_len", "sets",
                                          "problems", "notes", "rows", "drops", "steps", "tokens", "images", "memory",
                                          "amount", "quality", "time"]),
        ("data data/tiny_demo.json", ["sets", 0], ["name", "role", "source", "formatting", "files", "rows", "columns",
                                                   "note"]),
        ("data data/tiny_demo.json", ["rows"], ["read", "selected", "dropped", "trained", "evaluated",
                                                "evaluation_dropped", "sequences", "exact"]),
        ("data data/tiny_demo.json", ["tokens", "histogram", 0], ["from", "to", "rows"]),
        ("data data/tiny_demo.json", ["amount"], ["rows", "verdict", "minimum", "useful", "good", "saturating",
                                                  "recommended", "message", "better_size", "epochs", "sources",
                                                  "sure", "unit"]),
    ],
)  # fmt: skip
def test_the_fixed_shapes(words: str, route: list[str | int], keys: list[str]) -> None:
    part = answer(words)
    for step in route:
        part = part[step]
    assert list(part) == keys


@dataclass(frozen=True)
class Span:
    from_: int
    held: dict[str, object]


def test_only_names_of_fields_lose_their_last_sign() -> None:
    assert json.loads(json_output.format_json([Span(1, {"a_": 2})])) == [{"from": 1, "held": {"a_": 2}}]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert format_table(["a", "bbb"], [(1, None), ("long", 2)]) == ["a     bbb", "1     -", "long  2"]
