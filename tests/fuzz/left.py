"""What runs and machines leave to be read: logs, checkpoints, what was measured, what drivers' programs print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from fuzz import given, odd, trees
from fuzz.damage import damaged
from fuzz.given import ROOT, Input, Words
from fuzz.trees import Pool
from fuzz.written import encoded, text_json, text_lines

_LINE = {"current_steps": 1, "total_steps": 40, "loss": 1.0, "elapsed_time": "0:00:10", "remaining_time": "0:06:30"}
_COUNTED = {"throughput": 950.5, "total_tokens": 9000}
# Logs with and without a count of tokens.
LOG = (
    text_lines([{**_LINE, **_COUNTED, "current_steps": n, "total_tokens": n * 9000} for n in range(1, 30)]),
    text_lines([{**_LINE, "current_steps": n, "elapsed_time": f"1 day, {n}:00:00"} for n in range(1, 20)]),
)


def _held() -> dict[str, Any]:
    return {name: given.samples()[name] for name in ("state", "adapter", "index", "tensors", "measured")}


@cache
def _pool() -> Pool:
    return trees.pool([*_held().values(), *map(_rows, LOG)], odd.JSON)


def _rows(log: str) -> list[Any]:
    return [json.loads(line) for line in log.splitlines()]


def _changed(random: Random, tree: Any) -> Any:
    return trees.mutated(random, tree, _pool())


def log(random: Random) -> Input:
    """trainer_log.jsonl of a run, or what was measured before."""
    if random.random() < 0.2:
        held = damaged(random, encoded(text_json(_changed(random, _held()["measured"]))))
        words: Words = random.choice((("calibrate", "--list"), ("explain", "--machine", "8xa100-80g", "r.yaml")))
        return Input(words, {"r.yaml": given.recipe(), ".home/data/lmf-recipes/measured.json": held})
    data = damaged(random, encoded(text_lines(_changed(random, _rows(random.choice(LOG))))))
    words = ("calibrate", "--log", "log.jsonl", "--machine", "8xa100-80g", "r.yaml")
    return Input(words, {"r.yaml": given.recipe(), "log.jsonl": data})


_PARTS = {"trainer_state.json": "state", "adapter_config.json": "adapter", "model.safetensors.index.json": "index"}


def checkpoint(random: Random) -> Input:
    """A checkpoint that a run goes on from, or an adapter, one of whose files is changed."""
    parts = {name: _held()[key] for name, key in _PARTS.items()}
    held = {name: encoded(text_json(tree)) for name, tree in parts.items()}
    held["adapter_model.safetensors"] = _weights(random)
    if chosen := random.choice((*parts, "")):
        held[chosen] = damaged(random, encoded(text_json(_changed(random, parts[chosen]))), 0.1)
    folder = random.choice(("saves/x/checkpoint-10", "saves/x/checkpoint-10", "saves/x", "adapter"))
    resumed: dict[str, Any] = random.choice(({}, {"resume_from_checkpoint": True}))
    keys = {"adapter_name_or_path": "adapter"} if folder == "adapter" else resumed
    files = {f"{folder}/{name}": data for name, data in held.items()}
    words = given.asked(random, ("train", "--dry-run", "--machine", "1xa100-80g", "r.yaml"))
    return Input(words, {**files, "r.yaml": given.recipe(**keys)})


def _weights(random: Random) -> bytes:
    tensors = _held()["tensors"]
    head = encoded(text_json(_changed(random, tensors) if random.random() < 0.5 else tensors))
    return damaged(random, len(head).to_bytes(8, "little") + head + bytes(8), 0.2)


@cache
def _printed() -> list[tuple[str, dict[str, bytes]]]:
    """The programs of the recorded machines, and what they print."""
    return [(program.name, {path.name: path.read_bytes() for path in sorted(program.parent.iterdir()) if path.suffix})
            for program in sorted((ROOT / "tests/fixtures/recorded").glob("*/*-smi"))]  # fmt: skip


# The last two judge many recipes.
_HERE: Sequence[Words] = (
    *(("check", "--machine", "auto", "r.yaml"),) * 60,
    *(("train", "--dry-run", "r.yaml"),) * 40,
    ("explain", "--machine", "auto", "--format", "json", "r.yaml"),
    ("list", "--machine", "auto"),
)


def driver(random: Random) -> Input:
    """What the program of a driver prints, of another machine at times."""
    program, printed = random.choice(_printed())
    files = {f"bin/{program}/{name}": _reprinted(random, data) for name, data in printed.items()}
    return Input(random.choice(_HERE), {**files, "r.yaml": given.recipe()})


def _reprinted(random: Random, data: bytes) -> bytes:
    if data.startswith((b"{", b"[")) and random.random() < 0.8:
        tree = json.loads(data)
        data = encoded(text_json(trees.mutated(random, tree, trees.pool([tree], odd.JSON))))
    return damaged(random, data, 0.8)
