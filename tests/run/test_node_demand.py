"""CPU cores and shared memory of a node: `doctor` compares the same numbers that `submit` asks for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from validator.recipe.recipe_file import load_with_overrides
from validator.run import node_demand
from validator.run.settings import RunSettings, resolve
from validator.submit.cluster_job import build_cluster_job
from validator.submit.site_file import Site

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECIPES.parent)


def job(name: str, *overrides: str, machine: str = "8xa100-80g") -> RunSettings:
    return resolve(load_with_overrides(str(RECIPES / f"{name}.yaml"), overrides), machine)


@pytest.mark.parametrize(
    ("overrides", "training", "requested"),
    [
        (("dataloader_num_workers=0", "preprocessing_num_workers=1"), 16, 16),
        (("dataloader_num_workers=4", "preprocessing_num_workers=1"), 48, 48),
        # Tokenizers are asked for; devices do not wait for them while they train.
        (("dataloader_num_workers=0", "preprocessing_num_workers=64"), 16, 64),
        # Half of the cores of the devices' usual server update the weights.
        (("dataloader_num_workers=0", "preprocessing_num_workers=1", "deepspeed=deepspeed/ds_z3_offload.json"), 64, 64),
    ],
)
def test_cores(overrides: tuple[str, ...], training: int, requested: int) -> None:
    run = job("qwen3-8b-a100-full", *overrides)
    assert run.machine
    assert node_demand.training_cpus(run, 8) == training
    assert build_cluster_job(run, Site()).cpus == requested


@pytest.mark.parametrize(
    ("machine", "overrides", "enough_mib"),
    [
        ("1xa100-80g", ("dataloader_num_workers=0",), 0),
        ("8xa100-80g", ("dataloader_num_workers=0",), 504),  # 63 MiB for each device: NCCL
        ("8xascend-910b-64g", ("dataloader_num_workers=0",), 0),
        # 16 workers with 2 batches of 256 sequences of 4,096 tokens, 32 bytes each.
        ("1xa100-80g", ("dataloader_num_workers=16", "per_device_train_batch_size=256", "cutoff_len=4096"), 1024),
    ],
)
def test_shared_memory(machine: str, overrides: tuple[str, ...], enough_mib: int) -> None:
    run = job("qwen3-8b-a100-lora", *overrides, machine=machine)
    assert node_demand.shared_memory_mib(run).enough == pytest.approx(enough_mib, abs=0.5)
    assert build_cluster_job(run, Site()).shm_gib == 2 + math.ceil(enough_mib / 1024)
