"""Needs of a run on each node apart from main memory: CPU cores and shared memory (/dev/shm)."""

from __future__ import annotations

from typing import NamedTuple

from validator.knowledge.devices import Device
from validator.knowledge.node_environment import node_needs
from validator.physics.estimate import GIB, DeviceTerm
from validator.run.prediction import predict

from .launch_command import optimizer_runs_on_host
from .settings import RunSettings

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


def training_cpus(run: RunSettings, devices: int) -> int:
    """CPU cores that a node needs so that its devices do not wait: two for each process and one for each of its loader
    workers. If the optimizer updates weights in main memory, at least half of the cores that a usual server has for
    these devices. Half is enough, because such an optimizer mainly waits for main memory, and the user's server may
    have fewer cores. Never more cores than a usual server has."""
    cores = devices * (_CORES_PER_PROCESS + run.batch.dataloader_workers)
    if run.machine is None:
        return cores
    rates = run.machine.device.rates(devices)
    if rates and optimizer_runs_on_host(run):
        cores = max(cores, rates.cores // 2)
    return limit_to_usual_server(cores, run.machine.device, devices)


def limit_to_usual_server(cores: int, device: Device, devices: int) -> int:
    """Return `cores`, but at most the cores that a usual server has for this number of devices. The limit is at least
    one core per device. Without published rates for the device there is no limit."""
    rates = device.rates(devices)
    return min(cores, max(rates.cores, devices)) if rates else cores


class SharedMemory(NamedTuple):
    """MiB of /dev/shm on a node. `least`: runs have failed with less; `enough`: runs do not need more."""

    least: float
    enough: float


def shared_memory_mib(run: RunSettings, *, nccl: bool = True) -> SharedMemory:
    """MiB of shared memory (/dev/shm) per node for the batches of loader workers and for NCCL. `nccl`: False if NCCL is
    configured to use no shared memory."""
    devices = run.machine.devices if run.machine else 1
    sequences = run.batch.micro_batch * (2 if run.task.uses_preference_pairs else 1)
    memory = predict(run).device_memory
    pixels = memory.terms.get(DeviceTerm.TOWER_INPUTS, 0.0) / run.batch.accumulation if memory else 0.0
    batches = (sequences * run.batch.max_tokens * _TOKEN_BYTES + pixels) / MIB * run.batch.dataloader_workers * devices
    prefetched = batches * (int(run.args.number("dataloader_prefetch_factor")) or _PREFETCHED_BATCHES)
    if devices == 1 or run.machine is None or node_needs(run.machine.device).collectives != "nccl" or not nccl:
        return SharedMemory(batches, prefetched)
    rates = run.machine.device.rates(devices)
    passes = rates is not None and not rates.nvlink_switch
    return SharedMemory(batches + passes * devices * _NEIGHBOUR_MIB, prefetched + devices * _PROXY_MIB)
