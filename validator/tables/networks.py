"""Links and networks of data/networks.yaml: bytes a second that collectives and copies reach."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.diagnostic import RecipeError
from validator.tables.data import listing

_ADAPTERS = re.compile(r"(?i)(?:([1-9]\d?) ?[x×*] ?)?(.+)")


class Network(NamedTuple):
    """What joins servers. `rate`: bytes a second in one direction of one server, as collectives reach them."""

    name: str
    rate: float


def network_names() -> list[str]:
    """Names of all networks, slowest kinds first."""
    return [name for name, entry in listing("networks").items() if entry["kind"] == "network"]


def network(text: str) -> Network:
    """`infiniband-400g`, or `8xinfiniband-400g` for a server with eight adapters. Raises RecipeError when unknown."""
    match = _ADAPTERS.fullmatch(text.strip())
    adapters, name = int(match[1] or 1) if match else 1, match[2].lower().replace(" ", "-") if match else ""
    if name not in network_names():
        raise RecipeError(f"network `{text}` is not known; known are {', '.join(network_names())}, or 8x one of them")
    entry = listing("networks")[name]
    return Network(f"{adapters}x{name}" if adapters > 1 else name, adapters * entry["attained"] * entry["gb_s"] * 1e9)


def attained(link: Mapping[str, Any], devices: int = 1, of: int = 1) -> float:
    """Bytes a second in one direction that a link of data/devices.yaml reaches, between `devices` of a server's `of`.
    Vendors count both directions together. Of a mesh, only the parts that lead to the devices in use serve."""
    entry = listing("networks")[link["type"]]
    used = min(1.0, (devices - 1) / (of - 1)) if entry.get("mesh") and devices > 1 and of > 1 else 1.0
    return float(entry["attained"] * used * link["gb_s"] / 2 * 1e9)


def shared(kind: str) -> bool:
    """Whether traffic over this kind of link passes main memory, whose rate all devices share."""
    return bool(listing("networks")[kind].get("shared"))
