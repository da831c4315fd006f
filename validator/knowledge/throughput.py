"""Bytes and FLOP per second of devices in their usual server, and of the links and networks between them
(data/networks.yaml, data/servers.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.knowledge.tables import yaml_table
from validator.physics import DeviceRates

_NETWORK_FORM = re.compile(r"(?i)(?:([1-9]\d?) ?[x×*] ?)?(.+)")


class Network(NamedTuple):
    """What joins servers. `rate`: bytes a second in one direction of one server, as collectives reach them."""

    name: str
    rate: float


def network_names() -> list[str]:
    """Names of all networks, slowest kinds first."""
    return [name for name, entry in yaml_table("networks").items() if entry["kind"] == "network"]


def parse_network(text: str) -> Network:
    """`infiniband-400g`, or `8xinfiniband-400g` for a server with eight adapters. Raises RecipeError when unknown."""
    match = _NETWORK_FORM.fullmatch(text.strip())
    adapters, name = int(match[1] or 1) if match else 1, match[2].lower().replace(" ", "-") if match else ""
    if name not in network_names():
        raise RecipeError(f"network `{text}` is not known; known are {', '.join(network_names())}, or 8x one of them")
    entry = yaml_table("networks")[name]
    return Network(f"{adapters}x{name}" if adapters > 1 else name, adapters * entry["attained"] * entry["gb_s"] * 1e9)


def link_rate(link: Mapping[str, Any], devices: int = 1, of: int = 1) -> float:
    """Bytes a second in one direction that a link of data/devices.yaml reaches, between `devices` of a server's `of`.
    Vendors count both directions together. Of a mesh, only the parts that lead to the devices in use serve."""
    entry = yaml_table("networks")[link["type"]]
    used = min(1.0, (devices - 1) / (of - 1)) if entry.get("mesh") and devices > 1 and of > 1 else 1.0
    return float(entry["attained"] * used * link["gb_s"] / 2 * 1e9)


def shares_host_memory(kind: str) -> bool:
    """True if traffic over this kind of link passes main memory, whose rate all devices share."""
    return bool(yaml_table("networks")[kind].get("shared"))


_GIGA, _TERA = 1e9, 1e12


def device_rates(key: str, devices: int, network: float = 0.0) -> DeviceRates | None:
    """Rates of the device of this id with so many in a node; `network`: bytes a second between nodes, of one node. The
    device's own are as published; its links have what collectives and copies reach. Of a server with more devices it
    has that share of cores, memory and disk. None where no rate is published."""
    entry = yaml_table("devices").get(key, {})
    half, server = entry.get("tflops_bf16") or entry.get("tflops_fp16"), entry.get("server", {})
    if not half or not server.get("kind"):
        return None
    host = yaml_table("servers")[server["kind"]]
    share = min(1.0, devices / server["devices"])
    return DeviceRates(
        half_flops=half * _TERA,
        fp32_flops=entry["tflops_fp32"] * _TERA,
        bandwidth=entry["bandwidth_gb_s"] * _GIGA,
        link=_device_link_rate(entry, devices),
        network=network,
        host_link=link_rate(entry["host_link"]),
        host_bandwidth=share * host["memory_gb_s"] * _GIGA,
        cores=max(1, round(share * host["cores"])),
        disk=host["disk_gb_s"] * _GIGA,
        nvlink_switch=not shares_host_memory(entry["link"]["type"]),
        evidence=entry["timed"],
        matmul_efficiency=entry.get("attained", 1.0),
        attention_efficiency=entry.get("attained_attention", 1.0),
        cuda=entry["vendor"] == "nvidia",
    )


def usual_network(key: str) -> str:
    """The name of the network that the usual server of a device stands in."""
    host = yaml_table("servers")[yaml_table("devices")[key]["server"]["kind"]]
    return f"{host['ports']}x{host['network']}" if host["ports"] > 1 else str(host["network"])


def _device_link_rate(entry: dict[str, Any], devices: int) -> float:
    """Bytes a second from one device to the others of its node; that to the host where none is published."""
    known = entry["link"]["gb_s"] is not None
    return link_rate(entry["link" if known else "host_link"], devices, entry["server"]["devices"])
