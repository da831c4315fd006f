"""Ways to train all parameters on one device without AdamW's 16 bytes a parameter: data/savers.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from validator.tables.data import listing
from validator.tables.devices import Device

Setting = bool | int | float | str


class Saver(NamedTuple):
    """An optimizer that saves memory: what a recipe calls it, what it gives up, and the recipe's settings. `bits`: the
    width of the states that bitsandbytes keeps; None for an optimizer that does not need it."""

    title: str
    gives_up: str
    settings: Mapping[str, Setting]
    bits: int | None = None


@cache
def savers() -> Mapping[str, Saver]:
    """All of them by name, the least approximate first."""
    return {name: Saver(**entry) for name, entry in listing("savers").items()}


def run_on(device: Device) -> bool:
    """Whether they run there: on GPUs with bf16."""
    return device.bf16 and device.vendor in ("nvidia", "amd")
