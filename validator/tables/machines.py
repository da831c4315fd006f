"""Target machines, as people write them: nodes x devices x device, or the memory of one."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

import re
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.tables.devices import Device, device

_MACHINE = r"(?i)(?:(\d{1,6}) ?[x×*] ?)?(\d{1,6}) ?[x×*] ?(.+)"


class Machine(NamedTuple):
    """`nodes` servers with `devices` accelerators each. `note` says which device a short form was taken for. `network`
    joins nodes, `price` is that of a device and hour; both as they are written, and None where nobody says."""

    nodes: int
    devices: int
    device: Device
    host_ram_gib: float | None = None
    note: str | None = None
    network: str | None = None
    price: str | float | None = None

    @property
    def world(self) -> int:
        return self.nodes * self.devices

    def __str__(self) -> str:
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.devices}x{self.device.id}"


def machine(text: str, host_ram_gib: float | None = None) -> Machine:
    """`2x8xa100-80g`, `8xascend-910b-64g`, `1x48g`: nodes x devices x device. Raises RecipeError when malformed."""
    match = re.fullmatch(_MACHINE, text.strip())
    if not match:
        form = "[nodes x] devices x device, such as 8xascend-910b-64g, 2x8xa100-80g or, by its memory, 1x48g"
        raise RecipeError(f"machine `{text}` is not of the form {form}{_one(text)}")
    nodes, devices = int(match[1] or 1), int(match[2])
    if not 1 <= nodes <= 4096 or not 1 <= devices <= 64:
        raise RecipeError(f"machine `{text}`: 1 to 4096 nodes of 1 to 64 devices are possible")
    one, note = device(match[3])
    if one.shared_memory and one.usable_gib:
        host_ram_gib = min(host_ram_gib or one.usable_gib, one.usable_gib)
        one = one._replace(usable_gib=host_ram_gib)
    return Machine(nodes, devices, one, host_ram_gib, note)


def _one(text: str) -> str:
    """`; one is 1xa100-80g` for the name of a device without a number, else an empty text."""
    try:
        return f"; one is 1x{device(text)[0].id}"
    except RecipeError:
        return ""
