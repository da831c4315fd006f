"""Devices of published rows, as the time model wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rows import CARDS, Skip

from validator.memory import Workload
from validator.speed.device import Device
from validator.tables import networks
from validator.tables.data import listing

# Names of times.csv beside those of published.csv -> the entry of data/devices.yaml, and what differs from it.
CHANGED: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "A100-SXM4-80GB": ("a100-80g", {}),
    "A800-80GB": ("a100-80g", {"link": 156e9}),
    "H800-80GB": ("h100-80g", {"link": 156e9}),
    "H100-SXM-80GB": ("h100-80g", {}),
    "H100-96GB": ("h100-80g", {"bandwidth": 2.4e12}),  # HBM2e, limited to 500 W: torchtitan's own remark
    "H200-NVL-141GB": ("h200-141g", {"half": 835.5e12}),
    "H20-96GB": ("h20-96g", {}),
    "B200-180GB": ("b200-180g", {}),
    "GB200-186GB": ("b200-180g", {"half": 2500e12, "bandwidth": 8e12}),
    "B300-288GB": ("b300-288g", {}),
    "GB300-288GB": ("b300-288g", {"half": 2500e12, "bandwidth": 8e12}),
    "MI300X-192GB": ("mi300x-192g", {}),
    "MI325X-256GB": ("mi300x-192g", {"bandwidth": 6e12}),
    "MI350X-288GB": ("mi300x-192g", {"half": 2300e12, "bandwidth": 8e12}),
    "MI355X-288GB": ("mi300x-192g", {"half": 2500e12, "bandwidth": 8e12}),
    "Ascend910B-64GB": ("ascend-910b-64g", {}),
}
HALF = {"bf16": "tflops_bf16", "fp16": "tflops_fp16"}
# Of a network's published rate, what collectives reach over InfiniBand (data/networks.yaml).
ATTAINED = 0.85


def rates(name: str, work: Workload, network: float) -> tuple[str, Device]:
    """The id of a device by its name in a row, and its rates there. `network`: bytes/s of a node, where there are
    several."""
    key, changes = CHANGED.get(name) or (CARDS.get(name, ""), {})
    if not key:
        raise Skip(f"device {name} is not in data/devices.yaml")
    entry = listing("devices")[key]
    teraflops = entry[HALF[work.half]] or entry["tflops_fp16"]
    if not teraflops or not entry["bandwidth_gb_s"]:
        raise Skip(f"rates of device {name} are not published")
    device = Device(
        half=teraflops * 1e12,
        single=teraflops * 1e12 / 8,
        bandwidth=entry["bandwidth_gb_s"] * 1e9,
        link=_link(entry, work.sharding.devices_per_node),
        network=ATTAINED * network if work.sharding.nodes > 1 else 0.0,
        host_link=networks.attained(entry["host_link"]),
        host_bandwidth=200e9,
        cores=64,
        disk=2e9,
        switched=not networks.shared(entry["link"]["type"]),
    )
    return key, device._replace(**changes)


def _link(entry: Mapping[str, Any], devices: int) -> float:
    return networks.attained(
        entry["link" if entry["link"]["gb_s"] else "host_link"], devices, entry["server"]["devices"]
    )
