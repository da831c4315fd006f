"""What nodes want beside a recipe, by the vendor of their devices: data/nodes.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.tables.data import listing
from validator.tables.devices import Device


class Waiting(NamedTuple):
    """The variable that ends the wait of processes for each other: what it is where it is not set, and the most it may
    be, seconds; None: any."""

    name: str
    usual: int
    most: int | None


class Setup(NamedTuple):
    """A shell file with the vendor's paths: where it may lie, and a variable that says it was read."""

    files: tuple[str, ...]
    unless: str


class Node(NamedTuple):
    """`slurm` and `kubernetes`: what they call the devices. `variables` are for every node, `variables_between` for
    nodes that meet others. `devices` (`{}` stands for each number from 0) and `files` are what a container mounts,
    `files_between` where nodes meet."""

    slurm: str = "gpu"
    kubernetes: str | None = None
    variables: Mapping[str, str] = {}
    variables_between: Mapping[str, str] = {}
    waiting: Waiting | None = None
    devices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    files_between: tuple[str, ...] = ()
    setup: Setup | None = None


def node(device: Device) -> Node:
    """What a node with this device wants; of a vendor without an entry nothing is known."""
    entry = listing("nodes").get(device.vendor)
    if entry is None:
        return Node()
    variables, container = entry.get("variables", {}), entry.get("container", {})
    return Node(
        slurm=entry["slurm"],
        kubernetes=entry["kubernetes"],
        variables=_values(variables, several=False),
        variables_between=_values(variables, several=True),
        waiting=_waiting(entry.get("waiting"), device),
        devices=tuple(container.get("devices", ())),
        files=tuple(container.get("files", ())),
        files_between=tuple(container.get("several", ())),
        setup=_setup(entry.get("setup")),
    )


def _values(variables: Mapping[str, Any], *, several: bool) -> Mapping[str, str]:
    return {name: str(each["value"]) for name, each in variables.items() if each.get("several", False) is several}


def _waiting(entry: Mapping[str, Any] | None, device: Device) -> Waiting | None:
    return Waiting(entry["name"], entry["default"], entry["most"].get(device.id)) if entry else None


def _setup(entry: Mapping[str, Any] | None) -> Setup | None:
    return Setup(tuple(f"{folder}/{entry['file']}" for folder in entry["folders"]), entry["unless"]) if entry else None
