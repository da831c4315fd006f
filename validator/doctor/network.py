"""The network interfaces of this machine, and where they lead, by what the kernel shows."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Bridges, tunnels and ends of containers, none of which leads to another machine as fast as its card.
_VIRTUAL = re.compile(
    r"(docker|br-|virbr|veth|cni|cali|flannel|tun|tap|tailscale|wg|zt|kube|lxc|lxd|vmnet|podman|cilium)"
)


class Interface(NamedTuple):
    """An interface that is up and has an address. `networks` are those that it leads to: network and mask as numbers,
    and the cost of the way. `number` is the kernel's; `mbit_s`: speed of its card, None where there is none."""

    name: str
    number: int
    networks: tuple[tuple[int, int, int], ...]
    mbit_s: int | None

    @property
    def virtual(self) -> bool:
        return bool(_VIRTUAL.match(self.name))


def interfaces(root: Path) -> list[Interface]:
    """In the kernel's order."""
    routes = list(_routes(root))
    six = {line.split()[-1] for line in _text(root / "proc/net/if_inet6").splitlines() if line}
    there = []
    for place in sorted((root / "sys/class/net").glob("*")):
        networks = tuple(way for name, way in routes if name == place.name)
        if place.name != "lo" and (networks or place.name in six) and _text(place / "operstate").strip() != "down":
            speed = _text(place / "speed").strip()
            number = int(_text(place / "ifindex").strip() or 0)
            there.append(Interface(place.name, number, networks, int(speed) if speed.isdecimal() else None))
    return sorted(there, key=lambda one: one.number)


def _routes(root: Path) -> Iterator[tuple[str, tuple[int, int, int]]]:
    for line in _text(root / "proc/net/route").splitlines()[1:]:
        cells = line.split()
        yield cells[0], (int(cells[1], 16), int(cells[7], 16), int(cells[6]))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # a card that is down has no speed
        return ""


def towards(there: Sequence[Interface], address: str) -> Interface | None:
    """The interface that the kernel sends to this address by: the longest mask that holds it. None where that is not
    told: a name that does not resolve, IPv6, an address of this machine's loop."""
    try:
        (number,) = struct.unpack("<I", socket.inet_aton(socket.gethostbyname(address))) if address else (0,)
    except OSError:
        return None
    if number & 0xFF in (0, 127):
        return None
    ways = [
        (mask.bit_count(), -cost, one)
        for one in there
        for network, mask, cost in one.networks
        if number & mask == network
    ]
    return max(ways, key=lambda way: way[:2], default=(0, 0, None))[2]
