"""Accelerators and machines: memory, abilities and speed of devices, speed of links and networks, and machine texts
such as `2x8xa100-80g` (nodes x devices x device)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from validator.errors import RecipeError
from validator.physics import DeviceRates, DeviceRuntime
from validator.recipe.suggestions import nearest_name
from validator.wording import clip

from .machine_spellings import MachineReading, device_words, machine_readings
from .tables import yaml_table

# Devices that no run is judged for, by how their makers name them.
_OTHER_MAKERS = {
    "Apple": re.compile(r"\b(?:apple|i?mac(?:book|mini|studio|os)?|mps|m[1-9](?:pro|max|ultra)?)\b"),
    "Intel": re.compile(
        r"\b(?:intel|xpu|habana|gaudi-?[1-9]?|arc|a(?:310|380|580|750|770)|b(?:50|60|570|580)|max-1(?:1[05]|55)0)\b"
    ),
}
_NETWORK_FORM = re.compile(r"(?i)(?:([1-9]\d?) ?[x×*] ?)?(.+)")


class Network(NamedTuple):
    """The network between servers. `rate`: bytes per second that collectives reach in one direction of one server."""

    name: str
    rate: float


def network_names() -> list[str]:
    """Return the names of all networks, slowest kinds first."""
    return [name for name, entry in yaml_table("networks").items() if entry["kind"] == "network"]


def parse_network(text: str) -> Network:
    """Return the network that a text names, such as `infiniband-400g`, or `8xinfiniband-400g` for a server with eight
    adapters. Raises RecipeError if the network is not known."""
    match = _NETWORK_FORM.fullmatch(text.strip())
    adapters, name = int(match[1] or 1) if match else 1, match[2].lower().replace(" ", "-") if match else ""
    if name not in network_names():
        raise RecipeError(f"network `{text}` is not known; known are {', '.join(network_names())}, or 8x one of them")
    entry = yaml_table("networks")[name]
    return Network(f"{adapters}x{name}" if adapters > 1 else name, adapters * entry["attained"] * entry["gb_s"] * 1e9)


def link_rate(link: Mapping[str, Any], devices: int = 1, of: int = 1) -> float:
    """Return the bytes per second that collectives and copies reach in one direction of a link. `link`: an entry of
    data/devices.yaml, whose published rate counts both directions together. `devices`: how many of the server's `of`
    devices are in use; in a mesh, only the links between devices in use count."""
    entry = yaml_table("networks")[link["type"]]
    share = min(1.0, (devices - 1) / (of - 1)) if entry.get("mesh") and devices > 1 and of > 1 else 1.0
    return float(entry["attained"] * share * link["gb_s"] / 2 * 1e9)


_GIGA, _TERA = 1e9, 1e12
_MOST_OF_PART = 2  # devices


def usual_network(key: str, devices: int) -> str:
    """Return the name of the network, such as `8xinfiniband-400g`, that usually joins servers of this device. `key`: id
    of the device. `devices`: how many of a server's devices a run has; one or two are rented as a part of a server,
    with a slower network."""
    host = yaml_table("servers")[yaml_table("devices")[key]["server"]["kind"]]
    if devices <= _MOST_OF_PART and "part" in host:
        return str(host["part"])
    return f"{host['ports']}x{host['network']}" if host["ports"] > 1 else str(host["network"])


_BY_MEMORY = "by-memory"
# Named where a device is not known and none is similar: one or two of each vendor.
_WELL_KNOWN = ("rtx-3090", "rtx-4090", "a100-80g", "h100-80g", "mi300x-192g", "ascend-910b-64g")
# Of the letters of a short form that a misspelling has to share with it: one wrong letter in five.
_LIKENESS_OF_NAMES = 0.8
_MEMORY_SIZE = r"([1-9]\d{0,3})-?g(?:i?b)?"


class Device(NamedTuple):
    """An accelerator. One GiB is 2^30 bytes, and None means not known. `usable_gib`: GiB that all processes together
    can allocate. `shared_memory`: device and host share `usable_gib`. If the vendor is unknown, only the memory is
    known, and all abilities are assumed."""

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

    def runtime(self, expandable: bool) -> DeviceRuntime:
        """Return the memory that this kind of device needs in addition to live tensors, for the memory model.
        `expandable`: the allocator uses expandable segments."""
        return DeviceRuntime(
            context_gib=0.5 if self.context_gib is None else self.context_gib,
            evidence=self.evidence if self.vendor == "nvidia" else "thin",
            expandable_segments=expandable,
            # Short of shared memory the system hangs instead of failing an allocation, so no cached block is given back
            # (github.com/pytorch/pytorch/issues/174358).
            capacity_gib=None if self.shared_memory else self.usable_gib,
        )

    def rates(self, devices: int, network: float = 0.0) -> DeviceRates | None:
        """Return the rates of this device in a node of `devices` devices, for the time model; None if the device's
        speed is not published. `network`: bytes per second that one node has to other nodes.

        The device's own rates are as published. The rates of its links are the rates that collectives and copies reach.
        If the node has fewer devices than a usual server, it gets that share of the server's cores and memory rate."""
        entry = yaml_table("devices").get(self.id, {})
        half, server = entry.get("tflops_bf16") or entry.get("tflops_fp16"), entry.get("server", {})
        if not half or not server.get("kind"):
            return None
        host, link = yaml_table("servers")[server["kind"]], entry["link"]
        share = min(1.0, devices / server["devices"])
        published_link = link if link["gb_s"] is not None else entry["host_link"]
        return DeviceRates(
            half_flops=half * _TERA,
            fp32_flops=entry["tflops_fp32"] * _TERA,
            bandwidth=entry["bandwidth_gb_s"] * _GIGA,
            link=link_rate(published_link, devices, server["devices"]),
            network=network,
            host_link=link_rate(entry["host_link"]),
            host_bandwidth=share * host["memory_gb_s"] * _GIGA,
            cores=max(1, round(share * host["cores"])),
            disk=host["disk_gb_s"] * _GIGA,
            # Traffic over a shared kind of link passes main memory, whose rate all devices share.
            nvlink_switch=not yaml_table("networks")[link["type"]].get("shared"),
            evidence=entry["timed"],
            matmul_efficiency=entry.get("attained", 1.0),
            attention_efficiency=entry.get("attained_attention", 1.0),
            cuda=entry["vendor"] == "nvidia",
        )


def device_ids() -> list[str]:
    """Return the ids of all known devices, in the table's order."""
    return [key for key in yaml_table("devices") if key != _BY_MEMORY]


@lru_cache(maxsize=256)
def find_device(name: str) -> tuple[Device, str | None]:
    """Return the device that a name stands for, and a note if several devices share this short form (else None). The
    name is an id, a short form, or a memory size (`48g`).

    Raises RecipeError if the device is not known."""
    query = name.strip().lower().replace(" ", "-")
    devices = yaml_table("devices")
    if query in device_ids():
        return _device_of_entry(query), None
    if size := re.fullmatch(_MEMORY_SIZE, query):
        return _device_of_memory(int(size[1])), None
    claims = [key for key in devices.mention(query) if query in device_aliases(key)] or _ids_of_spelling(query)
    bare_name = device_words(query).name
    default = [key for key in claims if bare_name in map(_squeezed, devices[key].get("default_for") or [])]
    maker = None if claims else next((each for each, names in _OTHER_MAKERS.items() if names.search(query)), None)
    if maker:
        raise RecipeError(
            f"device `{clip(name)}` is of {maker}, and runs are judged for NVIDIA, AMD and Ascend alone; a device of "
            "as much memory, such as 1x24g for 24 GB, tells which runs are too large for it; `lmf-recipes copy "
            "tiny-cpu-lora .` tries the way on a CPU, `lmf-recipes plan --model M --machines all` what renting costs"
        )
    if not claims:
        raise RecipeError(
            f"device `{name}` is not known; {_near_devices_hint(query)} any other goes by its memory, such as 1x48g"
        )
    chosen = (default or claims)[0]
    rest = [key for key in claims if key != chosen]
    link = str(devices[chosen]["link"]["type"])
    if rest:
        return _device_of_entry(chosen), f"`{name}` is taken as {chosen}, not {', '.join(rest)}"
    if "pcie" in query and not link.startswith("pcie"):
        return _device_of_entry(chosen), f"`{name}` is taken as {chosen}, joined by {link}; a PCIe card is slower"
    return _device_of_entry(chosen), None


def device_id_of_product(product: str, memory_gib: float | None) -> str | None:
    """Return the id of the device that the driver's tool (such as nvidia-smi) calls `product`, with `memory_gib` GiB in
    total; None if no device matches.

    If cards of several sizes have this name, the nearest size counts. A card may have a little more memory than its
    entry, because error correction, which takes a sixteenth, can be off. If a card has less memory, another entry must
    match."""
    bare_name = _bare_product(product)
    devices = yaml_table("devices")
    keys = [key for key in devices.mention(bare_name) if bare_name in map(_bare_product, devices[key]["products"])]
    if memory_gib is None:
        return keys[0] if len(keys) == 1 else None
    if unsized_keys := [key for key in keys if devices[key]["memory_gib"] is None]:  # of which the tool shows no memory
        return unsized_keys[0]
    excess = {key: memory_gib / devices[key]["memory_gib"] - 1 for key in keys}
    return min((key for key in keys if -0.04 < excess[key] < 0.08), key=lambda key: abs(excess[key]), default=None)


def _bare_product(product: str) -> str:
    """Return a product's name in lower case, without the name of its vendor, which older drivers leave out."""
    return " ".join(re.sub(r"^(nvidia|amd|ascend)\b ?|^ascend(?=9)", "", product.strip().lower()).split())


def _near_devices_hint(query: str) -> str:
    """Return `did you mean X?` with the devices of another size, of a similar model number, or with a similar short
    form. If no device is similar, return a clause that names a few devices."""
    similar = _devices_of_other_sizes(query) or _devices_of_similar_number(query)
    if not similar and (near := nearest_name(query, _ids_by_spelling(), likeness=_LIKENESS_OF_NAMES)):
        similar = _ids_by_spelling()[near]
    if similar:
        return f"did you mean {', '.join(similar)}?"
    return f"others are known, such as {', '.join(_WELL_KNOWN)};"


def _devices_of_other_sizes(query: str) -> list[str]:
    name = device_words(query).name
    return [key for key in device_ids() if name in map(_squeezed, (key, *device_aliases(key)))]


def _devices_of_similar_number(query: str) -> list[str]:
    """Return the ids of the devices whose model number is within that of the query or the other way round; only those
    that also agree in the letters before the number, if there are any."""

    def alike(pattern: str) -> list[str]:
        asked = re.findall(pattern, query)
        return [key for key in device_ids() if any(a in b or b in a for a in asked for b in re.findall(pattern, key))]

    return alike(r"[a-z]+\d{3,}") or alike(r"\d{3,}")


def _ids_by_spelling() -> Mapping[str, list[str]]:
    """Return the ids of the devices by their ids and short forms."""
    found: dict[str, list[str]] = {}
    for key in device_ids():
        for spelling in (key, *device_aliases(key)):
            found.setdefault(spelling, []).append(key)
    return found


def _ids_of_spelling(query: str) -> list[str]:
    """Return the ids of the devices that `query` spells in another way than the table, such as `rtx-3060-12g`, `H100
    SXM5 80GB` or `geforce rtx4090`. A card that is made with several sizes is named by one of them or by a short form
    of the table."""
    wanted, devices = device_words(query), yaml_table("devices")

    def is_meant(key: str, names: Iterable[str]) -> bool:
        spellings = {device_words(each) for each in names}
        has_size = wanted.size is not None and round(devices[key]["memory_gib"] or 0) == wanted.size
        return wanted in spellings or (has_size and any(each.name == wanted.name for each in spellings))

    if not wanted.name:
        return []
    return [key for key in device_ids() if is_meant(key, (key, *device_aliases(key)))] or [
        key for key in device_ids() if wanted.size and is_meant(key, devices[key]["products"])
    ]


def _squeezed(alias: object) -> str:
    return device_words(str(alias)).name


def _is_common(key: str) -> bool:
    return bool(yaml_table("devices")[key].get("common", True))


def device_aliases(key: str) -> list[str]:
    """Return the short forms of a device's name, the usual one first. `key`: id of the device. Empty for a device that
    is known by its memory size only."""
    devices = yaml_table("devices")
    return [str(alias) for alias in devices[key]["aliases"]] if key in devices else []


def _device_of_memory(size: int) -> Device:
    """Return a device about which only the memory is known. `size`: memory in the GB by which the device is sold."""
    usable = round(size * yaml_table("devices")[_BY_MEMORY]["usable_share"], 2)
    return _device_of_entry(_BY_MEMORY)._replace(
        id=f"{size}g", name=f"{size} GB device", memory_gib=size, usable_gib=usable
    )


def _device_of_entry(key: str) -> Device:
    entry = yaml_table("devices")[key]
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
        common=_is_common(key),
        shared_memory=bool(entry.get("shared_memory")),
        evidence=entry["evidence"],
        notes=entry.get("notes") or {},
    )


_LONGEST_MACHINE = 80  # characters; longer texts are no machine
# Without one of them a text names no device: `8`, `8x`.
_NAME_IN_MACHINE = re.compile(r"(?i)[^\W\d_][^\W_]|\d[^\W\d_x×]|\d{3}")


class Machine(NamedTuple):
    """`nodes` servers with `devices` accelerators each. `note` says which device was meant if several devices share the
    short form. `network`: the network between nodes, as the user wrote it. `price`: the price of one device for one
    hour, as the user wrote it. Each is None if the user wrote nothing. `has_usual_ram`: True if `host_ram_gib` is that
    of a usual server, because the user gave none. `installed`: releases of packages on it, if it is this machine, as
    (field of a header block, release)."""

    nodes: int
    devices: int
    device: Device
    host_ram_gib: float | None = None
    note: str | None = None
    network: str | None = None
    price: str | float | None = None
    has_usual_ram: bool = False
    installed: tuple[tuple[str, str], ...] = ()

    @property
    def world(self) -> int:
        return self.nodes * self.devices

    def __str__(self) -> str:
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.devices}x{self.device.id}"


def parse_machine(text: str, host_ram_gib: float | None = None) -> Machine:
    """Return the machine that a text describes as nodes x devices x device, such as `2x8xa100-80g`, `8 x 910B`,
    `H100 SXM` (one device) or `1x48g`. `host_ram_gib`: main memory of one node, in GiB; None: not known. Raises
    RecipeError if no device is named, if a number is out of range, or if the device is not known."""
    readings = [*machine_readings(text)] if len(text) <= _LONGEST_MACHINE else []
    if not readings or not _NAME_IN_MACHINE.search(text):
        form = "[nodes x] devices x device, such as 8xascend-910b-64g, 2x8xa100-80g or, by its memory, 1x48g"
        raise RecipeError(f"machine `{clip(text)}` is not of the form {form}")
    nodes, devices, name = next(filter(_is_known_device, readings), readings[0])
    if not 1 <= nodes <= 4096 or not 1 <= devices <= 64:
        raise RecipeError(f"machine `{text}`: 1 to 4096 nodes of 1 to 64 devices are possible")
    device, note = find_device(name)
    if device.shared_memory and device.usable_gib:
        host_ram_gib = min(host_ram_gib or device.usable_gib, device.usable_gib)
        device = device._replace(usable_gib=host_ram_gib)
    return Machine(nodes, devices, device, host_ram_gib, note)


def is_machine(text: str) -> bool:
    """True if a text names a machine that is known, such as 8xa100 or rtx-4090."""
    try:
        parse_machine(text)
    except RecipeError:
        return False
    return True


@lru_cache(maxsize=256)  # a device that is not known costs the search for a hint
def _is_known_device(reading: MachineReading) -> bool:
    try:
        find_device(reading.name)
    except RecipeError:
        return False
    return True
