"""What a run wants of its nodes beside torchrun's own variables, by the vendor of the devices: environment, lines of
bash, mounts. What the user, the image or the site has set wins."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from validator.job import ray
from validator.job.job import Job
from validator.tables import releases
from validator.tables.data import listing
from validator.tables.devices import Device
from validator.tables.nodes import Setup, node
from validator.train import bash

# Run by nodes, with Python's own library alone.
_REACH = Path(__file__).parent / "script" / "reach.py"
_THREADS = "OMP_NUM_THREADS"
# Cards with these words in their name: where a machine has several, accelerate stops even one process with a driver
# before this one, unless both variables are set (accelerate, state.py and utils/environment.py). Later drivers know
# that these cards have no peer access.
_PEERLESS, _KNOWING = "RTX 40", "550.40.07"
_WITHOUT_PEERS = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


class Mounts(NamedTuple):
    """Paths of devices, and of files and folders, that a container takes from its node under the same names."""

    devices: tuple[str, ...]
    files: tuple[str, ...]


def variables(device: Device, nodes: int = 1, wait: float = 0.0) -> dict[str, str]:
    """The environment that every node wants. `wait`: seconds that processes may wait for each other (`ddp_timeout`):
    HCCL ends the wait by its own limit, whatever the process group's is (torch_npu, ProcessGroupHCCL.cpp)."""
    wanted = node(device)
    limits = {}
    if (waiting := wanted.waiting) and wait > waiting.usual:
        limits[waiting.name] = str(int(min(wait, waiting.most or wait)))
    return {**wanted.variables, **(wanted.variables_between if nodes > 1 else {}), **limits}


def threads(job: Job, cores: int | None = None) -> dict[str, str]:
    """Threads for each process of a node with so many cores, where the optimizer's states are in main memory: torchrun
    gives each of several processes one, on which alone the update runs (torch, distributed/run.py). One process has
    all by itself, and a worker of Ray those reserved for it. Without `cores` the node's shell is to count them."""
    processes = job.machine.devices if job.machine else 1
    if processes == 1 or ray.on() or not steps_on_host(job):
        return {}
    return {_THREADS: f"$(($(nproc) / {processes}))" if cores is None else str(max(1, cores // processes))}


def steps_on_host(job: Job) -> bool:
    """Whether processors update the weights."""
    return bool(job.zero and job.zero.offload("offload_optimizer")) or bool(job.fsdp and job.fsdp.offload)


def without_peers(driver: str) -> dict[str, str]:
    """What accelerate wants set for peerless cards with this release of the driver."""
    return {} if releases.admits(f">={_KNOWING}", driver) else dict.fromkeys(_WITHOUT_PEERS, "1")


def peerless(device: Device, count: int, nodes: int) -> bool:
    """Whether accelerate may ask for the driver's release. It counts the cards of the machine, of which a run may take
    one; nodes with a card each keep InfiniBand."""
    products = listing("devices").get(device.id, {}).get("products", ())
    return (count > 1 or nodes == 1) and any(_PEERLESS in product for product in products)


def mounts(device: Device, count: int, nodes: int = 1) -> Mounts:
    """What a container with the first `count` devices needs of its node, where no runtime of the vendor mounts it."""
    wanted = node(device)
    numbered = (path.format(number) for path in wanted.devices if "{}" in path for number in range(count))
    others = (path for path in wanted.devices if "{}" not in path)
    return Mounts((*numbered, *others), (*wanted.files, *(wanted.files_between if nodes > 1 else ())))


def reach() -> list[str]:
    """A function of bash, which prints the address by which this node reaches another."""
    return bash.program("reach", _REACH, '"$1"')


def setup_lines(device: Device, count: int = 1, nodes: int = 1) -> list[str]:
    """Lines of bash for each node before the run starts, after the site's own; `set -eu` may be on. MASTER_ADDR is set
    where several nodes meet."""
    lines = [
        "# Loaders take many open files, network adapters much locked memory; without end, files cost time, too",
        'ulimit -S -n 1048576 2>/dev/null || ulimit -S -n "$(ulimit -H -n)"',
        'ulimit -S -l "$(ulimit -H -l)"',
    ]
    if setup := node(device).setup:
        lines += _paths(setup)
    if peerless(device, count, nodes):
        lines += _old_driver()
    return lines + _meeting(device) if nodes > 1 else lines


def _paths(setup: Setup) -> list[str]:
    """The file appends to variables that may not be set, which `set -u` forbids."""
    return [
        "# The vendor's paths, unless the image or the site has set them",
        f"for file in {' '.join(setup.files)}; do",
        f'  [ -z "${{{setup.unless}:-}}" ] && [ -r "$file" ] || continue',
        '  flags=$-; set +u; . "$file" || true; case $flags in *u*) set -u ;; esac',
        "done",
    ]


def _old_driver() -> list[str]:
    query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader --id=0"
    return [
        f"# accelerate refuses several of these cards with a driver before {_KNOWING}, unless both are off",
        f'if [ "$(printf \'%s\\n\' {_KNOWING} "$({query})" | sort -V | head -n 1)" != {_KNOWING} ]; then',
        f"  export {' '.join(f'{name}=1' for name in _WITHOUT_PEERS)}",
        "fi",
    ]


def _meeting(device: Device) -> list[str]:
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
    if device.vendor == "ascend":
        told.append('if [ -n "${HCCL_SOCKET_IFNAME:-}" ]; then unset HCCL_IF_IP; else export HCCL_IF_IP="$address"; fi')
    return [
        "# The address by which this node and the first one meet: names and first interfaces may lead elsewhere",
        *reach(),
        "for attempt in {1..30}; do",
        '  address=$(reach "$MASTER_ADDR" 2>/dev/null) && break',
        "  sleep 2",
        "done",
        ': "${address:?the first node, $MASTER_ADDR, is not known here}"',
        "case $address in 127.* | ::1) ;; *)",
        *(f"  {line}" for line in told),
        "esac",
    ]
