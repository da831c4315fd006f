"""The closed form against every recorded run of the simulator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import grid

from validator.memory import parameters, trainable_parameters

ROWS = grid.recorded()


def test_the_record_covers_the_models_and_methods() -> None:
    assert len(ROWS) >= 300
    assert {row["model"] for row in ROWS} == set(grid.MODELS)
    assert {row["method"] for row in ROWS} == {"full", "freeze", "lora", "qlora4", "dora", "oft"}


@pytest.mark.parametrize("method", ["full", "freeze", "lora", "qlora4", "dora", "oft"])
def test_predicted_peaks_are_the_simulated_ones(method: str) -> None:
    errors = [abs(error) for pairs in grid.errors().values() for error, row in pairs if row["method"] == method]
    assert sorted(errors)[len(errors) // 2] < 0.01
    assert max(errors) < 0.02


@pytest.mark.parametrize("model", grid.MODELS)
def test_recorded_parameter_counts_are_the_derived_ones(model: str) -> None:
    arch = grid.architecture(model)
    for row in (row for row in ROWS if row["model"] == model):
        trained = trainable_parameters(arch, grid.workload(row))
        assert int(row["trainable"]) == trained
        if row["method"] in ("full", "freeze"):
            assert int(row["parameters"]) == parameters(arch)
        elif row["method"] != "qlora4":
            assert int(row["parameters"]) == parameters(arch) + trained
