"""What a node needs beside a recipe, by the vendor of its devices: environment variables, container devices and
files, scheduler resources (data/nodes.yaml); and environment switches as LLaMA-Factory reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.knowledge.devices import Device
from validator.knowledge.tables import yaml_table

# The soft limit of open files that a run is given: loader workers pass tensors as open files. Containers usually
# allow as many; without a limit, programs that close every possible file when they start lose time.
MAX_OPEN_FILES = 1_048_576
_ENABLED_WORDS = ("true", "y", "1")


def is_env_enabled(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """True if LLaMA-Factory takes the variable as on (llamafactory/extras/misc.py, is_env_enabled); all other words
    than these are off, "yes" and "on" too."""
    return environment.get(name, "").lower() in _ENABLED_WORDS


class TimeoutVariable(NamedTuple):
    """The variable that ends the wait of processes for each other: what it is where it is not set, and the most it may
    be, seconds; None: any."""

    name: str
    usual: int
    most: int | None


class VendorSetup(NamedTuple):
    """A shell file with the vendor's paths: where it may lie, and a variable that says it was read."""

    files: tuple[str, ...]
    unless: str


class NodeNeeds(NamedTuple):
    """`slurm` and `kubernetes`: what they call the devices. `variables` are for every node, `variables_between` for
    nodes that meet others. `devices` (`{}` stands for each number from 0) and `files` are what a container mounts,
    `files_between` where nodes meet."""

    slurm: str = "gpu"
    kubernetes: str | None = None
    variables: Mapping[str, str] = {}
    variables_between: Mapping[str, str] = {}
    waiting: TimeoutVariable | None = None
    devices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    files_between: tuple[str, ...] = ()
    setup: VendorSetup | None = None


def node_needs(device: Device) -> NodeNeeds:
    """What a node with this device wants; of a vendor without an entry nothing is known."""
    entry = yaml_table("nodes").get(device.vendor)
    if entry is None:
        return NodeNeeds()
    variables, container = entry.get("variables", {}), entry.get("container", {})
    return NodeNeeds(
        slurm=entry["slurm"],
        kubernetes=entry["kubernetes"],
        variables=_variable_values(variables, several=False),
        variables_between=_variable_values(variables, several=True),
        waiting=_timeout_variable(entry.get("waiting"), device),
        devices=tuple(container.get("devices", ())),
        files=tuple(container.get("files", ())),
        files_between=tuple(container.get("several", ())),
        setup=_vendor_setup(entry.get("setup")),
    )


def _variable_values(variables: Mapping[str, Any], *, several: bool) -> Mapping[str, str]:
    return {name: str(each["value"]) for name, each in variables.items() if each.get("several", False) is several}


def _timeout_variable(entry: Mapping[str, Any] | None, device: Device) -> TimeoutVariable | None:
    return TimeoutVariable(entry["name"], entry["default"], entry["most"].get(device.id)) if entry else None


def _vendor_setup(entry: Mapping[str, Any] | None) -> VendorSetup | None:
    return (
        VendorSetup(tuple(f"{folder}/{entry['file']}" for folder in entry["folders"]), entry["unless"])
        if entry
        else None
    )
