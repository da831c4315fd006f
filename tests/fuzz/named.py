"""Files that a recipe or a command names: DeepSpeed and accelerate files, the registry, a model's folder, a site."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import yaml
from support import small_sets

from fuzz import given, odd, trees
from fuzz.damage import damaged
from fuzz.given import ROOT, Input
from fuzz.trees import Pool
from fuzz.written import encoded, text_json, text_yaml


@cache
def _deepspeed() -> tuple[list[Any], Pool]:
    samples = [json.loads(text) for text in given.texts("deepspeed/*.json")]
    return samples, trees.pool(samples, odd.JSON, tuple(given.table("deepspeed")["keys"]))


def deepspeed(random: Random) -> Input:
    """A DeepSpeed file of the catalogue with other keys and values."""
    samples, pool = _deepspeed()
    data = damaged(random, encoded(text_json(trees.mutated(random, random.choice(samples), pool))))
    words = given.asked(random, ("check", "ds.json"), ("check", "--format", "json", "ds.json"))
    method = random.choice(("full", "lora"))
    return Input(words, {"r.yaml": given.recipe(deepspeed="ds.json", finetuning_type=method), "ds.json": data})


@cache
def _accelerate() -> tuple[list[Any], Pool]:
    samples = [yaml.safe_load(text) for text in given.texts("accelerate/*.yaml")]
    known = yaml.safe_load((ROOT / "validator/data/accelerate.yaml").read_text("utf-8"))
    return samples, trees.pool([*samples, known], odd.YAML)


def accelerate(random: Random) -> Input:
    """An accelerate file of the catalogue with other keys and values."""
    samples, pool = _accelerate()
    data = damaged(random, encoded(text_yaml(trees.mutated(random, random.choice(samples), pool))))
    block = b"# /// recipe\n# machine: 8xa100-80g\n# accelerate: fsdp.yaml\n# ///\n"
    words = given.asked(random, ("check", "fsdp.yaml"), ("check", "r.yaml"))
    return Input(words, {"r.yaml": block + given.recipe(), "fsdp.yaml": data})


@cache
def _registry() -> tuple[list[Any], Pool]:
    held = json.loads((ROOT / "data/dataset_info.json").read_text("utf-8"))
    samples = [held, *(case.entries for case in small_sets.CASES.values())]
    return samples, trees.pool(samples, odd.JSON)


def registry(random: Random) -> Input:
    """A dataset_info.json with other entries."""
    samples, pool = _registry()
    sample = random.choice(samples)
    data = damaged(random, encoded(text_json(trees.mutated(random, sample, pool))))
    rows = text_json(small_sets.alpaca(3)).encode()
    recipe = given.recipe(dataset=",".join(sorted(sample)[:2]), dataset_dir="d")
    register = ("data", "--register", "mine", "d/a.json")
    words = given.asked(random, ("data", "r.yaml"), ("data", "--format", "json", "r.yaml"), register)
    return Input(words, {"r.yaml": recipe, "d/a.json": rows, "d/a.jsonl": rows, "d/dataset_info.json": data})


_PARTS = (
    "text_config",
    "vision_config",
    "audio_config",
    "quantization_config",
    "auto_map",
    "layer_types",
    "torch_dtype",
)


@cache
def _configs() -> tuple[list[Any], list[str], Pool]:
    samples = [json.loads((ROOT / "demo/tiny-qwen3/config.json").read_text("utf-8")), *given.samples()["configs"]]
    families = yaml.safe_load((ROOT / "validator/data/families.yaml").read_text("utf-8"))
    return samples, sorted(families), trees.pool(samples, odd.JSON, _PARTS)


def config(random: Random) -> Input:
    """config.json of a model's folder, of a family that is known or not."""
    samples, families, pool = _configs()
    tree = trees.mutated(random, random.choice(samples), pool)
    if isinstance(tree, dict) and random.random() < 0.15:
        tree["model_type"] = random.choice(families)
    words = given.asked(random, ("check", "r.yaml"))
    if random.random() < 0.002:  # it searches for a third of a second
        words = ("plan", "--machine", "8xa100-80g", "--model", "model")
    data = damaged(random, encoded(text_json(tree)), 0.1)
    return Input(words, {"r.yaml": given.recipe(model_name_or_path="model"), "model/config.json": data})


@cache
def _sites() -> tuple[list[Any], Pool]:
    samples = given.samples()["sites"]
    return samples, trees.pool(samples, odd.YAML)


def site(random: Random) -> Input:
    """What a site asks of every job."""
    samples, pool = _sites()
    sample = random.choice(samples)
    engine = next(key for key in sample if key in ("slurm", "skypilot", "kubernetes"))
    data = damaged(random, encoded(text_yaml(trees.mutated(random, sample, pool))))
    words = ("submit", "--to", engine, "--dry-run", "--machine", "2x8xa100-80g", "--site", "site.yaml", "r.yaml")
    return Input(words, {"r.yaml": given.recipe(), "site.yaml": data})
