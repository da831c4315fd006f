"""The closed form against every recorded run of the simulator."""

from __future__ import annotations

import pytest
from simulation import grid
from support.every import every

from validator.physics import parameter_count, trainable_parameter_count

ROWS = grid.recorded()
METHODS = ["full", "freeze", "lora", "qlora4", "qlora8", "dora", "oft"]


def test_the_record_covers_the_models_and_methods() -> None:
    assert len(ROWS) >= 500
    models = {row["model"] for row in ROWS}
    assert models <= set(grid.MODELS)
    assert len(models) >= 20
    assert {row["method"] for row in ROWS} == set(METHODS)
    assert {row["stage"] for row in ROWS} >= {"sft", "rm", "dpo", "orpo", "simpo", "kto"}
    assert {(row["padded"], row["liger"]) for row in ROWS} >= {("False", "False"), ("True", "False"), ("False", "True")}


@pytest.mark.sample(one_in=3, whole_for=["validator/physics/*"])
@pytest.mark.parametrize("method", METHODS)
def test_predicted_peaks_are_the_simulated_ones(method: str) -> None:
    errors = [abs(error) for pairs in grid.errors().values() for error, row in pairs if row["method"] == method]
    assert sorted(errors)[len(errors) // 2] < 0.01
    assert max(errors) < 0.02


@every(sorted({row["model"] for row in ROWS}))
def test_recorded_parameter_counts_are_the_derived_ones(model: str) -> None:
    arch = grid.architecture(model)
    for row in (row for row in ROWS if row["model"] == model):
        trained = trainable_parameter_count(arch, grid.workload(row))
        value_head = arch.hidden + 1 if row["stage"] == "rm" else 0
        assert int(row["trainable"]) == trained + value_head
        if row["method"] in ("full", "freeze"):
            assert int(row["parameters"]) == parameter_count(arch) + value_head
        elif not row["method"].startswith("qlora"):
            assert int(row["parameters"]) == parameter_count(arch) + trained + value_head
