"""Shared memory, /dev/shm: of 64 MiB in a container where nobody asks for more."""

from __future__ import annotations

import os
from collections.abc import Iterator

from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.job.job import Job
from validator.memory.terms import Device
from validator.tables import switch

_WHAT = "/dev/shm"
_MIB = float(1 << 20)
# NCCL: a segment of 9,637,888 bytes for each neighbour of a device whose data pass main memory, of 33,030,528 for each
# device where channels are proxied (NVIDIA/nccl issues 525 and 1518, ai-dynamo/dynamo issue 1408). With 64 MiB four T4
# fail, two devices pass, and so do eight A100 on NVLink.
_NEIGHBOUR = 2 * 9_637_888 / _MIB
_PROXY = 2 * 33_030_528 / _MIB
# A loader worker hands its batches over through shared memory: ids, labels, mask and positions, 8 bytes each. Three
# workers with batches of 4 x 65,536 tokens take 48.06 MiB, of which 48.0 are these (measured with torch 2.13).
_TOKEN = 32.0
_BATCHES = 2  # that a worker prepares ahead (torch, utils/data/dataloader.py, prefetch_factor)
_REMEDY = (
    "`docker run --shm-size=16g` or `--ipc=host`, in Kubernetes an emptyDir of medium Memory at /dev/shm; that cures a "
    "bus error and NCCL's `Error while creating shared memory segment`, not exit code -9, which is main memory"
)


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """What is free there, against what loader workers and NCCL put there."""
    try:
        there = os.statvfs(node.root / "dev/shm")
    except OSError:
        yield Line("warning", _WHAT, "is not there: loader workers and NCCL need it", "", _REMEDY)
        return
    free, size = (blocks * there.f_frsize / _MIB for blocks in (there.f_bavail, there.f_blocks))
    yield _judged(free, size, *_wanted(job)) if job else _alone(free, size)


def _alone(free: float, size: float) -> Line:
    tiny = size <= 64
    return Line("warning" if tiny else "ok", _WHAT, _words(free, size), "", _REMEDY if tiny else "")


def _judged(free: float, size: float, least: float, enough: float) -> Line:
    state: State = "error" if free < least else "warning" if free < enough else "ok"
    full = free < least <= size
    remedy = "remove what ended runs have left there: `ls -l /dev/shm`" if full else _REMEDY
    wanted = _amount(enough) if enough >= 1 else ""
    return Line(state, _WHAT, _words(free, size), wanted, "" if state == "ok" else remedy)


def _wanted(job: Job) -> tuple[float, float]:
    """MiB without which the run has failed elsewhere, and MiB that are enough."""
    devices = job.machine.devices if job.machine else 1
    batches = _batch(job) * job.loaders * devices
    prefetched = batches * (int(job.number("dataloader_prefetch_factor")) or _BATCHES)
    if devices == 1 or job.machine is None or job.machine.device.vendor not in ("nvidia", "amd"):
        return batches, prefetched
    if switch.on("NCCL_SHM_DISABLE"):
        return batches, prefetched
    rates = job.machine.device.rates(devices)
    passes = rates is not None and not rates.switched
    return batches + passes * devices * _NEIGHBOUR, prefetched + devices * _PROXY


def _batch(job: Job) -> float:
    """MiB of a micro batch on its way from a worker: tokens, and pictures as numbers."""
    sequences = job.micro_batch * (2 if job.pairs else 1)
    pixels = job.device_memory.terms.get(Device.PIXELS, 0.0) / job.accumulation if job.device_memory else 0.0
    return (sequences * job.longest * _TOKEN + pixels) / _MIB


def _words(free: float, size: float) -> str:
    return f"{_amount(free)} free of {_amount(size)}"


def _amount(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"
