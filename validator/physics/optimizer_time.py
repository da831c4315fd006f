"""Seconds of the optimizer step: the update on the device, or the update on the CPU with the copies that offload
needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from validator.physics.activation_checkpointing import checkpoints_moved_to_host
from validator.physics.communication import gathers_per_micro_batch
from validator.physics.estimate import TimeTerm
from validator.physics.optimizer import optimizer_partitions, optimizer_state_bytes
from validator.physics.rates import AttainedRates, DeviceRates
from validator.physics.training_step import TrainedMatrix, TrainingStep, trained_matrices
from validator.physics.weights import base_weight_bytes
from validator.physics.workload import ZERO_3

# A foreach step reads and writes once for each of its operations (torch, optim/adamw.py, _multi_tensor_adamw): what
# stays the same from one step to the next of fms-acceleration and of peft is this many times what one kernel moves.
_FOREACH_TRAFFIC = 3.5
# Newton-Schulz iterations of Muon, each three products of a matrix with its square; GaLore's and APOLLO's projections
# there and back.
_MUON_ITERATIONS, _PROJECTIONS = 5, 2
# GaLore decomposes every matrix once in this many steps (LLaMA-Factory's galore_update_interval); of rows times columns
# times the smaller of both it gets through so many in a second: four fifths of fine-tuning 7B (arXiv 2412.19820).
_GALORE_INTERVAL, _SVD_RATE = 200, 2.5e10


def device_update_seconds(step: TrainingStep, rates: AttainedRates) -> float:
    """Seconds of the optimizer step for one device's share of the parameters: measuring and clipping the gradients,
    reading and writing optimizer states and weights. Zero if the optimizer is offloaded."""
    if step.sharding.offload_optimizer:
        return 0.0
    sizes, elements = step.sizes, float(step.trained_elements)
    if step.optimizer.states == "one layer":  # BAdam trains one at a time (arXiv 2404.02827)
        elements = min(elements, step.largest_layer)
    clipping = 4.0 * sizes.gradient * elements
    weights = 2 * sizes.master + 2 * (sizes.adapter if step.trains_adapter else sizes.trained)
    passes = _FOREACH_TRAFFIC if step.optimizer.foreach else 1.0
    traffic = clipping + passes * (weights * elements + 2 * optimizer_state_bytes(step))
    return (traffic / rates.bandwidth + _matmul_seconds(step, rates)) / optimizer_partitions(step)


def _matmul_seconds(step: TrainingStep, rates: AttainedRates) -> float:
    """Seconds of the matmuls in an optimizer step of Muon, GaLore or APOLLO, over all trained matrices. Zero for other
    optimizers."""
    if step.optimizer.products == "none":
        return 0.0
    matrices = [matrix for matrix in trained_matrices(step) if matrix.outputs != step.arch.vocab]
    seconds = _muon_seconds if step.optimizer.products == "newton-schulz" else partial(_projection_seconds, step)
    return sum(matrix.number * seconds(rates, matrix) for matrix in matrices)


def _muon_seconds(rates: AttainedRates, matrix: TrainedMatrix) -> float:
    """Seconds of Muon's Newton-Schulz iterations on one matrix."""
    width, length = sorted((matrix.inputs, matrix.outputs))
    return _MUON_ITERATIONS * 3 * rates.product(length, width, width, 2.0)


def _projection_seconds(step: TrainingStep, rates: AttainedRates, matrix: TrainedMatrix) -> float:
    """Seconds to project one matrix's gradient into a space of low rank and back. GaLore's singular value
    decomposition, which finds that space once in many steps, counts with the share of one step."""
    projection = _PROJECTIONS * rates.product(matrix.inputs, matrix.outputs, step.work.optimizer_rank, 4.0)
    if step.optimizer.products == "random":
        return projection
    decomposition = float(matrix.elements) * min(matrix.inputs, matrix.outputs) / _SVD_RATE
    return projection + decomposition / _GALORE_INTERVAL


# Of the host link's rate, what copies from memory that is not page-locked reach: 7.2 GB/s beside 25 (FlagOpen/FlagPerf,
# interconnect-h2d, DGX A100; NVIDIA/nvbandwidth#42).
_PAGEABLE_SHARE = 0.29
# Of a main memory's rate, what copies of all devices together and the update reach: DeepSpeed's CPU Adam takes 0.257 s
# for 10**9 parameters, 30 bytes each, on two Xeon 8168 of 256 GB/s together (ZeRO-Offload, arXiv 2101.06840, table 4).
_HOST_MEMORY_SHARE = 0.46
# Bytes a second that one thread of the update moves. torchrun gives each process of several one thread (torch,
# distributed/run.py, OMP_NUM_THREADS). Qwen2-72B took 10 s on four nodes of A100, or 9.6e9 (DeepSpeed issue 6834);
# a core of a recent EPYC, with its memory to itself, moves 40e9 (own measurement of DeepSpeed 0.18.4).
_THREAD_RATE = 15e9
# Beside weight, gradient and moments: gradients scaled and clipped, and half-precision weights made.
_OTHER_BYTES_PER_ELEMENT = 14.0
# PyTorch's AdamW passes over main memory once for each operation, unless it is fused: 5.4 times as long with many
# threads (ZeRO-Offload, table 4), 13 times with one (own measurement of PyTorch 2.13).
_UNFUSED_FACTOR = 9.0


def offload_seconds(step: TrainingStep, device: DeviceRates) -> Mapping[TimeTerm, float]:
    """Seconds that one step spends on data in main memory, by term: copies between device and host, and the CPU update.
    Copies do not overlap with computation (deepspeed, runtime/zero/stage3.py and stage_1_and_2.py, copy on the stream
    of the computation)."""
    copies = checkpoints_moved_to_host(step) + _weight_copy_bytes(step) + _state_copy_bytes(step)
    return {
        TimeTerm.OFFLOAD_COPIES: copies / _copy_rate(step, device),
        TimeTerm.CPU_OPTIMIZER: _cpu_update_seconds(step, device),
    }


def _copy_rate(step: TrainingStep, device: DeviceRates) -> float:
    """Bytes per second of copies between one device and main memory. All devices of the node share the rate of main
    memory."""
    link = device.host_link * (1.0 if step.sharding.pin_memory or step.strategy.fsdp else _PAGEABLE_SHARE)
    return min(link, _HOST_MEMORY_SHARE * device.host_bandwidth / step.sharding.devices_per_node)


def _weight_copy_bytes(step: TrainingStep) -> float:
    """Bytes of offloaded weights that one device copies from main memory in one optimizer step: the device's part of
    the weights, for each pass of each micro batch. Zero unless parameters are offloaded."""
    if not step.sharding.offload_parameters:
        return 0.0
    return (
        step.work.accumulation * gathers_per_micro_batch(step) * base_weight_bytes(step) / step.sharding.shard_devices
    )


def _state_copy_bytes(step: TrainingStep) -> float:
    """Bytes of gradients and weights that one device copies in one optimizer step for an offloaded optimizer; 0 without
    offload.

    ZeRO keeps the gradients of each micro batch in main memory until the other micro batches are added: stage 3 always,
    the other stages if there are several micro batches. Stage 3 copies these gradients there and back, the other stages
    one way. At the end of the step the gradients go to main memory in fp32, and the updated weights come back. FSDP
    copies its gradients once."""
    sharding, times = step.sharding, step.work.accumulation
    if not sharding.offload_optimizer:
        return 0.0
    if step.strategy.fsdp:
        return step.sizes.gradient * step.trained_elements / sharding.shard_devices
    copies = 2 * times if step.strategy == ZERO_3 else times if times > 1 else 0
    returned = 0.0 if sharding.offload_parameters else step.sizes.compute
    return (copies * step.sizes.gradient + 4.0 + returned) * step.trained_elements / sharding.shard_devices


def _cpu_update_seconds(step: TrainingStep, device: DeviceRates) -> float:
    """Seconds of the optimizer's update on the CPU; 0 unless the optimizer is offloaded. For all partitions of the
    node, the CPU reads gradient, fp32 weight and moments, and writes all of these except the gradient. If a node runs
    several processes, each process has one thread."""
    if not step.sharding.offload_optimizer:
        return 0.0
    sharding = step.sharding
    threads = device.cores if sharding.devices_per_node == 1 else min(device.cores, sharding.devices_per_node)
    rate = min(_HOST_MEMORY_SHARE * device.host_bandwidth, threads * _THREAD_RATE)
    traffic = (12.0 + _OTHER_BYTES_PER_ELEMENT) * step.trained_elements + 2.0 * optimizer_state_bytes(step)
    is_unfused = step.strategy.fsdp and step.optimizer.foreach
    return (_UNFUSED_FACTOR if is_unfused else 1.0) * traffic / sharding.shard_nodes / rate
