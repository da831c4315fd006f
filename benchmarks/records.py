"""Records of the benchmarks: CSV files in evidence/, a row for each case, and the command line that makes and shows
one."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validator.simulation.session import installed_releases

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


def write(rows: Sequence[Mapping[str, Any]], path: Path, packages: Iterable[str]) -> None:
    """Store the rows, of which there is one at least, in place of what is recorded, with the releases of the packages
    that are installed. What was recorded before stays until all is written."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w", newline="", encoding="utf-8") as out:
        out.write("# " + ", ".join(map(" ".join, installed_releases(packages).items())) + "\n")
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    unfinished.replace(path)


def append(row: Mapping[str, Any], path: Path, packages: Iterable[str] = PACKAGES) -> None:
    """Add a row, with the releases that made it."""
    made = {**row, "versions": versions(packages)}
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(made), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(made)


def versions(packages: Iterable[str]) -> str:
    """Releases of those that are installed, in one field."""
    return " ".join(map("==".join, installed_releases(packages).items()))


def key(row: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """What a row is about: these of its columns, as they are written."""
    return tuple(str(row[name]) for name in names)


def judge(
    description: str | None,
    path: Path,
    packages: Iterable[str],
    record: Callable[[Path], Sequence[DataclassInstance]],
    lines: Callable[[], tuple[Iterator[str], bool]],
) -> None:
    """The command line of a benchmark on a folder of files: `--record FOLDER` stores what they do; then the tables are
    printed, and the exit status says whether the bars are met."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="judge the files of this folder anew")
    options = parser.parse_args()
    if options.record:
        write([asdict(row) for row in record(options.record)], path, packages)
    shown, passed = lines()
    print("\n".join(shown))
    sys.exit(not passed)


def simulate(description: str | None, missing: Callable[[], None], compare: Callable[[], None]) -> None:
    """The command line of a grid of simulated cells: those that are missing are added, or `--compare` prints how far
    the formulas are from all."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="print the error of the formulas")
    compare() if parser.parse_args().compare else missing()


def spread(errors: Iterable[float]) -> tuple[float, float, float]:
    """Of signed errors: the median and 90th percentile of their sizes, and the one that is the largest."""
    ordered = sorted(errors, key=abs)
    return abs(ordered[len(ordered) // 2]), abs(ordered[int(0.9 * (len(ordered) - 1))]), ordered[-1]
