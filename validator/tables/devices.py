"""Accelerators of data/devices.yaml, by id, short form, size of memory, or what the driver's tool prints."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from validator.diagnostic import RecipeError
from validator.memory import Runtime
from validator.tables.data import listing

if TYPE_CHECKING:
    from validator.speed import Device as Rates

_BY_MEMORY = "by-memory"
_SIZE = r"([1-9]\d{0,3})-?g(?:i?b)?"


class Device(NamedTuple):
    """An accelerator. GiB are 2^30 bytes; `usable_gib` is what all processes can allocate; None: not known. Where the
    vendor is unknown, so are the abilities, which are assumed; the memory alone is known. `shared_memory`: device and
    host share `usable_gib`."""

    id: str
    name: str
    vendor: Literal["nvidia", "amd", "ascend", "cpu", "unknown"]
    memory_gib: float | None
    usable_gib: float | None
    context_gib: float | None
    capability: float | None
    bf16: bool
    fp8: bool
    flash_attention: bool
    bitsandbytes: tuple[int, ...]
    server_devices: int
    server_ram_gib: float | None
    watts: float | None
    common: bool
    shared_memory: bool
    evidence: Literal["good", "thin"]
    notes: Mapping[str, str]

    def runtime(self, expandable: bool) -> Runtime:
        """What this kind of device adds to live tensors, for the memory model."""
        return Runtime(
            context_gib=0.5 if self.context_gib is None else self.context_gib,
            evidence=self.evidence if self.vendor == "nvidia" else "thin",
            expandable_segments=expandable,
            # Short of shared memory the system hangs instead of failing an allocation, so no cached block is given back
            # (github.com/pytorch/pytorch/issues/174358).
            capacity_gib=None if self.shared_memory else self.usable_gib,
        )

    def rates(self, devices: int, network: float = 0.0) -> "Rates | None":
        """What one of so many in a node does in a second, for the time model; `network`: bytes between nodes, of one
        node. None where no rate is published."""
        from validator.tables import rates  # which no check of memory waits for

        return rates.rates(self.id, devices, network)


def device_ids() -> list[str]:
    """Ids of all known devices, in the table's order."""
    return [key for key in listing("devices") if key != _BY_MEMORY]


@lru_cache(maxsize=256)
def device(name: str) -> tuple[Device, str | None]:
    """A device by id, short form or size of its memory (`48g`), and a note when a short form stands for one of several.

    Raises RecipeError when it is not known."""
    wanted = name.strip().lower().replace(" ", "-")
    devices = listing("devices")
    if wanted in device_ids():
        return _device(wanted), None
    if size := re.fullmatch(_SIZE, wanted):
        return _by_memory(int(size[1])), None
    claims = [key for key in devices.mention(wanted) if wanted in aliases(key)]
    default = [key for key in claims if wanted in (devices[key].get("default_for") or [])]
    if not claims and (sized := _sized(wanted)):
        return _device(sized), None
    if not claims:
        raise RecipeError(f"device `{name}` is not known; {_near(wanted)} any other goes by its memory, such as 1x48g")
    taken = (default or claims)[0]
    others = [key for key in claims if key != taken]
    note = f"`{name}` is taken as {taken}" + (f", not {', '.join(others)}" if others else "")
    return _device(taken), note if others else None


def recognised(product: str, memory_gib: float | None) -> str | None:
    """Id of the device that the driver's tool prints as `product` with this total memory, GiB; None where it is not
    known. A name can stand for cards of several sizes, of which the nearest is meant. It may have a little more memory
    than its entry, as error correction, which takes a sixteenth, can be off; with less, another entry must fit."""
    printed = _plain(product)
    devices = listing("devices")
    keys = [key for key in devices.mention(printed) if printed in map(_plain, devices[key]["products"])]
    if memory_gib is None:
        return keys[0] if len(keys) == 1 else None
    if unsized := [key for key in keys if devices[key]["memory_gib"] is None]:  # of which the tool shows no memory
        return unsized[0]
    more = {key: memory_gib / devices[key]["memory_gib"] - 1 for key in keys}
    return min((key for key in keys if -0.04 < more[key] < 0.08), key=lambda key: abs(more[key]), default=None)


def _plain(product: str) -> str:
    """A product's name without its maker's, which older drivers leave out."""
    return " ".join(re.sub(r"^(nvidia|amd|ascend)\b ?|^ascend(?=9)", "", product.strip().lower()).split())


def _near(wanted: str) -> str:
    """`did you mean X?` for devices with a like model number, else the common ones."""
    like = [key for key in device_ids() if any(a in b or b in a for a in _numbers(wanted) for b in _numbers(key))]
    return (
        f"did you mean {', '.join(like)}?"
        if like
        else f"others are known, such as {', '.join(filter(_common, device_ids()))};"
    )


def _sized(wanted: str) -> str | None:
    """A device by its id, or a short form, and the memory that it has: `rtx-3060-12g`."""
    name, _, size = wanted.rpartition("-")
    match, devices = re.fullmatch(_SIZE, size), listing("devices")
    gib = int(match[1]) if match else None
    keys = (key for key in device_ids() if gib and name in (key, *aliases(key)))
    return next((key for key in keys if round(devices[key]["memory_gib"] or 0) == gib), None)


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d{3,}", name)


def _common(key: str) -> bool:
    return bool(listing("devices")[key].get("common", True))


def aliases(key: str) -> list[str]:
    """Short forms of a device, the usual one first; none of one that goes by its memory."""
    devices = listing("devices")
    return [str(alias) for alias in devices[key]["aliases"]] if key in devices else []


def _by_memory(size: int) -> Device:
    """A device of which no more is known than that it is sold with so many GB."""
    usable = round(size * listing("devices")[_BY_MEMORY]["usable_share"], 2)
    return _device(_BY_MEMORY)._replace(id=f"{size}g", name=f"{size} GB device", memory_gib=size, usable_gib=usable)


def _device(key: str) -> Device:
    entry = listing("devices")[key]
    server = entry.get("server") or {}
    return Device(
        id=key,
        name=entry["name"],
        vendor=entry["vendor"],
        memory_gib=entry["memory_gib"],
        usable_gib=entry["usable_gib"],
        context_gib=entry["context_gib"],
        capability=entry["compute_capability"],
        bf16=bool(entry["bf16"]),
        fp8=bool(entry["fp8"]),
        flash_attention=bool(entry["flash_attention"]),
        bitsandbytes=tuple(entry["bitsandbytes"] or ()),
        server_devices=server.get("devices") or 1,
        server_ram_gib=server.get("host_ram_gib"),
        watts=entry["watts"],
        common=_common(key),
        shared_memory=bool(entry.get("shared_memory")),
        evidence=entry["evidence"],
        notes=entry.get("notes") or {},
    )
