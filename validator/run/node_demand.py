"""CPU cores and shared memory (/dev/shm) that the processes of a run need on a node."""

from __future__ import annotations

from typing import NamedTuple

from validator.knowledge.devices import Device
from validator.physics.estimate import GIB, DeviceTerm
from validator.run.launch_command import optimizer_runs_on_host
from validator.run.prediction import Job

MIB = GIB / 1024
_CORES_PER_PROCESS = 2  # one starts kernels, another computes gradients and drives NCCL
# NCCL: a segment of 9,637,888 bytes for each neighbour of a device whose data pass main memory, of 33,030,528 for each
# device where channels are proxied (NVIDIA/nccl issues 525 and 1518, ai-dynamo/dynamo issue 1408). With 64 MiB four T4
# fail, two devices pass, and so do eight A100 on NVLink.
_NEIGHBOUR_MIB = 2 * 9_637_888 / MIB
_PROXY_MIB = 2 * 33_030_528 / MIB
# A loader worker hands its batches over through shared memory: ids, labels, mask and positions, 8 bytes each. Three
# workers with batches of 4 x 65,536 tokens take 48.06 MiB, of which 48.0 are these (measured with torch 2.13).
_TOKEN_BYTES = 32.0
_PREFETCHED_BATCHES = 2  # that a worker prepares ahead (torch, utils/data/dataloader.py, prefetch_factor)


def training_cpus(job: Job, devices: int) -> int:
    """CPU cores of a node below which its devices wait: two for each process and one for each of its loader workers.
    An optimizer that updates the weights in main memory takes half of the devices' share of their usual server; a
    server of the user's may have fewer cores, and main memory is what it waits for."""
    wanted = devices * (_CORES_PER_PROCESS + job.batch.dataloader_workers)
    if job.machine is None:
        return wanted
    rates = job.machine.device.rates(devices)
    if rates and optimizer_runs_on_host(job):
        wanted = max(wanted, rates.cores // 2)
    return limit_to_usual_server(wanted, job.machine.device, devices)


def limit_to_usual_server(wanted: int, device: Device, devices: int) -> int:
    """Return the cores that are wanted, but no more than the devices' usual server has, unless that is less than one
    for each device."""
    rates = device.rates(devices)
    return min(wanted, max(rates.cores, devices)) if rates else wanted


class SharedMemory(NamedTuple):
    """MiB of /dev/shm on a node: `least`, below which runs have failed, and `enough`."""

    least: float
    enough: float


def shared_memory_mib(job: Job, *, nccl: bool = True) -> SharedMemory:
    """Shared memory for the batches of loader workers and for NCCL; `nccl` is false if NCCL is told to use none."""
    devices = job.machine.devices if job.machine else 1
    sequences = job.batch.micro_batch * (2 if job.task.uses_preference_pairs else 1)
    pixels = (
        job.device_memory.terms.get(DeviceTerm.TOWER_INPUTS, 0.0) / job.batch.accumulation if job.device_memory else 0.0
    )
    batches = (sequences * job.batch.max_tokens * _TOKEN_BYTES + pixels) / MIB * job.batch.dataloader_workers * devices
    prefetched = batches * (int(job.args.number("dataloader_prefetch_factor")) or _PREFETCHED_BATCHES)
    if devices == 1 or job.machine is None or job.machine.device.vendor not in ("nvidia", "amd") or not nccl:
        return SharedMemory(batches, prefetched)
    rates = job.machine.device.rates(devices)
    passes = rates is not None and not rates.nvlink_switch
    return SharedMemory(batches + passes * devices * _NEIGHBOUR_MIB, prefetched + devices * _PROXY_MIB)
