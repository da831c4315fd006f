"""Roots of machines: the files of /proc and /sys that checks of the network read, as a kernel writes them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.installed_packages import write

_HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


def interfaces(root: Path, cards: Mapping[str, Any]) -> None:
    """Cards in the kernel's order. `networks`: what each leads to, such as 10.0.0.0/24; `speed` in Mbit/s."""
    rows = []
    for number, (name, facts) in enumerate({"lo": {"state": "unknown"}, **cards}.items(), start=1):
        place = root / "sys/class/net" / name
        write(place / "ifindex", f"{number}\n")
        write(place / "operstate", f"{facts.get('state', 'up')}\n")
        if "speed" in facts:
            write(place / "speed", f"{facts['speed']}\n")
        for network in facts.get("networks", ()):
            address, _, bits = network.partition("/")
            mask = struct.unpack("<I", struct.pack(">I", 0xFFFFFFFF << (32 - int(bits)) & 0xFFFFFFFF))[0]
            (number_of,) = struct.unpack("<I", socket.inet_aton(address))
            cells = [name, f"{number_of:08X}", "00000000", "0001", "0", "0", str(facts.get("metric", 0)), f"{mask:08X}"]
            rows.append("\t".join([*cells, "0", "0", "0"]) + "\n")
    write(root / "proc/net/route", _HEAD + "".join(rows))


def adapters(root: Path, ports: Mapping[str, str]) -> None:
    """Adapters of one port each, by name: what the kernel writes of the port's state."""
    for name, state in ports.items():
        write(root / f"sys/class/infiniband/{name}/ports/1/state", f"{state}\n")
        write(root / f"sys/class/infiniband/{name}/ports/1/rate", "400 Gb/sec (4X NDR)\n")
