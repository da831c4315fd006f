"""The documentation: every link leads to a page and a heading that exist, the index names every page, and reference
pages describe every field there is."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from validator.rules import header_block
from validator.submit.site_file import Kubernetes, Site, SkyPilot, Slurm

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "deepspeed/README.md"]
)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"(?ms)^```.*?^```$")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ +(.*)$", CODE.sub("", page.read_text("utf-8")))
    words = (re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)) for heading in headings)
    return frozenset(each.lower().replace(" ", "-") for each in words)


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    page = ROOT / name
    for path, anchor in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {path}"
        assert not anchor or anchor in anchors(target), f"{name} links to {path}#{anchor}"


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_way_in_stays_short(name: str) -> None:
    assert (ROOT / name).stat().st_size < 10_000


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    linked = {(ROOT / "docs" / path).resolve() for path, _ in LINK.findall(index)}
    rules = ROOT / "docs/reference/rules"
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent != rules} - {ROOT / "docs/README.md"}
    assert pages <= linked


def described(name: str) -> dict[str, set[str]]:
    """Return the names in the first columns of a page's tables, by the heading above."""
    text = CODE.sub("", (ROOT / "docs/reference" / name).read_text("utf-8"))
    parts = re.split(r"(?m)^#+ +(.*)$", text)[1:]
    return {
        title: set(re.findall(r"(?m)^\| `(\w+)`", text)) for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_the_page_of_the_header_block_has_each_field() -> None:
    (names,) = described("recipe-header.md").values()
    assert names == set(header_block._HEADER_FIELDS)


@pytest.mark.parametrize(
    ("heading", "section"),
    [("For every scheduler", Site), ("slurm", Slurm), ("skypilot", SkyPilot), ("kubernetes", Kubernetes)],
)
def test_the_page_of_the_site_file_has_each_key(heading: str, section: type[Any]) -> None:
    assert described("site-file.md")[heading] == {field.name for field in fields(section)}


def test_the_page_of_deepspeed_files_names_each() -> None:
    page = (ROOT / "deepspeed/README.md").read_text("utf-8")
    files = {path.name.replace("_nopin", "") for path in (ROOT / "deepspeed").glob("*.json")}
    assert [name for name in sorted(files) if f"`{name}`" not in page] == []


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PATH = re.compile(r"`((?:validator|tests|tools|benchmarks|docs|release|deepspeed)/[\w/.-]+)`")
MEMBER = re.compile(r"`(\w+)` of `([\w/]+\.py)`")


def test_every_path_of_the_guide_for_contributors_exists() -> None:
    named = {path for path in PATH.findall(CONTRIBUTING) if "NAME" not in path}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("name", "path"), MEMBER.findall(CONTRIBUTING))
def test_every_name_of_the_guide_for_contributors_is_in_its_module(name: str, path: str) -> None:
    assert re.search(rf"(?m)^(?:def |class )?{name}\b", (ROOT / path).read_text("utf-8"))
