"""Devices of published rows, as the time model wants them."""

from __future__ import annotations

from collections.abc import Mapping

from rows import CARDS, Skip

from validator.knowledge import devices as published
from validator.knowledge.devices import parse_network
from validator.physics import Workload
from validator.physics.rates import DeviceRates

# Names of times.csv beside those of published.csv -> the entry of data/devices.yaml, and what differs from it.
CHANGED: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "A10G-24GB": ("a10-24g", {}),
    "A100-SXM4-80GB": ("a100-80g", {}),
    "A800-80GB": ("a100-80g", {"link": 156e9}),
    "H800-80GB": ("h100-80g", {"link": 156e9}),
    "H100-SXM-80GB": ("h100-80g", {}),
    "H100-96GB": ("h100-80g", {"bandwidth": 2.4e12}),  # HBM2e, limited to 500 W: torchtitan's own remark
    "H200-NVL-141GB": ("h200-141g", {"half_flops": 835.5e12}),
    "H20-96GB": ("h20-96g", {}),
    "B200-180GB": ("b200-180g", {}),
    "GB200-186GB": ("b200-180g", {"half_flops": 2500e12, "bandwidth": 8e12}),
    "B300-288GB": ("b300-288g", {}),
    "GB300-288GB": ("b300-288g", {"half_flops": 2500e12, "bandwidth": 8e12}),
    "MI300X-192GB": ("mi300x-192g", {}),
    "MI325X-256GB": ("mi300x-192g", {"bandwidth": 6e12}),
    "MI350X-288GB": ("mi300x-192g", {"half_flops": 2300e12, "bandwidth": 8e12}),
    "MI355X-288GB": ("mi300x-192g", {"half_flops": 2500e12, "bandwidth": 8e12}),
    "MI250-64GB": ("mi250-64g", {}),
    "L4-24GB": ("l4-24g", {}),
    "A6000-48GB": ("a6000-48g", {}),
    "A6000Ada-48GB": ("rtx-6000-ada-48g", {}),
    "A5000-24GB": ("a6000-48g", {"half_flops": 111.1e12, "fp32_flops": 27.8e12}),
    "RTXA4000-16GB": ("a6000-48g", {"half_flops": 76.7e12, "fp32_flops": 19.2e12, "bandwidth": 448e9}),
    "Ascend910B-64GB": ("ascend-910b-64g", {}),
}


# Of what a source says of its network, what collectives reach: the median of data/networks.yaml.
ATTAINED = 0.85


def rates(name: str, work: Workload, network: float) -> tuple[str, DeviceRates]:
    """The id of a device by its name in a row, and its rates there. `network`: bytes/s of a node, where there are
    several; 0: that of the usual server, as where a recipe does not tell."""
    key, changes = CHANGED.get(name) or (CARDS.get(name, ""), {})
    if not key:
        raise Skip(f"device {name} is not in data/devices.yaml")
    nodes, devices = work.sharding.nodes, work.sharding.devices_per_node
    attained = ATTAINED * network or parse_network(published.usual_network(key, devices)).rate
    known = published.find_device(key)[0].rates(devices, attained if nodes > 1 else 0.0)
    if known is None:
        raise Skip(f"rates of device {name} are not published")
    return key, known._replace(**changes)
