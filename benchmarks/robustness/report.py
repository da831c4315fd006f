"""What the program bears: odd inputs, growing inputs, faults of disk, signals, hostile repositories, other releases.

python -m benchmarks reliability                  print what is recorded; exit 1 where anything failed
python -m benchmarks reliability report --record AREA    try an area anew: stress_AREA.py, whose `rows` are kept in
                                                  evidence/reliability/AREA.csv

`Row` is what an area reports; `answer` runs the real program and says what it cost.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import records

RECORDS = records.EVIDENCE / "reliability"
# In the order of the page, with its titles.
AREAS = {
    "inputs": "Fuzzed inputs",
    "files": "Odd files",
    "data": "Data sets",
    "sizes": "Growing inputs",
    "scale": "Many files",
    "printed": "What is printed",
    "writes": "What is written",
    "signals": "Signals",
    "trust": "Strangers' repositories",
    "versions": "Releases",
}
COLUMNS = ("what", "promised", "tried", "failed", "CPU s", "MiB")
PACKAGES = ("click", "pyyaml", "cerberus", "pyarrow", "llamafactory", "torch")


class Row(NamedTuple):
    """One kind of input, fault, signal or size, and how often the promise was tried and did not hold. `seconds` of CPU
    and `mebibytes` of resident memory are those of the worst answer, None where they say nothing."""

    what: str
    promise: str
    tried: int
    failed: int
    seconds: float | None = None
    mebibytes: float | None = None


class Answer(NamedTuple):
    """What a process said and what it took, its own children included: `code` as a shell has it (128 + n for signal
    n), seconds of CPU, and peak resident memory, which is at least that of the process that asks (Linux counts what a
    process held before it became another program)."""

    code: int
    out: bytes
    err: bytes
    seconds: float
    mebibytes: float


def answer(
    words: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> Answer:
    """Run the program of this environment, `lmf-recipes` before the words, to its end."""
    program = Path(sys.executable).with_name("lmf-recipes")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen([program, *words], cwd=cwd, env=env, stdin=given, stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        seconds, kibibytes = used.ru_utime + used.ru_stime, used.ru_maxrss
        return Answer(code if code >= 0 else 128 - code, out.read(), err.read(), seconds, kibibytes / 1024)


def heeding() -> None:
    """Have a signal end this process, a new one, whatever `nohup` or a shell's `&` has set."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def runs(pid: int) -> bool:
    """Whether a process still does: one that has ended may wait to be buried (proc(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def record(area: str) -> None:
    """Try one area, and keep what came of it."""
    rows: list[Row] = list(import_module(f"robustness.stress_{area}").rows())
    RECORDS.mkdir(exist_ok=True)
    records.write([row._asdict() for row in rows], RECORDS / f"{area}.csv", PACKAGES)


def recorded(area: str) -> list[Row]:
    """What is kept of an area; nothing where it was never tried."""
    return [
        Row(
            row["what"],
            row["promise"],
            int(row["tried"]),
            int(row["failed"]),
            float(row["seconds"]) if row["seconds"] else None,
            float(row["mebibytes"]) if row["mebibytes"] else None,
        )
        for row in records.read(RECORDS / f"{area}.csv")
    ]


def lines() -> Iterator[str]:
    """The tables of all areas, in Markdown. What most rows promise stands above them; columns without a value are left
    out."""
    for area, title in AREAS.items():
        if rows := recorded(area):
            most, number = Counter(row.promise for row in rows).most_common(1)[0]
            common = most if number > 1 else ""
            yield from (f"### {title}", "")
            if common:
                yield from (f"Promised{', if no other promise is named' * (number < len(rows))}: {common}.", "")
            table = [list(_cells(row, common)) for row in rows]
            used = [column for column, cells in enumerate(zip(*table, strict=True)) if any(cells)]
            for line in (COLUMNS, ["---:" if column > 1 else "---" for column in range(len(COLUMNS))], *table):
                yield f"| {' | '.join(line[column] for column in used)} |"
            yield ""


def _cells(row: Row, common: str) -> Iterator[str]:
    yield from (row.what, row.promise if row.promise != common else "", f"{row.tried:,}", f"{row.failed:,}")
    yield "" if row.seconds is None else f"{row.seconds:.2f}"
    yield "" if row.mebibytes is None else f"{row.mebibytes:,.0f}"


def recorded_figures() -> dict[str, float]:
    """How often promises were tried, and how often they failed; how many answers to a file of a mebibyte were timed,
    and the seconds that none exceeded."""
    rows = [row for area in AREAS for row in recorded(area)]
    return {
        "tried": sum(row.tried for row in rows),
        "failed": sum(row.failed for row in rows),
        "mebibyte_answers": sum(row.tried for row in recorded("sizes")),
        "mebibyte_seconds": math.ceil(max(row.seconds or 0 for row in recorded("sizes"))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs="+", choices=AREAS, default=(), metavar="AREA", help="try these anew")
    for area in parser.parse_args().record:
        record(area)
    print("\n".join(lines()))
    sys.exit(any(row.failed for area in AREAS for row in recorded(area)))
