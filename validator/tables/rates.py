"""What a device in its usual server does in a second, for the time model."""

from __future__ import annotations

from typing import Any

from validator.speed import Device
from validator.tables import networks
from validator.tables.data import listing

_GIGA, _TERA = 1e9, 1e12


def rates(key: str, devices: int, network: float = 0.0) -> Device | None:
    """Rates of the device of this id with so many in a node; `network`: bytes a second between nodes, of one node. The
    device's own are as published; its links have what collectives and copies reach. Of a server with more devices it
    has that share of cores, memory and disk. None where no rate is published."""
    entry = listing("devices").get(key, {})
    half, server = entry.get("tflops_bf16") or entry.get("tflops_fp16"), entry.get("server", {})
    if not half or not server.get("kind"):
        return None
    host = listing("servers")[server["kind"]]
    share = min(1.0, devices / server["devices"])
    return Device(
        half=half * _TERA,
        single=entry["tflops_fp32"] * _TERA,
        bandwidth=entry["bandwidth_gb_s"] * _GIGA,
        link=_link(entry, devices),
        network=network,
        host_link=networks.attained(entry["host_link"]),
        host_bandwidth=share * host["memory_gb_s"] * _GIGA,
        cores=max(1, round(share * host["cores"])),
        disk=host["disk_gb_s"] * _GIGA,
        switched=not networks.shared(entry["link"]["type"]),
        evidence=entry["timed"],
        attained=entry.get("attained", 1.0),
        attention=entry.get("attained_attention", 1.0),
        cuda=entry["vendor"] == "nvidia",
    )


def usual(key: str) -> str:
    """The name of the network that the usual server of a device stands in."""
    host = listing("servers")[listing("devices")[key]["server"]["kind"]]
    return f"{host['ports']}x{host['network']}" if host["ports"] > 1 else str(host["network"])


def _link(entry: dict[str, Any], devices: int) -> float:
    """Bytes a second from one device to the others of its node; that to the host where none is published."""
    known = entry["link"]["gb_s"] is not None
    return networks.attained(entry["link" if known else "host_link"], devices, entry["server"]["devices"])
