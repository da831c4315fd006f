"""Main memory of one node while loading, training and saving, with offloaded states; and disk usage of a run. Bytes."""

from __future__ import annotations

from collections.abc import Mapping

from validator.physics import decoder_layers
from validator.physics.activation_checkpointing import checkpoints_held_on_host
from validator.physics.architecture import Architecture
from validator.physics.estimate import GIB, DiskTerm, Estimate, HostTerm, MemoryTerm
from validator.physics.optimizer import (
    optimizer_partitions,
    optimizer_state_bytes,
    paged_state_bytes,
    states_and_master_bytes,
)
from validator.physics.training_step import TrainingStep, trained_bytes, training_step
from validator.physics.weights import loaded_weight_bytes, reference_weight_bytes, shardable_weight_bytes
from validator.physics.workload import ZERO_3, Workload

TENSOR_ROUNDING = 4 / 3  # a size lies anywhere between two powers of two: what rounding it up costs on average


def pinned_bytes(size: float) -> float:
    """Bytes of one page-locked tensor: PyTorch's host allocator rounds up to a power of two and keeps what is freed
    (ATen/core/CachingHostAllocator.h)."""
    return float(1 << (max(int(size), 1) - 1).bit_length())


def _page_locked_bytes(step: TrainingStep, size: float) -> float:
    return pinned_bytes(size) if step.sharding.pin_memory else size


def _partition_elements(step: TrainingStep) -> float:
    """Trained elements of one process."""
    return step.trained_elements / step.sharding.world_size


def _sub_group_gradient_bytes(step: TrainingStep) -> float:
    """fp32 gradients of a partition: one tensor for each sub-group under ZeRO-3, else one."""
    elements = _partition_elements(step)
    group = step.sharding.sub_group_size if step.strategy == ZERO_3 else elements
    whole, rest = divmod(elements, max(group, 1))
    return whole * _page_locked_bytes(step, 4 * group) + (_page_locked_bytes(step, 4 * rest) if rest >= 1 else 0.0)


def offloaded_state_terms(step: TrainingStep) -> Mapping[HostTerm, float]:
    """Bytes that an offloaded optimizer keeps for this node's partitions (deepspeed, runtime/zero/stage3.py and
    stage_1_and_2.py): fp32 master weights and moments, page-locked fp32 gradients, and one more copy in half precision:
    of the gradients that arrive (stage 3), or of the weights on their way back and of accumulated gradients. FSDP moves
    moments and gradients as they are."""
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
    """Page-locked shards of the weights on this node. FSDP1 makes one tensor of each layer and one of the rest, and a
    gradient of the same size beside each, whether or not it trains (torch, distributed/fsdp/_flat_param.py,
    init_flat_param_attributes); those of weights that train are counted with the gradients. FSDP2 makes a tensor of
    each parameter and no gradient before there is one (_fully_shard/_fsdp_param.py)."""
    sharding, whole = step.sharding, shardable_weight_bytes(step)
    if sharding.upcasts_frozen_weights:
        return whole * TENSOR_ROUNDING / sharding.nodes
    rest = step.vocabulary_elements * (step.sizes.trained if step.work.method == "full" else step.sizes.base)
    layer = (whole - rest) / step.arch.layers
    shards = step.arch.layers * pinned_bytes(layer / sharding.world_size) + pinned_bytes(rest / sharding.world_size)
    return sharding.devices_per_node * shards * (2 if step.trains_adapter else 1)


def weights_after_loading(step: TrainingStep) -> float:
    """Partitions of the weights as soon as the checkpoint is loaded. FSDP page-locks its shards in the first step."""
    moved = step.strategy.fsdp and step.sharding.offload_parameters
    return shardable_weight_bytes(step) / step.sharding.nodes if moved else offloaded_weight_bytes(step)


def offloaded_weight_bytes(step: TrainingStep) -> float:
    """Partitions of the weights. Under ZeRO trained ones lie in one flat buffer, always page-locked, and page-locked
    partitions made before it stay cached; frozen ones stay as they were made, tensor by tensor."""
    sharding = step.sharding
    if not sharding.offload_parameters:
        return 0.0
    if step.strategy.fsdp:
        return _fsdp_shard_bytes(step)
    spread = shardable_weight_bytes(step) / sharding.nodes * (TENSOR_ROUNDING if sharding.pin_memory else 1.0)
    if step.work.method != "full":
        return spread
    flat = sharding.devices_per_node * pinned_bytes(step.sizes.trained * _partition_elements(step))
    return flat + (spread if sharding.pin_memory else 0.0)


def offloaded_reference_bytes(step: TrainingStep) -> float:
    """Frozen copies of the model follow the parameters."""
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
    """The checkpoint while loading: mapped once for all processes of a node, or materialized by each of them."""
    whole = step.work.base_bytes * step.parameters
    return whole if step.work.low_memory_load else whole * step.sharding.devices_per_node


def _full_model_bytes(step: TrainingStep) -> float:
    """FSDP that spreads the weights as they are read: the first process, or each, holds the whole model and its frozen
    copies, quantized if so asked, until the shards are handed out. A checkpoint that is unpacked while it loads is held
    whole by each process under ZeRO-3, too."""
    if step.strategy == ZERO_3 and step.work.unpacked:
        return step.sharding.devices_per_node * step.work.base_bytes * step.parameters
    spreads = step.strategy.fsdp and step.sharding.sharded_load
    return (
        step.sharding.full_model_ranks * (loaded_weight_bytes(step) + reference_weight_bytes(step)) if spreads else 0.0
    )


def _merged_expert_bytes(step: TrainingStep) -> float:
    """Under ZeRO-3 transformers 5 reads the whole checkpoint in every process, and makes one tensor of each layer's
    experts, before the first of them is spread (integrations/deepspeed.py, _apply_weight_conversions_to_state_dict;
    github.com/huggingface/transformers/issues/47514). Two processes that loaded 768 MiB of experts each held as much
    beside their shards."""
    if step.strategy != ZERO_3 or not step.work.experts_merged or step.work.quant_bits:
        return 0.0
    experts = sum(count * layer.experts for count, layer in decoder_layers.loaded_layers(step.arch))
    return step.sharding.devices_per_node * step.work.base_bytes * experts


def _saving_bytes(step: TrainingStep) -> float:
    """Weights gathered on the first process for a save."""
    gathers = step.sharding.gather_on_save and step.strategy.shards_weights and not step.trains_adapter
    each = step.sizes.trained if step.strategy.fsdp else step.sizes.compute
    return each * step.parameters if gathers else 0.0


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
    """The moments at which host memory can peak. Each gives bytes by term."""
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
    """Peak memory of one node: while loading, training or saving. Bytes by term.

    A mapped checkpoint file is page cache, which the kernel takes back when it must: it counts in `high` only, which
    also allows for the buffers' temporary second copies and for heavier processes."""
    step = training_step(arch, workload)
    moment, peak = max(host_phases(step).items(), key=lambda pair: sum(pair[1].values()))
    terms: dict[MemoryTerm, float] = {term: size for term, size in peak.items() if size}
    total = sum(terms.values())
    processes = _process_bytes(step)
    cached = _checkpoint_file_bytes(step) + offloaded_weight_bytes(step) + processes
    return Estimate(terms, 0.93 * total, total, max(1.12 * total, cached) + processes * PROCESS_SPREAD, moment)


def disk_usage(
    arch: Architecture, workload: Workload, kept: int, at_once: int, *, save_optimizer: bool
) -> Mapping[DiskTerm, float]:
    """Most bytes at once by term: the base weights read, weights and optimizer states of checkpoints, the final
    weights, tokenized data.

    A run that removes old checkpoints has `at_once` of them, one more than it has `kept`, while it writes one; at the
    end it has those kept, and the final weights, which is never more. Where none is removed, both numbers are equal.
    A ZeRO engine writes its own states (master weights and moments), below stage 3 with a copy of the trained weights
    beside them. FSDP writes that copy, too (accelerate/utils/fsdp_utils.py, save_fsdp_model), where it saves whole
    states; where it saves them in pieces it writes no other."""
    step = training_step(arch, workload)
    whole = step.sizes.trained * step.trained_elements + step.sizes.base * (step.parameters - step.trained_elements)
    saved = trained_bytes(step, step.sizes.adapter) if step.trains_adapter else whole
    states = states_and_master_bytes(step) if save_optimizer else 0.0
    if save_optimizer and (step.strategy.fsdp or (step.strategy.deepspeed and not step.strategy.shards_weights)):
        states += saved
    return {
        DiskTerm.BASE: workload.base_bytes * step.parameters,
        DiskTerm.WEIGHTS: saved * (kept + 1),
        DiskTerm.OPTIMIZER: states * at_once,
        DiskTerm.DATA: 12.0 * workload.dataset_tokens,
    }
