"""docs/reference/doctor.md: what doctor looks at, the facts that it compares releases with, and public threads with its
verdicts.

tools/derive.py writes it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from validator.doctor import diagnosis
from validator.knowledge.tables import yaml_table

ROOT = Path(__file__).resolve().parents[2]


def page() -> str:
    """The text between the marks."""
    return "\n".join([*_checks(), "", *_facts(), "", *_threads()]) + "\n"


def _checks() -> Iterator[str]:
    yield from ("## What it looks at", "", "| check | what |", "|---|---|")
    for name, check in diagnosis.CHECKS.items():
        about = inspect.getdoc(check) or ""
        yield f"| {name} | {about.splitlines()[0]} |"


def _facts() -> Iterator[str]:
    yield from ("## Where the facts about releases are from", "")
    yield "What packages state in their metadata is read where they are installed. The rest is in `together.yaml`:"
    yield ""
    for name, entry in yaml_table("together").items():
        sources = [pair["source"] for pair in entry["pairs"]] if name == "fails" else entry["source"]
        yield f"- {name}: {', '.join(sources)}"


def _threads() -> Iterator[str]:
    threads: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "fixtures" / "threads.yaml").read_text("utf-8"))
    yield from ("## Public threads, and what is said of their machines", "")
    for kind, (seen, total) in _counted(threads).items():
        yield f"- {kind}: {seen} of {total} are told before the run"
    yield from ("", "| thread | what happened | said by | what |", "|---|---|---|---|")
    for thread in threads:
        said = thread.get("says", {"": f"not seen: {thread.get('unseen')}"})
        for command, words in said.items():
            yield f"| {_link(str(thread['thread']))} | {thread['symptom']} | {command} | {words} |"


def _link(thread: str) -> str:
    repository, _, number = thread.rpartition("#")
    return f"[{thread}](https://github.com/{repository or 'hiyouga/LlamaFactory'}/issues/{number})"


def _counted(threads: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Of each kind, how many are seen, and how many there are."""
    total = Counter(thread["kind"] for thread in threads)
    seen = Counter(thread["kind"] for thread in threads if "says" in thread)
    return {kind: (seen[kind], count) for kind, count in total.items()}
