"""States and activations in main memory: what travels there and back, and the update by the processor. Seconds."""

from __future__ import annotations

from collections.abc import Mapping

from validator.memory.layer import checkpoint
from validator.memory.optimizer import FOREACH, state_bytes
from validator.memory.run import Run
from validator.memory.weights import base_weights

from .device import Device
from .terms import Term
from .traffic import passed

# Of the host link's rate, what copies from memory that is not page-locked reach: 7.2 GB/s beside 25 (FlagOpen/FlagPerf,
# interconnect-h2d, DGX A100; NVIDIA/nvbandwidth#42).
_PAGEABLE = 0.29
# Of a main memory's rate, what copies of all devices together and the update reach: DeepSpeed's CPU Adam takes 0.257 s
# for 10**9 parameters, 30 bytes each, on two Xeon 8168 of 256 GB/s together (ZeRO-Offload, arXiv 2101.06840, table 4).
_MEMORY = 0.46
# Bytes a second that one thread of the update moves. torchrun gives each process of several one thread (torch,
# distributed/run.py, OMP_NUM_THREADS). Qwen2-72B took 10 s on four nodes of A100, or 9.6e9 (DeepSpeed issue 6834);
# a core of a recent EPYC, with its memory to itself, moves 40e9 (own measurement of DeepSpeed 0.18.4).
_THREAD = 15e9
# Beside weight, gradient and moments: gradients scaled and clipped, and half-precision weights made.
_BESIDE = 14.0
# PyTorch's AdamW passes over main memory once for each operation, unless it is fused: 5.4 times as long with many
# threads (ZeRO-Offload, table 4), 13 times with one (own measurement of PyTorch 2.13).
_UNFUSED = 9.0


def offload(run: Run, device: Device) -> Mapping[Term, float]:
    """Seconds of a step for what lies in main memory. Copies wait for the device and it for them (deepspeed,
    runtime/zero/stage3.py and stage_1_and_2.py, copy on the stream of the computation)."""
    moved = _activations(run) + _weights(run) + _states(run)
    return {Term.OFFLOAD: moved / _copied(run, device), Term.HOST_OPTIMIZER: _update(run, device)}


def _copied(run: Run, device: Device) -> float:
    """Bytes a second between one device and main memory, which all of the node share."""
    link = device.host_link * (1.0 if run.sharding.pin_memory or run.sharding.fsdp else _PAGEABLE)
    return min(link, _MEMORY * device.host_bandwidth / run.sharding.devices_per_node)


def _activations(run: Run) -> float:
    """Bytes of checkpoints that leave and come back in each micro batch."""
    if run.checkpointing != "offloaded":
        return 0.0
    return 2.0 * run.work.accumulation * sum(number for number, _ in run.visited) * checkpoint(run)


def _weights(run: Run) -> float:
    """Bytes of this device's part of the weights, fetched for each pass of each micro batch."""
    if not run.sharding.offload_parameters:
        return 0.0
    return run.work.accumulation * passed(run) * base_weights(run) / run.sharding.world


def _states(run: Run) -> float:
    """Bytes of this device's part of gradients and weights. Those of each micro batch of several, and always those of
    stage 3, lie in main memory until the others are added: stage 3 takes them there and back, the others one way. In
    the end gradients go there in fp32, and the updated weights come back. FSDP's gradients go there once."""
    sharding, times = run.sharding, run.work.accumulation
    if not sharding.offload_optimizer:
        return 0.0
    if sharding.fsdp:
        return run.sizes.gradient * run.trained / sharding.world
    ways = 2 * times if sharding.zero == 3 else times if times > 1 else 0
    back = 0.0 if sharding.offload_parameters else run.sizes.compute
    return (ways * run.sizes.gradient + 4.0 + back) * run.trained / sharding.world


def _update(run: Run, device: Device) -> float:
    """Gradient and weight in fp32 and the moments, of all partitions of the node, are read, and all but the gradient
    written. A process of several has one thread."""
    if not run.sharding.offload_optimizer:
        return 0.0
    sharding = run.sharding
    threads = device.cores if sharding.devices_per_node == 1 else min(device.cores, sharding.devices_per_node)
    rate = min(_MEMORY * device.host_bandwidth, threads * _THREAD)
    moved = (12.0 + _BESIDE) * run.trained + 2.0 * state_bytes(run)
    unfused = sharding.fsdp and run.work.optimizer in FOREACH
    return (_UNFUSED if unfused else 1.0) * moved / sharding.nodes / rate
