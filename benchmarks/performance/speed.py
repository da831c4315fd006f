"""Time of whole processes: ours beside yamllint and check-jsonschema on the same file.

    python -m benchmarks speed speed [ROUNDS]
    python -m benchmarks speed --record

Processor time, user and system, over interleaved rounds, so that other load on the machine meets all commands alike.
`lmf-recipes check` of one recipe is to be no slower than yamllint: the last line gives the ratio. check-jsonschema gets
the smallest schema there is: its time is start-up and parsing only. An editable install is slower to start.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml
from records import EVIDENCE

RECORD = EVIDENCE / "speed.yaml"
ROOT = Path(__file__).resolve().parents[2]
RECIPE = "recipes/qwen32b-910b-lora.yaml"
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # an installed package has its bytecode
CHECK, YAMLLINT = "lmf-recipes check FILE", "yamllint FILE"


class Run(NamedTuple):
    """Milliseconds of one process: of its own work, and until it ended."""

    processor: float
    wall: float


# Of yamllint's time, by the fastest runs. An editable install of ours starts 30 ms later than a user's.
TOLERATED = 1.5


def commands(schema: Path) -> dict[str, tuple[list[str], str]]:
    """Name of each row -> command line, and the budget of wall time that the design gives it."""
    programs = Path(sys.executable).parent
    ours = str(programs / "lmf-recipes")
    return {
        CHECK: ([ours, "check", RECIPE], "120 ms"),
        "lmf-recipes explain FILE": ([ours, "explain", RECIPE], "150 ms"),
        "lmf-recipes check recipes": ([ours, "check", "recipes"], "2 ms each"),
        YAMLLINT: ([str(programs / "yamllint"), RECIPE], ""),
        "check-jsonschema FILE": ([str(programs / "check-jsonschema"), "--schemafile", str(schema), RECIPE], ""),
    }


def run(command: list[str]) -> Run:
    """One run. Exit code 1 means findings; anything above, that the work was not done."""
    before, start = _children(), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False, capture_output=True, text=True)
    taken = Run((_children() - before) * 1000, (time.perf_counter() - start) * 1000)
    if done.returncode > 1:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return taken


def _children() -> float:
    """Seconds of processor time of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(rounds: int) -> dict[str, list[Run]]:
    """Return the runs of each command over all rounds but the first, which warms the caches."""
    with tempfile.TemporaryDirectory() as folder:
        schema = Path(folder) / "schema.json"
        schema.write_text('{"type": "object"}')
        rows = commands(schema)
        runs: dict[str, list[Run]] = {name: [] for name in rows}
        for _ in range(rounds + 1):
            for name, (command, _) in rows.items():
                runs[name].append(run(command))
    return {name: each[1:] for name, each in runs.items()}


def show(runs: Mapping[str, list[Run]]) -> float:
    """Print one row per command; return the ratio of the fastest runs of check and yamllint."""
    budgets = {name: budget for name, (_, budget) in commands(Path()).items()}
    print(f"{'command':<28}{'median ms':>10}{'fastest':>10}{'wall':>10}{'budget':>10}")
    for name, each in runs.items():
        processor = [one.processor for one in each]
        wall = statistics.median(one.wall for one in each)
        print(f"{name:<28}{middle(each):>10.1f}{min(processor):>10.1f}{wall:>10.0f}{budgets[name]:>10}")
    spent = {name: [one.processor for one in each] for name, each in runs.items()}
    print(verdict(spent))
    return min(spent[CHECK]) / min(spent[YAMLLINT])


def middle(runs: list[Run]) -> float:
    """Return the median of the processor time in milliseconds."""
    return statistics.median(each.processor for each in runs)


def verdict(processor: Mapping[str, list[float]]) -> str:
    """How a check compares with yamllint on the same file, by medians and by the fastest runs."""
    median = statistics.median(processor[CHECK]) / statistics.median(processor[YAMLLINT])
    fastest = min(processor[CHECK]) / min(processor[YAMLLINT])
    return f"check takes {median:.2f} of yamllint's time (fastest runs {fastest:.2f}); no slower is 1.00 or less"


def recorded_figures() -> dict[str, float]:
    """Return the seconds of a check, as they were recorded."""
    return {"check_seconds": round(yaml.safe_load(RECORD.read_text("utf-8"))[CHECK] / 1000, 1)}


def main() -> None:
    record = sys.argv[1:] == ["record"]
    runs = measure(int(sys.argv[1]) if sys.argv[1:] and not record else 25)
    if record:
        head = "# Median milliseconds of processor time of a process: `python -m benchmarks speed --record`\n"
        RECORD.write_text(head + yaml.safe_dump({name: round(middle(each), 1) for name, each in runs.items()}), "utf-8")
    sys.exit(show(runs) > TOLERATED and not record)
