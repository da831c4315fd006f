"""What to request of each node beside its devices: CPUs, main memory, /dev/shm, disk."""

from __future__ import annotations

import math

from validator.knowledge.devices import Machine
from validator.run import launch_command, launcher
from validator.run.prediction import GIB, Job

# Main memory and disk beyond the end of their bands: the system's own, and files in the page cache.
_HEADROOM = 1.1


def requested_cpus(job: Job, machine: Machine) -> int:
    """Those that feed the devices; as many as tokenize; where the optimizer computes there half of the devices' share
    of their usual server, as a server of the site's may have fewer, and memory is what that waits for."""
    wanted = max(launcher.busy_cores(job, machine.devices), int(job.number("preprocessing_num_workers")))
    rates = machine.device.rates(machine.devices)
    if rates and launch_command.optimizer_runs_on_host(job):
        wanted = max(wanted, rates.cores // 2)
    return launcher.limit_to_usual_server(wanted, machine.device, machine.devices)


def requested_memory_gib(job: Job, machine: Machine) -> int | None:
    """GiB with headroom. None where that is nearly all there is: firmware and kernel keep some of a server's 1,024; or
    where the device's memory comes out of it, too."""
    if job.host_memory is None or machine.device.shared_memory:
        return None
    asked = math.ceil(_HEADROOM * job.host_memory.high / GIB)
    return None if machine.host_ram_gib and asked > 0.9 * machine.host_ram_gib else asked


def requested_shm_gib(job: Job, machine: Machine) -> int:
    """GiB: processes of a node exchange data there (NCCL), and loaders hand over batches, which with pictures and sound
    take up to a GiB."""
    return 2 + machine.devices * (1 + job.loaders)


def requested_disk_gib(job: Job) -> int | None:
    """GiB with headroom; None where that is not known."""
    return math.ceil(_HEADROOM * sum(job.disk.values()) / GIB) if job.disk else None


def out_of_memory_hint(job: Job) -> str:
    """What to do where main memory is short after all. More of /dev/shm, which is part of it, is often tried in
    vain."""
    workers = int(job.number("preprocessing_num_workers"))
    fewer = f"fewer `preprocessing_num_workers` than {workers} (where it happens while tokenizing)"
    ways = [
        *([fewer] if workers > 1 else []),
        *(["a configuration that offloads nothing to main memory"] if job.zero and job.zero.offloads else []),
        "nodes with more main memory",
    ]
    short = "Where a rank ends with exit code -9, it was short: a larger /dev/shm does not help; what does"
    return f"{short}: {', or '.join(ways)}."
