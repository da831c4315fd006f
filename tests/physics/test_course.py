"""The whole run from its step: parts that sum, laws, and what each part comes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from physics.test_memory_laws import ARCHITECTURES, runs
from support.laws import examples

from validator.physics import (
    ZERO_2,
    ZERO_3,
    Architecture,
    DeviceRates,
    RunCounts,
    RunPart,
    RunTime,
    Sharding,
    Workload,
    estimate_run_time,
    estimate_step_time,
)

LAWS = examples(24)
A100 = DeviceRates(312e12, 19.5e12, 2.0e12, 230e9, 25e9, 25e9, 200e9, 96, 5e9)
COURSE = RunCounts(1000, evaluations=3, evaluation_batches=20, saves=2, checkpoint=1e10, tokenized=1e7, tokenizers=16)


def ran(run: tuple[Architecture, Workload], course: RunCounts = COURSE, device: DeviceRates = A100) -> RunTime:
    return estimate_run_time(estimate_step_time(*run, device), course, *run, device)


@LAWS
@given(runs())
def test_parts_sum_to_the_run_inside_its_band(run: tuple[Architecture, Workload]) -> None:
    found = ran(run)
    assert sum(found.terms.values()) == pytest.approx(found.expected)
    assert 0 < found.low < found.expected < found.high
    assert set(found.terms) == set(RunPart)


@LAWS
@given(runs())
def test_more_of_anything_never_takes_less_time(run: tuple[Architecture, Workload]) -> None:
    before = ran(run)
    for more in ("steps", "evaluations", "evaluation_batches", "saves", "checkpoint", "tokenized"):
        after = ran(run, COURSE._replace(**{more: 2 * getattr(COURSE, more)}))
        assert after.expected > before.expected, more
    assert ran(run, device=A100._replace(disk=1e10)).expected < before.expected
    assert ran(run, COURSE._replace(tokenizers=32)).expected < before.expected


@LAWS
@given(runs())
def test_an_evaluation_costs_less_than_the_training_it_repeats(run: tuple[Architecture, Workload]) -> None:
    """A forward pass over as many batches as a step has is less than the step."""
    arch, work = run
    work = work._replace(eval_batch=work.micro_batch)
    found = ran((arch, work), COURSE._replace(evaluations=1, evaluation_batches=1000 * work.accumulation))
    assert found.terms[RunPart.EVALUATIONS] < found.terms[RunPart.STEPS]


@pytest.mark.parametrize(
    ("seconds", "saves", "wasted"),
    [(1800, 200, 0.1111), (1800, 180, 0.0), (1799, 900, 0.0), (1e6, 0, 0.0)],
)
def test_time_is_wasted_on_more_than_a_tenth_of_half_an_hour(seconds: float, saves: float, wasted: float) -> None:
    run = RunTime(0.0, seconds, 2 * seconds, {RunPart.STEPS: seconds - saves, RunPart.SAVES: saves} if saves else {})
    assert run.wasted_on(RunPart.SAVES) == pytest.approx(wasted, abs=1e-4)


def test_what_a_run_does_not_do_takes_no_time() -> None:
    assert set(ran((ARCHITECTURES[0], Workload()), RunCounts(10)).terms) == {RunPart.STARTING, RunPart.STEPS}


@pytest.mark.parametrize(
    ("sharding", "nodes"),
    [(Sharding(4, 8, ZERO_3), 4), (Sharding(4, 8), 1), (Sharding(1, 8, ZERO_2), 1)],
)
def test_nodes_write_a_checkpoint_together_where_each_holds_a_part(sharding: Sharding, nodes: int) -> None:
    found, alone = (ran((ARCHITECTURES[0], Workload(sharding=each))) for each in (sharding, Sharding()))
    assert found.terms[RunPart.SAVES] == pytest.approx(alone.terms[RunPart.SAVES] / nodes)


@pytest.mark.parametrize("part", RunPart)
def test_every_part_has_words(part: RunPart) -> None:
    assert len(part.meaning.split()) > 2
    assert part.meaning[0].islower()
