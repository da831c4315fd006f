"""What a run leaves on disk."""

from __future__ import annotations

import pytest

from validator.memory import Adapter, Architecture, Attn, Ffn, Sharding, Workload, disk
from validator.memory.terms import Disk

SMALL = Architecture(2048, 16, 128256, Attn(32, 8, 64), Ffn(8192))


def saved(stage: int) -> dict[Disk, float]:
    sharding = Sharding(1, 8, stage, engine=True)
    work = Workload(adapter=Adapter(rank=8), sharding=sharding, precision="engine")
    return dict(disk(SMALL, work, 1, save_optimizer=True))


@pytest.mark.parametrize("stage", [1, 2])
def test_a_zero_engine_below_stage_3_writes_the_trained_weights_beside_its_states(stage: int) -> None:
    """Each checkpoint holds the weights once as such (the final ones are another copy), and once in global_step*."""
    weights, states = saved(stage)[Disk.WEIGHTS] / 2, saved(stage)[Disk.OPTIMIZER]
    assert states == saved(3)[Disk.OPTIMIZER] + weights
