"""What a device in its usual server does in a second, for the time model."""

from __future__ import annotations

from typing import Any

from validator.speed import Device
from validator.tables.data import listing

_GIGA, _TERA = 1e9, 1e12
# Links that lead from each device to each other one: of fewer devices only those among them serve. In the others a
# switch stands between.
_MESHES = ("nvlink-mesh", "infinity-fabric", "hccs")


def rates(key: str, devices: int, network: float = 0.0) -> Device | None:
    """Rates of the device of this id with so many in a node; `network`: bytes a second between nodes, of one node. Of a
    server with more devices it has that share of cores, memory and disk. None where no rate is published."""
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
        host_link=_one_way(entry["host_link"]),
        host_bandwidth=share * host["memory_gb_s"] * _GIGA,
        cores=max(1, round(share * host["cores"])),
        disk=host["disk_gb_s"] * _GIGA,
        switched=entry["link"]["type"] != "pcie",
        evidence=entry["timed"],
        attained=entry.get("attained", 1.0),
    )


def _link(entry: dict[str, Any], devices: int) -> float:
    """Bytes a second from one device to the others of its node; that to the host where none is published."""
    link = entry["link"]
    if not link["gb_s"]:
        return _one_way(entry["host_link"])
    most = entry["server"]["devices"] - 1
    share = min(1.0, (devices - 1) / most) if link["type"] in _MESHES and devices > 1 else 1.0
    return share * _one_way(link)


def _one_way(link: dict[str, Any]) -> float:
    """Bytes a second in one direction; vendors count both together."""
    return float(link["gb_s"]) / 2 * _GIGA
