"""How long padded batches become, against draws of random samples."""

from __future__ import annotations

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import laws

from validator.run.sample_lengths import expected_longest, slowest_batch_length, spread_lengths

LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=40)


@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_the_longest_of_a_draw_is_that_of_many_draws(count: int) -> None:
    chance, lengths = laws.chance(count), [10, 20, 40, 80, 160, 320, 640, 1280]
    drawn = mean(max(chance.choices(lengths, k=count)) for _ in range(20_000))
    assert expected_longest(lengths, count) == pytest.approx(drawn, rel=0.03)


@given(LENGTHS, st.integers(1, 16), st.integers(1, 64), st.integers(1, 32))
def test_batches_are_between_the_mean_and_the_longest(lengths: list[int], micro: int, devices: int, waits: int) -> None:
    found = slowest_batch_length(lengths, micro, devices, waits)
    assert sum(lengths) / len(lengths) * (1 - 1e-9) <= found <= max(lengths) * (1 + 1e-9)
    assert found <= slowest_batch_length(lengths, micro + 1, devices, waits) * (1 + 1e-9)
    assert found <= slowest_batch_length(lengths, micro, devices + 1, waits) * (1 + 1e-9)
    assert found >= slowest_batch_length(lengths, micro, devices, waits + 1) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("typical", "longest", "told", "most"),
    [
        (500, 2048, False, 2048),
        (500, 2048, True, 2048),
        (500, 520, True, 520),
        (500, 100_000, True, 5000),  # a single long sample says little of the others
        (2048, 2048, True, 2048),
        (3000, 2048, True, 2048),
    ],
)
def test_typical_samples_spread_up_to_the_longest(typical: float, longest: float, told: bool, most: float) -> None:
    lengths = spread_lengths(typical, longest, told)
    assert max(lengths) <= most
    assert mean(lengths) == pytest.approx(min(typical, longest), rel=0.06)
