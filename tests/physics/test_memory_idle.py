"""Layers that are loaded and never run: what they weigh, and what trains of them."""

from __future__ import annotations

import pytest

from validator.physics import (
    FSDP_FULL_SHARD,
    ZERO_0,
    Adapter,
    Architecture,
    AttentionShape,
    FeedForwardShape,
    Workload,
    estimate_device_memory,
    linear_roles,
    parameter_count,
)
from validator.physics import trainable_parameter_count as trained
from validator.physics.estimate import DeviceTerm
from validator.physics.workload import Sharding

PLAIN = Architecture(64, 3, 131, AttentionShape(4, 2, 16, qkv_bias=True), FeedForwardShape(96))
LAYER = 64 * (64 + 32 + 32 + 64 + 3 * 96) + 64 + 32 + 32 + 2 * 64
IDLE = PLAIN._replace(mtp_layers=2)
MORE = 2 * (LAYER + 2 * 64 * 64 + 3 * 64)
FULL = Workload(method="full", precision="pure")


def test_they_are_layers_that_join_what_they_read() -> None:
    assert parameter_count(IDLE) - parameter_count(PLAIN) == MORE


def test_all_linear_layers_are_theirs_too() -> None:
    assert linear_roles(IDLE) == (*linear_roles(PLAIN), "joined")
    work = Workload(adapter=Adapter(8, linear_roles(IDLE)))
    inside = (trained(PLAIN, work) // 3 + 8 * 3 * 64) * 2
    assert trained(IDLE, work) - trained(PLAIN, work) == inside


@pytest.mark.parametrize(
    ("sharding", "more"),
    [(Sharding(), 0), (Sharding(strategy=ZERO_0), MORE), (Sharding(strategy=FSDP_FULL_SHARD), MORE)],
)
def test_only_what_keeps_states_of_all_parameters_trains_them(sharding: Sharding, more: int) -> None:
    work = FULL._replace(sharding=sharding)
    assert trained(IDLE, work) - trained(PLAIN, work) == more


@pytest.mark.parametrize("precision", ["amp", "pure"])
def test_weights_that_get_no_gradient_are_as_wide_as_the_others(precision: str) -> None:
    work = FULL._replace(precision=precision)  # type: ignore[arg-type]
    more, less = (estimate_device_memory(arch, work).terms for arch in (IDLE, PLAIN))
    assert more[DeviceTerm.WEIGHTS] - less[DeviceTerm.WEIGHTS] == {"amp": 4.0, "pure": 2.0}[precision] * MORE
    assert more[DeviceTerm.OPTIMIZER] == less[DeviceTerm.OPTIMIZER]
