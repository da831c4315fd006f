"""What the program is given: files, the words that it is asked with, and samples in this repository to begin from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml
from support.clean_recipe import RECIPE

from fuzz.written import text_yaml

ROOT = Path(__file__).parent.parent.parent
Words = tuple[str, ...]


class Input(NamedTuple):
    """What the program is asked, and the files that lie where it runs."""

    words: Words
    files: Mapping[str, bytes]


_MACHINE = ("--machine", "8xa100-80g")
_NODES = ("--machine", "2x8xa100-80g")
# Those that are dear, as they search for what would fit, come seldom.
_DEAR: Sequence[Words] = (
    ("explain", "r.yaml"),
    ("explain", "--format", "json", "--machine", "2x8xascend-910b-64g", "r.yaml"),
    ("explain", "--machine", "1xrtx-4090", "--host-ram", "64", "--energy", "r.yaml"),
    ("check", "--format", "sarif", "--machine", "1xv100-16g", "--host-ram", "64", "r.yaml"),
)
_CHECKS: Sequence[Words] = (
    *(("check", "r.yaml"),) * 6,
    ("check", "--format", "json", "--strict", *_MACHINE, "r.yaml"),
    ("check", "--format", "github", *_MACHINE, "r.yaml"),
    ("check", "--format", "sarif", "r.yaml"),
    ("check", "--fix", "--unsafe-fixes", "--diff", "r.yaml"),
    ("check", "--fix", "--unsafe-fixes", "r.yaml"),
    ("check", "."),
    ("train", "--dry-run", *_MACHINE, "r.yaml"),
    ("submit", "--to", "slurm", "--dry-run", *_NODES, "r.yaml"),
    ("submit", "--to", "kubernetes", "--dry-run", *_NODES, "r.yaml"),
    ("submit", "--to", "skypilot", "--dry-run", *_MACHINE, "r.yaml"),
)


def asked(random: Random, *further: Words) -> Words:
    """A question about the recipe r.yaml, or one of those further ones."""
    if further and random.random() < 0.6:
        return random.choice(further)
    return random.choice(_DEAR if random.random() < 0.03 else _CHECKS)


def recipe(**keys: object) -> bytes:
    """A sound recipe of a small model, with these keys."""
    return text_yaml({**_SOUND, **keys}).encode()


_SOUND: Mapping[str, Any] = {**yaml.safe_load(RECIPE), "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct"}


@cache
def samples() -> dict[str, Any]:
    """Valid samples that the repository has nowhere else."""
    held: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "samples.yaml").read_text("utf-8"))
    return held


def texts(pattern: str) -> list[str]:
    """Files of this repository, in the order of their names."""
    return [path.read_text("utf-8") for path in sorted(ROOT.glob(pattern))]


def table(name: str) -> dict[str, Any]:
    """A table of the program."""
    held: dict[str, Any] = json.loads((ROOT / "validator" / "data" / f"{name}.json").read_text("utf-8"))
    return held
