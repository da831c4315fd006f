"""Train recipes with LLaMA-Factory, each in forks of one process that has imported it.

    python tests/support/real_runs.py

Reads lines of JSON, each a list of runs: name, recipe, number of processes. Writes an empty line where all of a line
have ended; what a run prints is in NAME.log.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import forks

LIMIT = 600  # seconds; the first run of DeepSpeed's compiles its operators
MODULES = Path("modules")


def train(recipe: dict[str, Any], first: bool) -> int:
    """The function that torchrun would start; the first rank writes down what it imports."""
    from llamafactory.train.tuner import run_exp

    run_exp(recipe)
    if first:
        forks.leave(MODULES)
    return 0


def run(name: str, recipe: dict[str, Any], processes: int) -> None:
    alone = processes == 1 and not recipe.get("deepspeed")
    environments: list[dict[str, str]] = [{}] if alone else forks.torchrun(processes)
    log = Path(f"{name}.log")
    codes = forks.wait(
        forks.start(partial(train, recipe, rank == 0), log, each, LIMIT) for rank, each in enumerate(environments)
    )
    if not any(codes):
        forks.take(MODULES)


def main() -> None:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print while they are imported is no answer
    import llamafactory.train.tuner  # noqa: F401

    for line in sys.stdin:
        for each in json.loads(line):
            run(*each)
        print(file=output, flush=True)


if __name__ == "__main__":
    main()
