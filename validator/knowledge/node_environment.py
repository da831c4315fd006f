"""Needs of a node that no recipe states, by the vendor of its devices: environment variables, container devices and
files, scheduler resources, the driver and its tool (data/nodes.yaml). Also reads environment switches as LLaMA-Factory
does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from validator.knowledge.devices import Device
from validator.knowledge.tables import yaml_table

# The soft limit of open files that a run is given: loader workers pass tensors as open files. Containers usually
# allow as many; without a limit, programs that close every possible file when they start lose time.
MAX_OPEN_FILES = 1_048_576
_ENABLED_WORDS = ("true", "y", "1")


def is_env_enabled(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """True if LLaMA-Factory takes an environment variable as on: its value is `true`, `y` or `1`, in any case
    (llamafactory/extras/misc.py, is_env_enabled). All other values are off, even "yes" and "on"."""
    return environment.get(name, "").lower() in _ENABLED_WORDS


class TimeoutVariable(NamedTuple):
    """The environment variable that limits how long processes wait for each other. `usual`: its default in seconds.
    `most`: its largest value in seconds; None: no limit."""

    name: str
    usual: int
    most: int | None


class VendorSetup(NamedTuple):
    """A shell file that sets the paths of a vendor's software. `files`: the paths where the file may be. `unless`: an
    environment variable that is set once the file was read."""

    files: tuple[str, ...]
    unless: str


class NodeNeeds(NamedTuple):
    """Needs of a node with devices of one vendor. `slurm` and `kubernetes`: what these schedulers call the devices;
    None: do not request devices. `collectives`: the library by which processes exchange tensors; None: not known.
    `pip_torch`: PyTorch that pip installs runs on these devices with no more than their driver. `image_tag_end`: end of
    the name of LLaMA-Factory's image for these devices; None: LLaMA-Factory has no image. `python_ops`: operators of
    DeepSpeed that are not built for these devices.

    `variables`: environment variables for every node; `variables_between`: more variables for nodes that exchange
    tensors with others. `waiting`: the variable that limits how long processes wait for each other. `devices` (`{}`
    stands for each number from 0) and `files`: what a container mounts; `files_between`: more files to mount if there
    are several nodes. `setup`: the vendor's shell file."""

    slurm: str | None = "gpu"
    kubernetes: str | None = "nvidia.com/gpu"
    collectives: Literal["nccl", "hccl", "gloo"] | None = None
    pip_torch: bool = False
    image_tag_end: str | None = None
    python_ops: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    variables_between: Mapping[str, str] = {}
    waiting: TimeoutVariable | None = None
    devices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    files_between: tuple[str, ...] = ()
    setup: VendorSetup | None = None


def node_needs(device: Device) -> NodeNeeds:
    """Return the needs of a node with this device. For a vendor without an entry in data/nodes.yaml, return the
    defaults of NodeNeeds."""
    entry = yaml_table("nodes").get(device.vendor)
    if entry is None:
        return NodeNeeds()
    variables, container = entry.get("variables", {}), entry.get("container", {})
    wait, setup, images = entry.get("waiting"), entry.get("setup"), entry.get("image", {})
    return NodeNeeds(
        slurm=entry["slurm"],
        kubernetes=entry["kubernetes"],
        collectives=entry["collectives"],
        pip_torch=entry.get("pip_torch", False),
        image_tag_end=images.get(device.id, images.get("default")),
        python_ops=tuple(entry.get("python_ops", ())),
        variables={name: str(each["value"]) for name, each in variables.items() if not each.get("several")},
        variables_between={name: str(each["value"]) for name, each in variables.items() if each.get("several")},
        waiting=TimeoutVariable(wait["name"], wait["default"], wait["most"].get(device.id)) if wait else None,
        devices=tuple(container.get("devices", ())),
        files=tuple(container.get("files", ())),
        files_between=tuple(container.get("several", ())),
        setup=VendorSetup(tuple(f"{folder}/{setup['file']}" for folder in setup["folders"]), setup["unless"])
        if setup
        else None,
    )


class VendorDriver(NamedTuple):
    """How a vendor's driver shows its devices. `tool`: the program that lists them; `tool_remedy`: how to get the
    program if only the device files exist. `variables`: environment variables that hide devices from a run, in order of
    precedence. `device_files`: pattern of the device files, relative to the root folder. `runtime` (CUDA, ROCm, CANN)
    cannot start without `needed_files`; `file_remedy` says how to get these files, or the program `maker` makes them on
    request."""

    tool: str
    tool_remedy: str
    variables: Sequence[str]
    device_files: str
    runtime: str
    needed_files: Sequence[str]
    file_remedy: str
    maker: str = ""


def vendor_drivers() -> dict[str, VendorDriver]:
    """Return the known drivers, by vendor."""
    entries = yaml_table("nodes").items()
    return {vendor: VendorDriver(**entry["driver"]) for vendor, entry in entries if "driver" in entry}
