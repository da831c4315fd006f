"""Numbers in the prose of README, SECURITY and docs: each is one that a benchmark recorded (benchmarks/sentences.yaml),
one that is computed here, one that a command of the page takes or prints, or part of a name or a definition."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import derive
import figures
import pytest
from commands import test_odd_paths
from dataset import test_token_counting
from launch import test_trainer
from robustness import hostile_repository, outside, stress_data
from rules import test_rules_ranges
from submit import test_injection
from support import journeys

from validator import configuration
from validator.knowledge import models, tables
from validator.knowledge.path_keys import PATH_KEY_NAMES
from validator.launch import guard
from validator.on_node import output_lock
from validator.plan.base_model import SOON_HOURS
from validator.recipe.safe_read import _MAX_BYTES

ROOT = Path(__file__).parents[2]
DOCS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "README.zh.md", "SECURITY.md", *DOCS]
JOURNEY = re.compile(r"(?s)<!-- journey begins -->.*?<!-- journey ends -->")
FENCE = re.compile(r"(?ms)^```.*?^```$")
CODE_OR_ADDRESS = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->")
NUMBER = re.compile(r"(?a)(?<![\w.,-])-?\d[\d,]*(?:\.\d+)?(?!\w)")
NAMES = [
    # Python 3.11 to 3.13; the release of NVIDIA's driver from which on it knows a chip
    r"\bPython \d\.\d+ to \d\.\d+|\bRTX 50 and B200 want 570",
    r"\b(?:[A-Z][\w-]*|transformers|torch|peft|accelerate|stage|before|from) v?\d[\w.]*(?: and \d[\w.]*(?=,))?",
    r"\b\d+\.\d+\.\d+\b",  # a release
    r"\b(?:2025|2026)\b",
    r"\b\d+[- ]bits?\b",
    r"\b2\^30 bytes",
    r"\bsteps? \d(?: to \d)?",  # of a page
    r"\b90 % band",
    r"over 10 % too little|少报 10 % 以上",  # the heads of a generated table
    r"\bexit code \d|\b128 \+ n",
    r"^\| \d+(?:, \d+)* \| (?=[a-z])",  # exit codes in a table
    r"\*\*Answers\*\* \|.*",  # exit codes in a sentence
    r"^\d\. ",  # items of a list
]
NAME = re.compile("|".join(f"(?:{name})" for name in NAMES), re.M)


def oldest_python() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["requires-python"]).removeprefix(">=")


def llamafactory() -> object:
    return tables.yaml_table("seen")["llamafactory"]


def oldest_driver() -> object:
    """Return the least release of NVIDIA's driver for CUDA 12."""
    return tables.yaml_table("together")["driver"]["least"][12]


# Words of pages with a number that the program or the project holds.
COMPUTED: dict[str, Callable[[], object]] = {
    "Python {} or later": oldest_python,
    "Python {} 及以上": oldest_python,
    "LLaMA-Factory {}, torch, DeepSpeed": llamafactory,
    "LLaMA-Factory {}、torch、DeepSpeed": llamafactory,
    "train within {} h": lambda: SOON_HOURS,
    "{} 小时内能训练完": lambda: SOON_HOURS,
    "all {} billion parameters": lambda: round(models.find_model("deepseek-v3").parameters / 1e9),
    "trains a model of {:,} parameters": lambda: models.find_model("demo/tiny-qwen3").parameters,
    ", {} or later |": oldest_driver,
    "driver {} or later": oldest_driver,
    "up to {:,} characters": lambda: configuration._MAX_CHARACTERS,
    "of {} MiB": lambda: _MAX_BYTES >> 20,
    "touched every {:.0f} s": lambda: output_lock.BEAT_SECONDS,
    "sees that within {:.0f} s": lambda: output_lock.BEAT_SECONDS,
    "until it is {:.0f} s old": lambda: output_lock._STALE_SECONDS,
    "names it after {:.0f} s": lambda: guard._KILL_SECONDS,
    "{} kinds of path": lambda: len(test_odd_paths.KINDS),
    "{} arguments and options": lambda: len([*test_odd_paths.every_value()]),
    "{} keys of a recipe": lambda: len(PATH_KEY_NAMES) + 3,
    "{} files that": lambda: len(test_odd_paths.FILES),
    "of {} keys is": lambda: len(test_rules_ranges.NUMERIC),
    "Each of {} hostile data sets": lambda: len(stress_data.BOMBS),
    "less than {} MiB": lambda: stress_data.BOMB_CEILING,
    "{} s of CPU": lambda: 2 * stress_data.BOMB_SECONDS,
    "{} tokenizers of strangers": lambda: len(test_token_counting.STRANGERS),
    "each of {} moments": lambda: len(test_trainer.MOMENTS),
    "{:,} contents of such files": lambda: len([*outside.cases()]),
    "{} modules and packages": lambda: len(hostile_repository.MODULES) + len(hostile_repository.PACKAGES),
    "{} hostile words": lambda: len(test_injection.HOSTILE),
    "{} places of a recipe": lambda: test_injection.RECIPE.count("{word}"),
}


def loose_numbers(page: str) -> Iterator[str]:
    """Yield each number of a page that nothing holds, with the words around it."""
    whole = (ROOT / page).read_text("utf-8")
    in_readme = page.startswith("README")  # whose other blocks are typed by no test
    text = derive.BLOCK.sub("", whole)
    text = JOURNEY.sub("", text) if in_readme else FENCE.sub("", text)
    text = CODE_OR_ADDRESS.sub("", text)
    for area, pages in figures.SENTENCES.items():
        for sentence in pages.get(page, ()):
            words = CODE_OR_ADDRESS.sub("", sentence.format_map(figures.recorded()[area])).split()
            text = re.sub(r"\s+".join(map(re.escape, words)), "", text)
    for sentence, value in COMPUTED.items():
        text = text.replace(sentence.format(value()), "")
    text = NAME.sub("", text)
    replayed = not in_readme and ROOT / page in journeys.PAGES
    shown = set(NUMBER.findall(" ".join(FENCE.findall(whole)))) if replayed else set()
    for found in NUMBER.finditer(text):
        if found[0] not in shown:
            yield " ".join(text[max(found.start() - 40, 0) : found.end() + 30].split())


@pytest.mark.parametrize("page", PAGES)
def test_no_number_of_a_page_is_held_by_nothing(page: str) -> None:
    assert list(loose_numbers(page)) == [], "hold it by benchmarks/sentences.yaml or by COMPUTED, or leave it out"
