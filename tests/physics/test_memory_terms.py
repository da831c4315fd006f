"""The table of terms: every row has words, and is used by a moment of some run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from support.every import every

from validator.physics import (
    FSDP_FULL_SHARD,
    ZERO_3,
    Adapter,
    Architecture,
    AttentionShape,
    FeedForwardShape,
    Sharding,
    Tower,
    TowerWorkload,
    Workload,
    disk_usage,
    estimate_device_memory,
    estimate_host_memory,
)
from validator.physics import host_memory as host_side
from validator.physics.architecture import Linear
from validator.physics.estimate import DeviceTerm, DiskTerm, HostTerm, MemoryTerm, SharedTerm
from validator.physics.peaks import PHASES
from validator.physics.training_step import TrainingStep
from validator.physics.workload import Rollout

ROWS: list[MemoryTerm] = [*DeviceTerm, *SharedTerm, *HostTerm, *DiskTerm]
TOWER = Tower(
    640, 8, 8, 80, 2560, (Linear("qkv", 640, 1920), Linear("up", 640, 2560)), 1280, others=9999, input_values=588
)
SMALL = Architecture(
    2048,
    16,
    128256,
    AttentionShape(32, 8, 64),
    FeedForwardShape(8192),
    towers=(TOWER,),
    per_layer_input_width=64,
    per_layer_vocab=1000,
)
MIXTURE = SMALL._replace(ffn=FeedForwardShape(8192, experts=4, expert_width=1024))
OFFLOADED = Sharding(1, 8, ZERO_3, offload_optimizer=True, offload_parameters=True, gather_on_save=True)
PASSED = (TowerWorkload(),)
RUNS = [
    Workload(dataset_tokens=10**6, reference_copies=1, towers=PASSED),
    Workload(adapter=Adapter(dora=True), checkpointing="off", value_head=True, towers=PASSED),
    Workload(method="full", optimizer="adamw_foreach", sharding=Sharding(1, 2), towers=PASSED),
    Workload(
        method="full",
        precision="engine",
        checkpointing="offloaded",
        reference_copies=1,
        sharding=OFFLOADED,
        towers=PASSED,
    ),
    Workload(method="full", towers=(TowerWorkload(1024, trains=True, projector=True),)),
    Workload(rollout=Rollout(64), needs_full_logits=True, sharding=Sharding(1, 2, ZERO_3), towers=PASSED),
    Workload(low_memory_load=False, sharding=Sharding(1, 8, FSDP_FULL_SHARD), towers=PASSED),
]


@every(ROWS)
def test_every_term_has_words(term: MemoryTerm) -> None:
    assert len(term.meaning.split()) > 1
    assert term.meaning[0].islower()
    assert not term.meaning.endswith(".")


@pytest.mark.parametrize("name", sorted({*DeviceTerm} & {*HostTerm}))
def test_a_name_on_both_sides_has_the_same_words(name: str) -> None:
    """A reader sees the name, not the side."""
    device, host = DeviceTerm(name), HostTerm(name)  # type: ignore[call-arg]  # read as a call of __new__, not as a look-up
    assert device.meaning == host.meaning
    assert device.grows_with == host.grows_with


def sized(moments: Iterable[Mapping[Any, float]]) -> set[MemoryTerm]:
    return {term for terms in moments for term, size in terms.items() if size}


def test_every_term_of_a_device_is_one_of_its_moments() -> None:
    used = sized(dict(terms_of(TrainingStep(SMALL, work))) for work in RUNS for terms_of in PHASES.values())
    assert used == {*DeviceTerm}


def test_every_term_of_a_host_is_one_of_its_moments() -> None:
    merged = Workload(experts_merged=True, sharding=Sharding(1, 8, ZERO_3), towers=PASSED)
    runs = [*(TrainingStep(SMALL, work) for work in RUNS), TrainingStep(MIXTURE, merged)]
    used = sized(dict(terms) for run in runs for terms in host_side.host_phases(run).values())
    assert used == {*HostTerm}


def test_every_term_of_the_disk_is_counted() -> None:
    assert sized(dict(disk_usage(SMALL, work, 1, 1, save_optimizer=True)) for work in RUNS) == {*DiskTerm}


@pytest.mark.parametrize("work", RUNS)
def test_an_answer_names_the_terms_of_its_side(work: Workload) -> None:
    assert {type(term) for term in estimate_device_memory(SMALL, work).terms} == {DeviceTerm}
    assert {type(term) for term in estimate_host_memory(SMALL, work).terms} == {HostTerm}
