"""Records of the benchmarks: CSV files in evidence/, a row for each case."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

EVIDENCE = Path(__file__).parent / "evidence"
PACKAGES = ("torch", "transformers", "peft", "llamafactory", "bitsandbytes")


def read(path: Path) -> list[dict[str, str]]:
    """The rows; none where nothing is recorded yet. A first line that begins with # names releases."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(dropwhile(lambda line: line.startswith("#"), lines)))


def write(rows: Sequence[DataclassInstance], path: Path, releases: Iterable[str]) -> None:
    """Store the rows, of which there is one at least, in place of what is recorded, with the releases they hold for."""
    with path.open("w", newline="", encoding="utf-8") as out:
        out.write("# " + ", ".join(releases) + "\n")
        writer = csv.DictWriter(out, [field.name for field in fields(rows[0])], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def append(row: Mapping[str, Any], path: Path) -> None:
    """Add a row, with the releases that made it."""
    made = {**row, "versions": " ".join(f"{name}=={version(name)}" for name in PACKAGES)}
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(made), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(made)


def key(row: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """What a row is about: these of its columns, as they are written."""
    return tuple(str(row[name]) for name in names)
