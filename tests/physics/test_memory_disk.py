"""What a run has on disk."""

from __future__ import annotations

import pytest

from validator.physics import (
    FSDP_FULL_SHARD,
    ZERO_STAGES,
    Adapter,
    Architecture,
    AttentionShape,
    FeedForwardShape,
    Sharding,
    Workload,
    disk_usage,
)
from validator.physics.estimate import DiskTerm

SMALL = Architecture(2048, 16, 128256, AttentionShape(32, 8, 64), FeedForwardShape(8192))


def saved(stage: int) -> dict[DiskTerm, float]:
    sharding = Sharding(1, 8, ZERO_STAGES[stage])
    work = Workload(adapter=Adapter(rank=8), sharding=sharding, precision="engine")
    return dict(disk_usage(SMALL, work, 1, 1, save_optimizer=True))


@pytest.mark.parametrize("stage", [1, 2])
def test_a_zero_engine_below_stage_3_writes_the_trained_weights_beside_its_states(stage: int) -> None:
    """Each checkpoint holds the weights once as such (the final ones are another copy), and once in global_step*."""
    weights, states = saved(stage)[DiskTerm.WEIGHTS] / 2, saved(stage)[DiskTerm.OPTIMIZER]
    assert states == saved(3)[DiskTerm.OPTIMIZER] + weights


def test_fsdp_writes_the_trained_weights_beside_its_states() -> None:
    """As accelerate's save_fsdp_model does: a tiny model of 678,656 bytes left a pytorch_model_fsdp.bin of 694,165."""
    plain, spread = (
        dict(disk_usage(SMALL, Workload(adapter=Adapter(rank=8), sharding=sharding), 1, 1, save_optimizer=True))
        for sharding in (Sharding(1, 8), Sharding(1, 8, FSDP_FULL_SHARD))
    )
    assert spread[DiskTerm.OPTIMIZER] == plain[DiskTerm.OPTIMIZER] + plain[DiskTerm.WEIGHTS] / 2


@pytest.mark.parametrize("save_optimizer", [True, False])
def test_the_peak_is_that_of_the_last_save_or_of_the_end(save_optimizer: bool) -> None:
    """While a checkpoint is written a run that keeps two has three; at the end it has two and the final weights."""
    work = Workload(method="full", precision="pure")
    one = disk_usage(SMALL, work, 1, 1, save_optimizer=save_optimizer)
    weights, checkpoint = one[DiskTerm.WEIGHTS] / 2, one[DiskTerm.WEIGHTS] / 2 + one[DiskTerm.OPTIMIZER]
    peaks = {3: max(3 * checkpoint, 2 * checkpoint + weights), 2: 2 * checkpoint + weights}
    for at_once, peak in peaks.items():
        most = disk_usage(SMALL, work, 2, at_once, save_optimizer=save_optimizer)
        assert most[DiskTerm.WEIGHTS] + most[DiskTerm.OPTIMIZER] == pytest.approx(peak)
