"""The resources to request for each node beside its devices: CPUs, main memory, /dev/shm, disk."""

from __future__ import annotations

import math

from validator.knowledge.devices import Machine
from validator.physics.estimate import GIB
from validator.run import node_demand
from validator.run.prediction import predict
from validator.run.settings import RunSettings

# Main memory and disk beyond the end of their bands: the system's own, and files in the page cache.
_HEADROOM = 1.1
_SHM_ROOM_GIB = 2


def requested_cpus(run: RunSettings, machine: Machine) -> int:
    """Return the cores that keep the devices busy, or as many as tokenize before that, if they are more."""
    tokenizers = int(run.args.number("preprocessing_num_workers"))
    limited = node_demand.limit_to_usual_server(tokenizers, machine.device, machine.devices)
    return max(node_demand.training_cpus(run, machine.devices), limited)


def requested_memory_gib(run: RunSettings, machine: Machine) -> int | None:
    """GiB of main memory with headroom. None if that is nearly all of the node (firmware and kernel keep some of a
    server's 1,024 GiB), or if the device's memory comes out of it, too."""
    prediction = predict(run)
    if prediction.host_memory is None or machine.device.shared_memory:
        return None
    asked = math.ceil(_HEADROOM * prediction.host_memory.high / GIB)
    return None if machine.host_ram_gib and asked > 0.9 * machine.host_ram_gib else asked


def requested_shm_gib(run: RunSettings) -> int:
    """GiB of /dev/shm: what loader workers and NCCL put there, and room for what a container's programs add."""
    return _SHM_ROOM_GIB + math.ceil(node_demand.shared_memory_mib(run).enough * node_demand.MIB / GIB)


def requested_disk_gib(run: RunSettings) -> int | None:
    """GiB of disk with headroom; None if the need is not known."""
    prediction = predict(run)
    return math.ceil(_HEADROOM * sum(prediction.disk.values()) / GIB) if prediction.disk else None


def out_of_memory_hint(run: RunSettings) -> str:
    """Return what to do if main memory is short after all. A larger /dev/shm, often tried, is part of it."""
    workers = int(run.args.number("preprocessing_num_workers"))
    fewer = f"fewer `preprocessing_num_workers` than {workers} (where it happens while tokenizing)"
    ways = [
        *([fewer] if workers > 1 else []),
        *(["a configuration that offloads nothing to main memory"] if run.deepspeed and run.deepspeed.offloads else []),
        "nodes with more main memory",
    ]
    short = "Where a rank ends with exit code -9, it was short: a larger /dev/shm does not help; what does"
    return f"{short}: {', or '.join(ways)}."
