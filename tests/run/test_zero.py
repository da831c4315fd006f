"""DeepSpeed files: read or explained, and how they spread states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from validator.physics import ZERO_STAGES
from validator.run.deepspeed import DeepSpeedConfig, deepspeed_sharding, read_deepspeed


def test_reads_what_llamafactory_takes(tmp_path: Path) -> None:
    """A mapping in the recipe, a JSON text, a path."""
    config = {"zero_optimization": {"stage": 3}}
    path = tmp_path / "z.json"
    path.write_text(json.dumps(config))
    for value, where in [(config, None), (json.dumps(config), None), (str(path), str(path))]:
        found = read_deepspeed(value, where)
        assert found.problem is None
        assert found.stage == 3


@pytest.mark.parametrize("text", ["{", "[1]", "", "1", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\0"])
def test_what_cannot_be_read_is_a_problem_and_no_exception(text: str, tmp_path: Path) -> None:
    path = tmp_path / "z.json"
    path.write_text(text)
    for found in (
        read_deepspeed(str(path), str(path)),
        read_deepspeed("{" + text, None),
        read_deepspeed(None, str(tmp_path)),
    ):
        assert found.problem
        assert found.stage == 0


@pytest.mark.parametrize(
    ("config", "stage", "optimizer", "parameters", "pinned"),
    [
        ({}, 0, False, False, False),
        ({"zero_optimization": {"stage": 2}}, 2, False, False, False),
        ({"zero_optimization": {"stage": "3"}}, 3, False, False, False),
        ({"zero_optimization": {"stage": "9" * 5000}}, 0, False, False, False),
        ({"zero_optimization": {"stage": 10**30}}, 0, False, False, False),
        ({"zero_optimization": {"stage": 10**9}}, 0, False, False, False),
        ({"zero_optimization": {"stage": -(10**9)}}, 0, False, False, False),
        ({1: {2: 3}, "zero_optimization": {None: 1, "stage": 2}}, 2, False, False, False),
        ({"zero_optimization": {"stage": 3.0}}, 3, False, False, False),
        ({"zero_optimization": {"stage": 2.5}}, 0, False, False, False),
        ({"zero_optimization": {"stage": "auto"}}, 2, False, False, False),
        ({"zero_optimization": {"stage": True}}, 0, False, False, False),
        ({"zero_optimization": 3}, 0, False, False, False),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, 2, True, False, False),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}}, 2, False, False, False),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": True}}, 2, False, False, False),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True},
                                "offload_param": {"device": "nvme"}}}, 3, True, True, True),
        # Parameters can be offloaded at stage 3 only.
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, 2, False, False, False),
    ],
)  # fmt: skip
def test_stage_and_offload(config: dict[str, Any], stage: int, optimizer: bool, parameters: bool, pinned: bool) -> None:
    found = deepspeed_sharding(DeepSpeedConfig(config), 2, 4, 1024)
    assert (found.strategy, found.offload_optimizer, found.offload_parameters) == (
        ZERO_STAGES[stage],
        optimizer,
        parameters,
    )
    assert found.pin_memory == pinned
    assert (found.nodes, found.devices_per_node) == (2, 4)


def test_auto_sizes_follow_the_model_at_stage_3_as_in_transformers() -> None:
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    block = {"stage": 3, **dict.fromkeys(names, "auto")}
    found = deepspeed_sharding(DeepSpeedConfig({"zero_optimization": block}), 1, 8, 5120)
    assert found.reduce_bucket == 5120 * 5120
    assert found.prefetch_bucket == int(0.9 * 5120 * 5120)
    assert found.persistence_threshold == 10 * 5120
    fixed = deepspeed_sharding(
        DeepSpeedConfig({"zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8}}), 1, 8, 5120
    )
    assert fixed.reduce_bucket == 200_000_000


@pytest.mark.slow
def test_transformers_resolves_the_same_sizes() -> None:
    """transformers' own HfTrainerDeepSpeedConfig on the same JSON."""
    deepspeed = pytest.importorskip("transformers.integrations.deepspeed")

    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    config = {"zero_optimization": {"stage": 3, **dict.fromkeys(names, "auto")}}
    real = deepspeed.HfTrainerDeepSpeedConfig(json.loads(json.dumps(config)))

    class Model:
        class config:  # noqa: N801
            hidden_size = 3584

    class Arguments:
        max_steps = 1
        learning_rate = 1.0

        def get_warmup_steps(self, _steps: int) -> int:
            return 0

    real.trainer_config_finalize(Arguments(), Model(), 1)
    theirs = real.config["zero_optimization"]
    ours = deepspeed_sharding(DeepSpeedConfig(config), 1, 8, 3584)
    assert [theirs[name] for name in names] == [ours.reduce_bucket, ours.prefetch_bucket, ours.persistence_threshold]


@pytest.mark.parametrize("value", [".inf", True, None, "x", [1]])
def test_sizes_that_are_no_numbers_are_the_default(value: object) -> None:
    block = {"stage": 3, "reduce_bucket_size": float("inf") if value == ".inf" else value}
    assert deepspeed_sharding(DeepSpeedConfig({"zero_optimization": block}), 1, 1, 64).reduce_bucket == 500_000_000
