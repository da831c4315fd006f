"""Machines as people write them: nodes x devices x device."""

from __future__ import annotations

import pytest
from support.every import every

from validator.errors import RecipeError
from validator.knowledge.devices import parse_machine


@pytest.mark.parametrize(
    ("text", "nodes", "devices", "device"),
    [
        ("8xascend-910b-64g", 1, 8, "ascend-910b-64g"), ("2x8xa100-80g", 2, 8, "a100-80g"), ("1xcpu", 1, 1, "cpu"),
        ("8X4090", 1, 8, "rtx-4090"), (" 2xrtx-3090 ", 1, 2, "rtx-3090"),
        ("1x48g", 1, 1, "48g"), ("2x8x80GB", 2, 8, "80g"), ("4 x 24 GiB", 1, 4, "24g"),
    ],
)  # fmt: skip
def test_machine(text: str, nodes: int, devices: int, device: str) -> None:
    machine = parse_machine(text)
    assert (machine.nodes, machine.devices, machine.device.id) == (nodes, devices, device)
    assert machine.world == nodes * devices
    assert parse_machine(str(machine)) == machine


@pytest.mark.parametrize(
    "text",
    ["", "x", "8", "8x", "0xa100", "65xa100", "5000x8xa100", "x8xa100", "8xa1000", "-1xa100", "1x0g", "1x48", "48",
     "eight A100", "2x3090ti", "4060ti", "H100 NVL", "A100 60GB", "0卡910B", "99卡910B",
     "1x-48g", "1x48.5g", "1x99999g", "1xby-memory",
     "9" * 5000 + "xa100", "8x" + "a" * 5000],
)  # fmt: skip
def test_malformed_machine(text: str) -> None:
    with pytest.raises(RecipeError):
        parse_machine(text)


@every(
    [
        ("rtx-3060", "1xrtx-3060"), ("3060", "1xrtx-3060"), ("a100", "1xa100-80g"), ("RTX 4090 ", "1xrtx-4090"),
        ("48g", "1x48g"), ("24GB", "1x24g"), ("80 gb", "1x80g"), ("H100 80GB", "1xh100-80g"), ("cpu", "1xcpu"),
        ("mi300x", "1xmi300x-192g"), ("dgx spark", "1xgb10-128g"), ("4090 D", "1xrtx-4090d"), ("a10g", "1xa10-24g"),
        ("NVIDIA GeForce RTX 4090", "1xrtx-4090"), ("RTX_4090", "1xrtx-4090"), ("rtx3060 12gb", "1xrtx-3060"),
        ("Tesla V100-SXM2-32GB", "1xv100-32g"), ("V100S 32GB", "1xv100-32g"), ("H20 141GB", "1xh20-141g"),
        ("4090 48G", "1xrtx-4090-48g"), ("huawei ascend 910b 64gb", "1xascend-910b-64g"), ("l40s 48gb", "1xl40s-48g"),
        ("RTX PRO 6000 Blackwell Server Edition", "1xrtx-pro-6000-96g"), ("昇腾910B", "1xascend-910b-64g"),
        ("8xH100-SXM", "8xh100-80g"), ("8xH100 SXM5 80GB", "8xh100-80g"), ("8*A100-SXM4-80GB", "8xa100-80g"),
        ("8xA100(80G)", "8xa100-80g"), ("8 x 910B", "8xascend-910b-64g"), ("2*4090", "2xrtx-4090"),
        ("8×昇腾910B", "8xascend-910b-64g"), ("8 H100", "8xh100-80g"), ("8H100", "8xh100-80g"),
        ("8 gpus a100", "8xa100-80g"), ("4090*2", "2xrtx-4090"), ("4090x8", "8xrtx-4090"), ("H100 x8", "8xh100-80g"),
        ("MI300X x8", "8xmi300x-192g"), ("a100 8 gpus", "8xa100-80g"), ("8卡910B", "8xascend-910b-64g"),
        ("Atlas 800T A2", "8xascend-910b-64g"), ("2 x Atlas 800T A2", "2x8xascend-910b-64g"),
        ("Huawei Atlas 800T-A2", "8xascend-910b-64g"), ("4台Atlas 800T A2", "4x8xascend-910b-64g"),
        ("atlas-800i-a2", "8xascend-910b-64g"),
        ("910B 8卡", "8xascend-910b-64g"), ("8张4090", "8xrtx-4090"), ("4090双卡", "2xrtx-4090"),
        ("单卡 3090", "1xrtx-3090"), ("2机8卡910B", "2x8xascend-910b-64g"), ("两台8卡A100", "2x8xa100-80g"),
        ("2 nodes x 8 H100", "2x8xh100-80g"), ("2 nodes of 8xA100-80G", "2x8xa100-80g"), ("DGX H100", "8xh100-80g"),
    ],
)  # fmt: skip
def test_machines_as_people_write_them(text: str, machine: str) -> None:
    assert str(parse_machine(text)) == machine


@pytest.mark.parametrize(
    ("maker", "texts"),
    [
        ("Apple", ["m3 max 48gb", "1xm1", "Apple M2", "M2 Ultra 192GB", "m4pro", "macbook pro", "Mac Studio", "mps"]),
        ("Intel", ["8xgaudi2", "gaudi 3", "Intel Arc A770 16GB", "b580", "2xarc-b60", "max 1550", "habana gaudi"]),
    ],
)
def test_a_device_of_another_maker_is_not_taken_for_one_of_its_memory(maker: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(RecipeError, match=f"is of {maker}, and runs are judged for NVIDIA, AMD and Ascend") as err:
            parse_machine(text)
        assert "such as 1x24g for 24 GB" in str(err.value)
        assert "1x48g" not in str(err.value)


@pytest.mark.parametrize("text", ["m40", "m60", "m2000", "m10", "a200", "b400"])
def test_old_cards_are_no_macs(text: str) -> None:
    with pytest.raises(RecipeError, match="by its memory"):
        parse_machine(text)


def test_a_pcie_card_that_is_taken_as_the_faster_one_is_told() -> None:
    assert "a PCIe card is slower" in str(parse_machine("8xA100-PCIE-40GB").note)
    assert parse_machine("8xA100-SXM4-40GB").note is None
    assert parse_machine("4xL40S PCIe").note is None
