"""Machines as people write them: nodes x devices x device."""

from __future__ import annotations

import pytest

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
    ["", "a100", "8", "8x", "0xa100", "65xa100", "5000x8xa100", "x8xa100", "8xa1000", "-1xa100", "48g", "1x0g", "1x48",
     "1x-48g", "1x48.5g", "1x99999g", "1xby-memory",
     "9" * 5000 + "xa100", "8x" + "a" * 5000],
)  # fmt: skip
def test_malformed_machine(text: str) -> None:
    with pytest.raises(RecipeError):
        parse_machine(text)


@pytest.mark.parametrize(("text", "one"), [("a100", "1xa100-80g"), ("48g", "1x48g"), ("RTX 4090 ", "1xrtx-4090")])
def test_a_device_without_a_number_is_told_how_one_is_written(text: str, one: str) -> None:
    with pytest.raises(RecipeError, match=f"; one is {one}$"):
        parse_machine(text)
