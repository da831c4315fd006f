"""Which types of causal language models in transformers the simulator steps through, and why others fail.

python -m benchmarks simulator simulated             every type at its default sizes; a line each, as CSV
python -m benchmarks simulator simulated TYPE ...    these types

evidence/simulator/simulated.csv holds types of LLaMA-Factory's registry and a few more (transformers 5.6.0, torch
2.13.0).
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import families
from validator.simulation.session import SimulatorProcess
from validator.simulation.simulation_request import SimulationRequest

COLUMNS = ("model_type", "known", "method", "peak_gib", "parameters", "whole", "seconds", "failure")
GIB = 1 << 30


def kinds() -> list[str]:
    """The types that transformers has a causal language model of."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def row(simulator: SimulatorProcess, kind: str) -> dict[str, Any]:
    """What became of a type at the default sizes of its configuration: by LoRA on all linear modules, else in full."""
    there: dict[str, Any] = {"model_type": kind, "known": kind in families.known_types()}
    failures = []
    for method, precision in (("lora", "bf16"), ("full", "pure_bf16")):
        cell = SimulationRequest(
            {"model_type": kind}, method, precision_mode=precision, seq_len=512, steps=1, warm=True
        )
        started = time.monotonic()
        try:
            answer = simulator.ask(cell)
        except RecipeError as err:
            failures.append(f"{method}: {str(err).removeprefix('is not simulated: ')}")
            continue
        there |= {"method": method, "peak_gib": round(answer.peak / GIB, 3), "parameters": answer.parameters,
                  "whole": answer.whole, "seconds": round(time.monotonic() - started, 1)}  # fmt: skip
        break
    return {**there, "failure": "; ".join(failures)}


def survey(asked: Iterable[str]) -> None:
    """Prints a line for each type."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    simulator = SimulatorProcess()
    for kind in asked:
        writer.writerow(row(simulator, kind))
        sys.stdout.flush()
    simulator.close()


def main() -> None:
    survey(sys.argv[1:] or kinds())
