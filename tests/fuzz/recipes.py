"""Recipes, their header blocks, and overrides of their keys."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import yaml
from support.clean_recipe import RECIPE

from fuzz import given, odd, trees
from fuzz.damage import damaged
from fuzz.given import Input, Words
from fuzz.trees import Pool
from fuzz.written import encoded, text_yaml


@cache
def _recipes() -> tuple[list[Any], Pool]:
    texts = (*given.texts("recipes/*.yaml"), *given.texts("tests/fixtures/refused/*.yaml"), RECIPE)
    samples = [yaml.safe_load(text) for text in texts]
    arguments = given.table("arguments")["arguments"]
    pool = trees.pool(samples, odd.YAML, tuple(arguments))
    choices = [choice for each in arguments.values() for choice in each["choices"] or ()]
    return samples, pool._replace(values=(*pool.values, *choices))


def recipe(random: Random) -> Input:
    """A recipe of the catalogue with other keys and values."""
    samples, pool = _recipes()
    text = text_yaml(trees.mutated(random, random.choice(samples), pool))
    head = random.choice(_headers()[0]) if random.random() < 0.2 else ""
    words = given.asked(random, ("check", "r.yaml"), ("data", "r.yaml"), *_COMPARED)
    return Input(words, {"r.yaml": damaged(random, encoded(head + text))})


_COMPARED: tuple[Words, ...] = (
    ("diff", "qwen3-8b-a100-lora", "r.yaml"),
    ("diff", "--format", "json", "r.yaml", "r.yaml"),
)


@cache
def _headers() -> tuple[list[str], list[Any], Pool]:
    """Header blocks of the catalogue as text and as trees."""
    end = "# ///\n"
    texts = [text.partition(end)[0] + end for text in given.texts("recipes/*.yaml") if text.startswith("# /// recipe")]
    samples = [yaml.safe_load("\n".join(line[2:] for line in text.splitlines()[1:-1])) for text in texts]
    return texts, samples, trees.pool(samples, odd.YAML, ("accelerate", "network", "price", "origin"))


def header(random: Random) -> Input:
    """A header block of the catalogue with other keys and values, before a sound recipe."""
    _, samples, pool = _headers()
    lines = text_yaml(trees.mutated(random, random.choice(samples), pool)).splitlines()
    block = "".join(f"# {line}\n" for line in ("/// recipe", *lines, "///"))
    return Input(given.asked(random), {"r.yaml": damaged(random, encoded(block)) + given.recipe()})


def override(random: Random) -> str:
    """KEY=VALUE, or nearly so."""
    keys, pool = _assignments()
    key = random.choice(keys) if random.random() < 0.8 else random.choice(odd.WORDS)
    value = random.choice((random.choice(pool.values), odd.value(random, odd.YAML), random.choice(odd.WORDS)))
    text = random.choice(("", "+", "++", "~", "--")) if random.random() < 0.1 else ""
    text += key + random.choice(("=", "=", "=", "=", "=", "", "==", ":", " = ", ".x="))
    return text + (value if isinstance(value, str) else text_yaml([value])[1:-2])


@cache
def _assignments() -> tuple[Words, Pool]:
    """Keys, those that recipes have more often, and values."""
    samples, pool = _recipes()
    return (*dict.fromkeys(key for sample in samples for key in sample), *pool.keys), pool
