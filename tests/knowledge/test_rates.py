"""What the time model takes of a device and its server."""

from __future__ import annotations

import pytest
from support.every import every

from validator.knowledge import devices


@pytest.mark.parametrize(
    ("name", "count", "link", "host_link", "cores", "switched"),
    [
        ("a100-80g", 8, 234e9, 25e9, 128, True),
        ("a100-80g", 1, 234e9, 25e9, 16, True),
        ("rtx-4090", 2, 8e9, 25e9, 16, False),  # through main memory
        ("l40s-48g", 2, 9.6e9, 25e9, 24, False),  # from card to card
        ("ascend-910b-64g", 8, 125e9, 25e9, 192, True),
        ("ascend-910b-64g", 2, 18e9, 25e9, 48, True),  # one of the seven links of a mesh
        ("ascend-910a-32g", 8, 25e9, 25e9, 192, True),  # no figure for its link is published
        ("v100-32g", 16, 117e9, 12.5e9, 32, True),  # more than the usual server has
    ],
)
def test_rates_are_those_of_the_table(
    name: str, count: int, link: float, host_link: float, cores: int, switched: bool
) -> None:
    found = devices.find_device(name)[0].rates(count, network=25e9)
    assert found
    assert (found.link, found.host_link) == pytest.approx((link, host_link), rel=0.03)
    assert (found.cores, found.nvlink_switch) == (cores, switched)
    assert found.network == 25e9


def test_half_precision_is_that_which_the_device_trains_in() -> None:
    v100, a100 = (devices.find_device(name)[0].rates(1) for name in ("v100-32g", "a100-80g"))
    assert v100
    assert a100
    assert (v100.half_flops, v100.fp32_flops) == (125e12, 15.7e12)
    assert (a100.half_flops, a100.fp32_flops) == (312e12, 19.5e12)


@pytest.mark.parametrize("name", ["cpu", "48g", "gb10-128g"])
def test_no_rates_where_none_are_published(name: str) -> None:
    assert devices.find_device(name)[0].rates(1) is None


@every(devices.device_ids())
def test_all_other_devices_have_rates(name: str) -> None:
    found = devices.find_device(name)[0].rates(1)
    assert (found is None) == (name in ("cpu", "by-memory", "gb10-128g"))


@pytest.mark.parametrize(
    ("key", "count", "name"),
    [
        ("a100-80g", 8, "8xinfiniband-200g"),
        ("a100-80g", 2, "ethernet-25g"),
        ("ascend-910b-64g", 1, "roce-200g"),
        ("rtx-4090", 1, "ethernet-10g"),
        ("v100-32g", 8, "ethernet-25g"),
    ],
)
def test_servers_stand_in_a_network_that_is_known(key: str, count: int, name: str) -> None:
    assert devices.usual_network(key, count) == name
    assert devices.parse_network(name).rate > 0
