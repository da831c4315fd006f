"""SECURITY.md and docs/explanation/robustness.md: each promise names tests, and these exist under one name each."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["SECURITY.md", "docs/explanation/robustness.md", "docs/howto/pre-commit.md", "README.md"]
TEST = re.compile(r"`(test_\w+)`")
FILE = re.compile(r"`((?:tests|benchmarks|tools|release)/[\w/.-]+)`")
DEFINED = Counter(
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"(?m)^def (test_\w+)", file.read_text("utf-8"))
)


@pytest.mark.parametrize("page", PAGES)
def test_every_test_and_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert {name: DEFINED[name] for name in TEST.findall(text) if DEFINED[name] != 1} == {}
    assert [path for path in FILE.findall(text) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES[:2])
def test_every_promise_names_a_test(page: str) -> None:
    """A promise is an item of the list, or a row of the table, below `What is promised`."""
    section = re.split(r"(?m)^## ", (ROOT / page).read_text("utf-8").partition("## What is promised")[2])[0]
    promises = re.split(r"(?m)^(?:- |\| )(?=\*\*)", section)[1:]
    assert len(promises) > 5
    assert [promise for promise in promises if not TEST.search(promise)] == []
