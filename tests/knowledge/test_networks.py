"""What collectives reach on links and networks, against what was measured."""

from __future__ import annotations

import pytest

from validator.errors import RecipeError
from validator.knowledge.devices import link_rate, network_names, parse_network
from validator.knowledge.tables import yaml_table

KINDS = list(yaml_table("networks"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_is_whole(kind: str) -> None:
    entry = yaml_table("networks")[kind]
    assert set(entry) >= {"kind", "attained", "evidence", "source"}
    assert set(entry) <= {"kind", "attained", "evidence", "source", "gb_s", "mesh", "shared"}
    assert entry["kind"] in {"link", "host", "network"}
    assert entry["evidence"] in {"good", "thin"}
    assert 0 < entry["attained"] < 1
    assert ("gb_s" in entry) == (entry["kind"] == "network")
    assert all(address.startswith("http") for address in entry["source"])


MEASURED = [
    ("nvlink", 600, 8, 235),  # A100 (stas00/ml-engineering, network/README.md)
    ("nvlink", 400, 4, 156),  # A800
    ("nvlink", 900, 8, 370),  # H100 (NVIDIA/nccl-tests#212)
    ("hccs", 392, 8, 126), ("hccs", 392, 2, 18),  # 910B: HCCS joins each to each
    ("infinity-fabric", 896, 8, 313), ("infinity-fabric", 896, 2, 47.7),  # MI300X
]  # fmt: skip


@pytest.mark.parametrize(("kind", "gb_s", "devices", "measured"), MEASURED)
def test_links_reach_what_was_measured(kind: str, gb_s: float, devices: int, measured: float) -> None:
    assert link_rate({"type": kind, "gb_s": gb_s}, devices, 8) == pytest.approx(measured * 1e9, rel=0.08)


@pytest.mark.parametrize(
    ("gb_s", "measured"),
    [(126, 28), (126, 35), (64, 14), (64, 3), (32, 6)],  # RTX 5090 on eight and on four, 4090, 3090, 2080 Ti
)
def test_links_through_main_memory_are_within_three_times_of_what_was_measured(gb_s: float, measured: float) -> None:
    ours = link_rate({"type": "pcie-host", "gb_s": gb_s}, 2, 8)
    assert 1 / 3 < measured * 1e9 / ours < 3


@pytest.mark.parametrize(
    ("text", "name", "measured"),
    [
        ("infiniband-200g", "infiniband-200g", 21.2),
        ("4xinfiniband-200g", "4xinfiniband-200g", 84.8),  # NVIDIA/nccl-tests#119
        ("8 x RoCE-100g", "8xroce-100g", 75),  # NVIDIA/nccl#495
        ("Ethernet 100g", "ethernet-100g", 5),  # NVIDIA/nccl#450
    ],
)
def test_a_network_by_name_and_number_of_adapters(text: str, name: str, measured: float) -> None:
    network = parse_network(text)
    assert network.name == name
    assert network.rate == pytest.approx(measured * 1e9, rel=0.02)


@pytest.mark.parametrize("text", ["", "token-ring", "0xinfiniband-200g", "nvlink", "x"])
def test_an_unknown_network_is_refused_with_those_known(text: str) -> None:
    with pytest.raises(RecipeError, match="known are ethernet-1g, "):
        parse_network(text)


def test_faster_kinds_of_one_family_are_faster() -> None:
    for family in ("ethernet", "roce", "infiniband"):
        rates = [parse_network(name).rate for name in network_names() if name.startswith(family)]
        assert rates == sorted(rates)
