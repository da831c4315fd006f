"""Processors that a run keeps busy on each node."""

from __future__ import annotations

from validator.job.job import Job
from validator.tables.devices import Device

_PROCESS = 2  # one starts kernels, another computes gradients and drives NCCL


def feeding(job: Job, devices: int) -> int:
    """Those of the processes and their loaders."""
    return devices * (_PROCESS + job.loaders)


def at_most(wanted: int, device: Device, devices: int) -> int:
    """No more than the devices' usual server has, but one for each."""
    rates = device.rates(devices)
    return min(wanted, max(rates.cores, devices)) if rates else wanted
