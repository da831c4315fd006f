"""Main memory of one node while a run loads, trains and saves, with offloaded states; and the disk space of the run.
All in bytes."""

from __future__ import annotations

from collections.abc import Mapping

from validator.physics import decoder_layers
from validator.physics.activation_checkpointing import checkpoints_held_on_host
from validator.physics.architecture import Architecture
from validator.physics.estimate import GIB, DiskTerm, Estimate, HostTerm, largest_phase
from validator.physics.optimizer import (
    optimizer_partitions,
    optimizer_state_bytes,
    paged_state_bytes,
    states_and_master_bytes,
)
from validator.physics.training_step import TrainingStep, trained_bytes, training_step
from validator.physics.weights import (
    loaded_weight_bytes,
    reference_weight_bytes,
    second_copy_bytes,
    shardable_weight_bytes,
)
from validator.physics.workload import ZERO_3, Workload

TENSOR_ROUNDING = 4 / 3  # a size lies anywhere between two powers of two: what rounding it up costs on average


def pinned_bytes(size: float) -> float:
    """Bytes that one page-locked tensor of `size` bytes occupies. PyTorch's host allocator rounds up to a power of two
    and keeps what is freed (ATen/core/CachingHostAllocator.h)."""
    return float(1 << (max(int(size), 1) - 1).bit_length())


def _page_locked_bytes(step: TrainingStep, size: float) -> float:
    return pinned_bytes(size) if step.sharding.pin_memory else size


def _partition_elements(step: TrainingStep) -> float:
    """Number of trained elements in the partition of one process."""
    return step.trained_elements / step.sharding.shard_devices


def _sub_group_gradient_bytes(step: TrainingStep) -> float:
    """Bytes of the fp32 gradients of one process's partition in main memory. ZeRO-3 keeps one tensor for each
    sub-group, other stages keep one tensor."""
    elements = _partition_elements(step)
    group = step.sharding.sub_group_size if step.strategy == ZERO_3 else elements
    groups, rest = divmod(elements, max(group, 1))
    return groups * _page_locked_bytes(step, 4 * group) + (_page_locked_bytes(step, 4 * rest) if rest >= 1 else 0.0)


def offloaded_state_terms(step: TrainingStep) -> Mapping[HostTerm, float]:
    """Return the bytes by term that an offloaded optimizer keeps in main memory for this node's partitions (deepspeed,
    runtime/zero/stage3.py and stage_1_and_2.py). Without offload only paged moments count.

    DeepSpeed keeps fp32 master weights and moments, page-locked fp32 gradients, and half-precision copies. In stage 3
    the copy holds the arriving gradients. In lower stages one copy holds the weights on their way back, and with
    gradient accumulation a second copy holds the accumulated gradients. FSDP offloads moments and gradients without
    these copies."""
    sharding, devices, partition = step.sharding, step.sharding.devices_per_node, _partition_elements(step)
    if not sharding.offload_optimizer:
        return {HostTerm.MOMENTS: devices * paged_state_bytes(step) / optimizer_partitions(step)}
    moments, half = devices * optimizer_state_bytes(step) / optimizer_partitions(step), step.sizes.gradient * partition
    if step.strategy.fsdp:
        return {HostTerm.MOMENTS: moments, HostTerm.GRADIENTS: devices * step.sizes.gradient * partition}
    stage3 = step.strategy == ZERO_3
    master = 4.0 * partition if stage3 else _page_locked_bytes(step, 4 * partition)
    copies = 1 if stage3 or step.work.accumulation == 1 else 2
    return {
        HostTerm.MOMENTS: moments,
        HostTerm.MASTER: devices * master,
        HostTerm.GRADIENTS: devices * _sub_group_gradient_bytes(step),
        HostTerm.HALF_PRECISION_COPIES: devices * copies * _page_locked_bytes(step, half),
    }


def _fsdp_shard_bytes(step: TrainingStep) -> float:
    """Bytes of the page-locked weight shards of this node under FSDP. FSDP1 makes one flat tensor for each layer and
    one for all other weights. For each flat tensor it makes a gradient of the same size, even if the weights are frozen
    (torch, distributed/fsdp/_flat_param.py, init_flat_param_attributes); gradients of weights that train are not
    included here. FSDP2 makes one tensor for each parameter, and makes gradients only when they are computed
    (_fully_shard/_fsdp_param.py)."""
    sharding, parameters = step.sharding, shardable_weight_bytes(step)
    if sharding.upcasts_frozen_weights:
        return parameters * TENSOR_ROUNDING / sharding.shard_nodes
    rest = step.vocabulary_elements * (step.sizes.trained if step.work.method == "full" else step.sizes.base)
    layer = (parameters - rest) / step.arch.layers
    devices = sharding.shard_devices
    shards = step.arch.layers * pinned_bytes(layer / devices) + pinned_bytes(rest / devices)
    return sharding.devices_per_node * shards * (2 if step.trains_adapter else 1)


def weights_after_loading(step: TrainingStep) -> float:
    """Bytes of this node's weight partitions in main memory right after the checkpoint is loaded; 0 unless parameters
    are offloaded. FSDP's shards count without page-locking, which happens only in the first step."""
    is_offloaded = step.strategy.fsdp and step.sharding.offload_parameters
    return shardable_weight_bytes(step) / step.sharding.shard_nodes if is_offloaded else offloaded_weight_bytes(step)


def offloaded_weight_bytes(step: TrainingStep) -> float:
    """Bytes of this node's weight partitions in main memory during training; 0 unless parameters are offloaded. Under
    ZeRO, trained weights lie in one page-locked flat buffer, and the page-locked partitions from loading stay cached
    beside it. Frozen weights are not flattened: each keeps the tensor in which it was loaded. A second copy of the
    weights (hpZ) lies beside both."""
    sharding = step.sharding
    if not sharding.offload_parameters:
        return 0.0
    if step.strategy.fsdp:
        return _fsdp_shard_bytes(step)
    rounding = TENSOR_ROUNDING if sharding.pin_memory else 1.0
    copies = rounding * sharding.devices_per_node * second_copy_bytes(step)
    partitions = rounding * shardable_weight_bytes(step) / sharding.nodes
    if step.work.method != "full":
        return copies + partitions
    buffer = sharding.devices_per_node * pinned_bytes(step.sizes.trained * _partition_elements(step))
    return copies + buffer + (partitions if sharding.pin_memory else 0.0)


def offloaded_reference_bytes(step: TrainingStep) -> float:
    """Bytes of frozen reference models in this node's main memory. Reference models are offloaded if the parameters
    are."""
    if not step.sharding.offload_parameters:
        return 0.0
    return reference_weight_bytes(step) / step.sharding.nodes * (TENSOR_ROUNDING if step.sharding.pin_memory else 1.0)


PROCESS_GIB = 3.0  # interpreter, libraries and the device runtime of one training process
PROCESS_SPREAD = 0.5  # how much more of that a process may take
WORKER_GIB = 0.7  # a data-loader worker: interpreter and libraries, no device runtime
TOKEN_BYTES = 16.0  # a tokenized sample keeps ids and labels, 8 bytes each where the loader builds a batch

HostTerms = Mapping[HostTerm, float]


def _process_bytes(step: TrainingStep) -> float:
    each = PROCESS_GIB + step.work.loader_workers * WORKER_GIB
    return step.sharding.devices_per_node * each * GIB


def _checkpoint_file_bytes(step: TrainingStep) -> float:
    """Bytes of the checkpoint in main memory while it loads. The file is mapped once for all processes of a node, or
    each process materializes it if `low_memory_load` is off."""
    checkpoint = step.work.base_bytes * step.parameters
    return checkpoint if step.work.low_memory_load else checkpoint * step.sharding.devices_per_node


def _full_model_bytes(step: TrainingStep) -> float:
    """Bytes of whole models that the processes of a node hold in main memory until the weights are sharded. If FSDP
    shards weights while the checkpoint is read, the first process, or each process, holds the whole model and its
    frozen reference copies. Under ZeRO-3 each process holds the whole model if a quantized checkpoint is unpacked while
    it loads. Zero for other runs."""
    if step.strategy == ZERO_3 and step.work.dequantized_at_load:
        return step.sharding.devices_per_node * step.work.base_bytes * step.parameters
    is_sharded = step.strategy.fsdp and step.sharding.sharded_load
    return (
        step.sharding.full_model_ranks * (loaded_weight_bytes(step) + reference_weight_bytes(step))
        if is_sharded
        else 0.0
    )


def _merged_expert_bytes(step: TrainingStep) -> float:
    """Bytes of the experts that the processes of a node hold while a model loads under ZeRO-3; 0 for other strategies,
    for quantized weights, and for models whose experts are not merged. transformers 5 reads the whole checkpoint in
    every process and merges each layer's experts into one tensor, before it partitions the first of these tensors
    (integrations/deepspeed.py, _apply_weight_conversions_to_state_dict;
    github.com/huggingface/transformers/issues/47514). Two processes that loaded 768 MiB of experts each held 768 MiB in
    addition to their shards."""
    if step.strategy != ZERO_3 or not step.work.experts_merged or step.work.quant_bits:
        return 0.0
    experts = sum(count * layer.experts for count, layer in decoder_layers.loaded_layers(step.arch))
    return step.sharding.devices_per_node * step.work.base_bytes * experts


def _saving_bytes(step: TrainingStep) -> float:
    """Bytes of the weights that the first process gathers in main memory for a save. Zero if the run does not gather
    sharded weights, or if only an adapter is saved."""
    is_gathered = step.sharding.gather_on_save and step.strategy.shards_weights and not step.trains_adapter
    size = step.sizes.trained if step.strategy.fsdp else step.sizes.compute
    return size * step.parameters if is_gathered else 0.0


def _training_terms(step: TrainingStep) -> HostTerms:
    return {
        **offloaded_state_terms(step),
        HostTerm.PARAMETERS: offloaded_weight_bytes(step),
        HostTerm.REFERENCE: offloaded_reference_bytes(step),
        HostTerm.CHECKPOINTS: checkpoints_held_on_host(step),
        HostTerm.LARGEST_GRADIENT: 2.0 * step.embedding_elements if step.sharding.offload_optimizer else 0.0,
        HostTerm.DATA: TOKEN_BYTES * step.work.dataset_tokens,
    }


def host_phases(step: TrainingStep) -> dict[str, HostTerms]:
    """Return the bytes by term of each phase in which host memory can peak: loading, training and saving."""
    processes, training = {HostTerm.PROCESSES: _process_bytes(step)}, _training_terms(step)
    loading = {
        HostTerm.PARAMETERS: weights_after_loading(step),
        HostTerm.LOADING: 0.0 if step.work.low_memory_load else _checkpoint_file_bytes(step),
        HostTerm.FULL_MODEL_AT_LOAD: _full_model_bytes(step),
        HostTerm.EXPERTS: _merged_expert_bytes(step),
    }
    return {
        "loading": {**processes, **loading},
        "training": {**processes, **training},
        "saving": {**processes, **training, HostTerm.SAVING: _saving_bytes(step)},
    }


def estimate_host_memory(arch: Architecture, workload: Workload) -> Estimate:
    """Estimate the peak memory of one node, in bytes by term: the largest of loading, training and saving.

    A mapped checkpoint file is page cache, which the kernel can take back. The file counts only in `high`, which also
    allows for temporary second copies of the buffers and for larger processes."""
    step = training_step(arch, workload)
    moment, terms = largest_phase(host_phases(step))
    total = sum(terms.values())
    processes = _process_bytes(step)
    page_cache = _checkpoint_file_bytes(step) + offloaded_weight_bytes(step) + processes
    return Estimate(terms, 0.93 * total, total, max(1.12 * total, page_cache) + processes * PROCESS_SPREAD, moment)


def disk_usage(
    arch: Architecture, workload: Workload, kept: int, at_once: int, *, save_optimizer: bool
) -> Mapping[DiskTerm, float]:
    """Return the largest disk space that a run needs at once, in bytes by term: the base weights that it reads, weights
    and optimizer states of checkpoints, the final weights, and tokenized data.

    `kept`: number of checkpoints that are left at the end. `at_once`: the largest number of checkpoints at a time,
    which is one more than `kept` if old checkpoints are removed, because the run writes a checkpoint before it removes
    an old one. If none is removed, both numbers are equal. `save_optimizer`: checkpoints hold the optimizer states,
    too. The end of the run, with the final weights, never needs more.

    The states of a ZeRO engine are master weights and moments; below stage 3 the engine also writes a copy of the
    trained weights. FSDP writes such a copy, too, if it saves whole states (accelerate/utils/fsdp_utils.py,
    save_fsdp_model)."""
    step = training_step(arch, workload)
    model = step.sizes.trained * step.trained_elements + step.sizes.base * (step.parameters - step.trained_elements)
    weights = trained_bytes(step, step.sizes.adapter) if step.trains_adapter else model
    states = states_and_master_bytes(step) if save_optimizer else 0.0
    if save_optimizer and (step.strategy.fsdp or (step.strategy.deepspeed and not step.strategy.shards_weights)):
        states += weights
    return {
        DiskTerm.BASE: workload.base_bytes * step.parameters,
        DiskTerm.WEIGHTS: weights * (kept + 1),
        DiskTerm.OPTIMIZER: states * at_once,
        DiskTerm.DATA: 12.0 * workload.dataset_tokens,
    }
