"""Sources of rules: each is in the package it names."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from validator.rules import manual
from validator.tables import releases
from validator.upstream.definition import definition

_SOURCE = r"own \([^()]+\)|[\w/]+\.py:[\w.]+"
SOURCES = {code: manual.sources(manual.page(code).text) for code in manual.codes()}
PLACES = sorted({source for sources in SOURCES.values() for source in sources if not source.startswith("own")})


@pytest.mark.parametrize("code", manual.codes())
def test_every_code_names_its_sources(code: str) -> None:
    assert SOURCES[code]
    assert all(re.fullmatch(_SOURCE, source) for source in SOURCES[code])


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@pytest.mark.parametrize("source", PLACES)
def test_every_source_is_in_the_release_that_was_seen(source: str) -> None:
    path, _, name = source.partition(":")
    package = path.partition("/")[0]
    try:
        installed = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if installed.version.partition("+")[0] != releases.seen(package):
        pytest.skip(f"{package} {installed.version} is installed, {releases.seen(package)} was read")
    assert definition(_tree(Path(str(installed.locate_file(path)))), name) is not None


def test_a_manual_page_names_the_releases_of_its_sources() -> None:
    text = manual.page("TRA504").text
    assert text.endswith(f"\n\nSeen with: llamafactory {releases.seen('llamafactory')}, trl {releases.seen('trl')}")
    assert "Seen with" not in manual.page("CUR001").text
