"""Set-up of a node before a run starts, by the vendor of its devices: bash lines, and the devices and files that a
container mounts. Settings of the user, the image or the site win. Nodes run the file script/reach.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from validator.knowledge.devices import Device
from validator.knowledge.node_environment import MAX_OPEN_FILES, VendorSetup, node_needs
from validator.run.launch_command import P2P_MIN_DRIVER, P2P_VARIABLES, lacks_p2p


def read_script(file: Path) -> list[str]:
    """Return the lines of a file."""
    return file.read_text("utf-8").splitlines()


def python_function(name: str, file: Path, argument: str) -> list[str]:
    """Return a bash function that runs a Python file with an argument. The file uses Python's standard library only."""
    text = read_script(file)
    short = [line for before, line in zip(["", *text], text, strict=False) if before or line]  # no two blank lines
    return [f"{name}() {{", f"  python3 - {argument} <<'PYTHON'", *short, "PYTHON", "}"]


def indent_lines(block: Iterable[str]) -> list[str]:
    """Return the lines of a block, indented."""
    return [f"  {line}" for line in block]


# Run by nodes, with Python's own library alone.
_LOCAL_ADDRESS_PROGRAM = Path(__file__).parent / "script" / "reach.py"


class ContainerMounts(NamedTuple):
    """Paths of devices, and of files and folders, that a container takes from its node under the same names."""

    devices: tuple[str, ...]
    files: tuple[str, ...]


def container_mounts(device: Device, count: int, nodes: int = 1) -> ContainerMounts:
    """Return what a container with the first `count` devices mounts where no runtime of the vendor does it."""
    wanted = node_needs(device)
    numbered = (path.format(number) for path in wanted.devices if "{}" in path for number in range(count))
    others = (path for path in wanted.devices if "{}" not in path)
    return ContainerMounts((*numbered, *others), (*wanted.files, *(wanted.files_between if nodes > 1 else ())))


def local_address_lines() -> list[str]:
    """A bash function that prints the address by which this node reaches another one."""
    return python_function("reach", _LOCAL_ADDRESS_PROGRAM, '"$1"')


def device_setup_lines(device: Device, count: int = 1, nodes: int = 1) -> list[str]:
    """Return bash lines for each node, to run after the site's own lines and before the run. `set -eu` may be on.
    MASTER_ADDR is set where several nodes meet."""
    lines = [
        "# Loaders take many open files, network adapters much locked memory; without end, files cost time, too",
        f'ulimit -S -n {MAX_OPEN_FILES} 2>/dev/null || ulimit -S -n "$(ulimit -H -n)"',
        'ulimit -S -l "$(ulimit -H -l)"',
    ]
    if setup := node_needs(device).setup:
        lines += _vendor_path_lines(setup)
    if lacks_p2p(device, count, nodes):
        lines += _old_driver_lines()
    return lines + _meeting_address_lines(device) if nodes > 1 else lines


def _vendor_path_lines(setup: VendorSetup) -> list[str]:
    """Return lines that set the vendor's paths. The vendor's file appends to variables that may not be set, which `set
    -u` forbids."""
    return [
        "# The vendor's paths, unless the image or the site has set them",
        f"for file in {' '.join(setup.files)}; do",
        f'  [ -z "${{{setup.unless}:-}}" ] && [ -r "$file" ] || continue',
        '  flags=$-; set +u; . "$file" || true; case $flags in *u*) set -u ;; esac',
        "done",
    ]


def _old_driver_lines() -> list[str]:
    query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader --id=0"
    return [
        f"# accelerate refuses several of these cards with a driver before {P2P_MIN_DRIVER}, unless both are off",
        f'if [ "$(printf \'%s\\n\' {P2P_MIN_DRIVER} "$({query})" | sort -V | head -n 1)" != {P2P_MIN_DRIVER} ]; then',
        f"  export {' '.join(f'{name}=1' for name in P2P_VARIABLES)}",
        "fi",
    ]


def _meeting_address_lines(device: Device) -> list[str]:
    """Under an elastic launch the first process tells the others its node's own name, which they may not know, unless
    an address is given (torch, elastic/rendezvous/api.py; each option of torchrun is read from PET_…, too). Gloo, which
    carries what FSDP keeps in main memory, takes the address that the node's own name has; HCCL the first interface by
    name, which on another node may lead elsewhere (CANN, HCCL_IF_IP). NCCL finds its way by itself. An address that the
    job has brought along is of another node, and does not count. Where a container starts before the cluster knows the
    first node's name, it waits a minute."""
    told = [
        'export PET_LOCAL_ADDR="$address"',
        "interface=$(ip -o addr show to \"$address\" 2>/dev/null | awk 'NR == 1 { print $2 }') || true",
        '[ -z "$interface" ] || export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"',
    ]
    if node_needs(device).collectives == "hccl":
        told.append('if [ -n "${HCCL_SOCKET_IFNAME:-}" ]; then unset HCCL_IF_IP; else export HCCL_IF_IP="$address"; fi')
    return [
        "# The address by which this node and the first one meet: names and first interfaces may lead elsewhere",
        *local_address_lines(),
        "for attempt in {1..30}; do",
        '  address=$(reach "$MASTER_ADDR" 2>/dev/null) && break',
        "  sleep 2",
        "done",
        ': "${address:?the first node, $MASTER_ADDR, is not known here}"',
        "case $address in 127.* | ::1) ;; *)",
        *(f"  {line}" for line in told),
        "esac",
    ]
