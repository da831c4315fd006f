"""Network interfaces and InfiniBand adapters of this machine, and where they lead, as the kernel shows them."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from validator.machine.host import read_first_line, read_lines

# Bridges, tunnels and ends of containers, none of which leads to another machine as fast as its card.
_VIRTUAL_NAMES = re.compile(
    r"(docker|br-|virbr|veth|cni|cali|flannel|tun|tap|tailscale|wg|zt|kube|lxc|lxd|vmnet|podman|cilium)"
)


class Interface(NamedTuple):
    """An interface that is up and has an address. `routes`: network and mask as numbers, and the metric. `mbit_s`: the
    speed of its card; None if there is no card."""

    name: str
    ifindex: int
    routes: tuple[tuple[int, int, int], ...]
    mbit_s: int | None

    @property
    def virtual(self) -> bool:
        return bool(_VIRTUAL_NAMES.match(self.name))


def list_interfaces(root: Path) -> list[Interface]:
    """List the interfaces in the kernel's order."""
    table = [line.split() for line in read_lines(root / "proc/net/route")[1:]]
    routes = [(row[0], (int(row[1], 16), int(row[7], 16), int(row[6]))) for row in table]  # network, mask, metric
    six = {line.split()[-1] for line in read_lines(root / "proc/net/if_inet6") if line}
    there = []
    for place in sorted((root / "sys/class/net").glob("*")):
        networks = tuple(way for name, way in routes if name == place.name)
        if place.name != "lo" and (networks or place.name in six) and read_first_line(place / "operstate") != "down":
            speed = read_first_line(place / "speed")
            number = int(read_first_line(place / "ifindex") or 0)
            there.append(Interface(place.name, number, networks, int(speed) if speed.isdecimal() else None))
    return sorted(there, key=lambda one: one.ifindex)


def route_to(there: Sequence[Interface], address: str) -> Interface | None:
    """Return the interface of the kernel's route to an address: the longest mask that holds it. None if there is none:
    a name that does not resolve, IPv6, an address of this machine's loop."""
    try:
        (number,) = struct.unpack("<I", socket.inet_aton(socket.gethostbyname(address))) if address else (0,)
    except OSError:
        return None
    if number & 0xFF in (0, 127):
        return None
    routes = ((one, *route) for one in there for route in one.routes)
    ways = [(mask.bit_count(), -cost, one) for one, network, mask, cost in routes if number & mask == network]
    return max(ways, key=lambda way: way[:2], default=(0, 0, None))[2]


class InfinibandPort(NamedTuple):
    """One port of an InfiniBand or RoCE adapter; `rate` as the kernel writes it: 400 Gb/sec."""

    adapter: str
    active: bool
    rate: str


def infiniband_ports(root: Path) -> list[InfinibandPort]:
    """List all ports that the kernel shows."""
    ports = []
    for place in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        active, rate = "ACTIVE" in read_first_line(place / "state"), read_first_line(place / "rate").partition(" (")[0]
        ports.append(InfinibandPort(place.parts[-3], active, rate))
    return ports


def is_infiniband_disabled(environment: Mapping[str, str]) -> bool:
    """True if NCCL_IB_DISABLE switches InfiniBand off."""
    return environment.get("NCCL_IB_DISABLE") == "1"


def matches_interface_filter(words: str, name: str) -> bool:
    """Return whether a value of NCCL_SOCKET_IFNAME, NCCL_IB_HCA or HCCL_SOCKET_IFNAME matches this card. The words are
    beginnings of names; = before them: whole names; ^: names to leave out; each may end with a colon and a port (NCCL
    user guide)."""
    out, exact = words.startswith("^"), words.lstrip("^").startswith("=")
    each = [word.partition(":")[0] for word in words.lstrip("^").lstrip("=").split(",")]
    return out != any(name == one if exact else name.startswith(one) for one in each)
