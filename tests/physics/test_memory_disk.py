"""What a run has on disk."""

from __future__ import annotations

import pytest

from validator.memory import Adapter, Architecture, Attn, Ffn, Sharding, Workload, disk
from validator.memory.terms import Disk

SMALL = Architecture(2048, 16, 128256, Attn(32, 8, 64), Ffn(8192))


def saved(stage: int) -> dict[Disk, float]:
    sharding = Sharding(1, 8, stage, engine=True)
    work = Workload(adapter=Adapter(rank=8), sharding=sharding, precision="engine")
    return dict(disk(SMALL, work, 1, 1, save_optimizer=True))


@pytest.mark.parametrize("stage", [1, 2])
def test_a_zero_engine_below_stage_3_writes_the_trained_weights_beside_its_states(stage: int) -> None:
    """Each checkpoint holds the weights once as such (the final ones are another copy), and once in global_step*."""
    weights, states = saved(stage)[Disk.WEIGHTS] / 2, saved(stage)[Disk.OPTIMIZER]
    assert states == saved(3)[Disk.OPTIMIZER] + weights


def test_fsdp_writes_the_trained_weights_beside_its_states() -> None:
    """As accelerate's save_fsdp_model does: a tiny model of 678,656 bytes left a pytorch_model_fsdp.bin of 694,165."""
    plain, spread = (
        dict(disk(SMALL, Workload(adapter=Adapter(rank=8), sharding=sharding), 1, 1, save_optimizer=True))
        for sharding in (Sharding(1, 8), Sharding(1, 8, 3, fsdp=True))
    )
    assert spread[Disk.OPTIMIZER] == plain[Disk.OPTIMIZER] + plain[Disk.WEIGHTS] / 2


@pytest.mark.parametrize("save_optimizer", [True, False])
def test_the_peak_is_that_of_the_last_save_or_of_the_end(save_optimizer: bool) -> None:
    """While a checkpoint is written a run that keeps two has three; at the end it has two and the final weights."""
    work = Workload(method="full", precision="pure")
    one = disk(SMALL, work, 1, 1, save_optimizer=save_optimizer)
    weights, checkpoint = one[Disk.WEIGHTS] / 2, one[Disk.WEIGHTS] / 2 + one[Disk.OPTIMIZER]
    peaks = {3: max(3 * checkpoint, 2 * checkpoint + weights), 2: 2 * checkpoint + weights}
    for at_once, peak in peaks.items():
        most = disk(SMALL, work, 2, at_once, save_optimizer=save_optimizer)
        assert most[Disk.WEIGHTS] + most[Disk.OPTIMIZER] == pytest.approx(peak)
