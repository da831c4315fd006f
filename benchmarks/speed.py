"""Wall time of whole processes: ours beside yamllint and check-jsonschema on the same file.

    python benchmarks/speed.py [ROUNDS]

Medians over interleaved rounds, so that other load on the machine meets all commands alike. check-jsonschema gets the
smallest schema there is: its time is start-up and parsing only.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECIPE = "recipes/qwen32b-910b-lora.yaml"
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # an installed package has its bytecode


def commands(schema: Path) -> dict[str, tuple[list[str], str]]:
    """Name of each row -> command line and the budget that the design gives it."""
    programs = Path(sys.executable).parent
    ours = str(programs / "lmf-recipes")
    return {
        "lmf-recipes check FILE": ([ours, "check", RECIPE], "120 ms"),
        "lmf-recipes explain FILE": ([ours, "explain", RECIPE], "150 ms"),
        "lmf-recipes check recipes": ([ours, "check", "recipes"], "300 ms"),
        "yamllint FILE": ([str(programs / "yamllint"), "-d", "relaxed", RECIPE], ""),
        "check-jsonschema FILE": ([str(programs / "check-jsonschema"), "--schemafile", str(schema), RECIPE], ""),
    }


def milliseconds(command: list[str]) -> float:
    """Wall time of one run. Exit code 1 means findings; anything above, that the work was not done."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False, capture_output=True, text=True)
    taken = (time.perf_counter() - start) * 1000
    if done.returncode > 1:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return taken


def measure(rounds: int) -> None:
    """Print one row per command: median, fastest and slowest of all rounds but the first, which warms the caches."""
    with tempfile.TemporaryDirectory() as folder:
        schema = Path(folder) / "schema.json"
        schema.write_text('{"type": "object"}')
        rows = commands(schema)
        times: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(rounds + 1):
            for name, (command, _) in rows.items():
                times[name].append(milliseconds(command))
    print(f"{'command':<28}{'median ms':>10}{'fastest':>10}{'slowest':>10}{'budget':>10}")
    for name, (_, budget) in rows.items():
        taken = times[name][1:]
        print(f"{name:<28}{statistics.median(taken):>10.0f}{min(taken):>10.0f}{max(taken):>10.0f}{budget:>10}")


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
