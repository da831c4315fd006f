"""Network interfaces, routes and InfiniBand adapters of this machine, read from the kernel's files."""

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
    """A network interface that is up and has an address. Each route is a tuple of network, mask (32-bit numbers) and
    metric. `mbit_s` is the speed of the network card in Mbit/s; None if the interface has no card or no known speed."""

    name: str
    ifindex: int
    routes: tuple[tuple[int, int, int], ...]
    mbit_s: int | None

    @property
    def virtual(self) -> bool:
        return bool(_VIRTUAL_NAMES.match(self.name))


def list_interfaces(root: Path) -> list[Interface]:
    """Return the network interfaces that are up and have an address, in the order of the kernel's interface index. The
    loopback interface is left out. `root` is the folder that contains `proc` and `sys`."""
    table = [line.split() for line in read_lines(root / "proc/net/route")[1:]]
    routes = [(row[0], (int(row[1], 16), int(row[7], 16), int(row[6]))) for row in table]  # network, mask, metric
    six = {line.split()[-1] for line in read_lines(root / "proc/net/if_inet6") if line}
    interfaces = []
    for place in sorted((root / "sys/class/net").glob("*")):
        networks = tuple(way for name, way in routes if name == place.name)
        if place.name != "lo" and (networks or place.name in six) and read_first_line(place / "operstate") != "down":
            speed = read_first_line(place / "speed")
            number = int(read_first_line(place / "ifindex") or 0)
            interfaces.append(Interface(place.name, number, networks, int(speed) if speed.isdecimal() else None))
    return sorted(interfaces, key=lambda one: one.ifindex)


def route_to(interfaces: Sequence[Interface], address: str) -> Interface | None:
    """Return the interface through which the kernel sends packets to an address: the route with the longest matching
    mask. An empty address stands for the default route. Return None if no route matches, the name does not resolve to
    an IPv4 address, or the address is a loopback address."""
    try:
        (number,) = struct.unpack("<I", socket.inet_aton(socket.gethostbyname(address))) if address else (0,)
    except OSError:
        return None
    if number & 0xFF in (0, 127):
        return None
    routes = ((one, *route) for one in interfaces for route in one.routes)
    ways = [(mask.bit_count(), -cost, one) for one, network, mask, cost in routes if number & mask == network]
    return max(ways, key=lambda way: way[:2], default=(0, 0, None))[2]


class InfinibandPort(NamedTuple):
    """One port of an InfiniBand or RoCE adapter. `rate` is the kernel's text, such as `400 Gb/sec`."""

    adapter: str
    active: bool
    rate: str


def infiniband_ports(root: Path) -> list[InfinibandPort]:
    """Return every port of every InfiniBand or RoCE adapter that the kernel lists. `root` is the folder that contains
    `sys`."""
    ports = []
    for place in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        active, rate = "ACTIVE" in read_first_line(place / "state"), read_first_line(place / "rate").partition(" (")[0]
        ports.append(InfinibandPort(place.parts[-3], active, rate))
    return ports


def is_infiniband_disabled(environment: Mapping[str, str]) -> bool:
    """Return whether the environment forbids NCCL to use InfiniBand: NCCL_IB_DISABLE=1."""
    return environment.get("NCCL_IB_DISABLE") == "1"


def matches_interface_filter(words: str, name: str) -> bool:
    """Return whether the network card `name` passes a filter such as the value of NCCL_SOCKET_IFNAME, NCCL_IB_HCA or
    HCCL_SOCKET_IFNAME. The value is a list of beginnings of names, separated by commas. After `=` the names are
    complete, after `^` they are excluded. Each name may end with a colon and a port number, which is ignored (NCCL user
    guide)."""
    out, exact = words.startswith("^"), words.lstrip("^").startswith("=")
    each = [word.partition(":")[0] for word in words.lstrip("^").lstrip("=").split(",")]
    return out != any(name == one if exact else name.startswith(one) for one in each)
