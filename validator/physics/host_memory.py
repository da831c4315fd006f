"""Main memory of one node while loading, training and saving, with offloaded states; and disk usage of a run. Bytes."""

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
    """Bytes of the fp32 gradients of a partition: one tensor for each sub-group under ZeRO-3, else one tensor."""
    elements = _partition_elements(step)
    group = step.sharding.sub_group_size if step.strategy == ZERO_3 else elements
    whole, rest = divmod(elements, max(group, 1))
    return whole * _page_locked_bytes(step, 4 * group) + (_page_locked_bytes(step, 4 * rest) if rest >= 1 else 0.0)


def offloaded_state_terms(step: TrainingStep) -> Mapping[HostTerm, float]:
    """Bytes of an offloaded optimizer for this node's partitions, by term (deepspeed, runtime/zero/stage3.py and
    stage_1_and_2.py): fp32 master weights and moments, fp32 gradients, and half-precision copies of arriving gradients
    (stage 3) or of returning weights and accumulated gradients. FSDP moves moments and gradients as they are."""
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
    """Bytes of FSDP's page-locked weight shards on this node. FSDP1 has a tensor for each layer and one for the rest,
    and a gradient of the same size for each, even of frozen weights (torch, distributed/fsdp/_flat_param.py,
    init_flat_param_attributes); gradients of trained weights count elsewhere. FSDP2 has a tensor for each parameter and
    no early gradients (_fully_shard/_fsdp_param.py)."""
    sharding, parameters = step.sharding, shardable_weight_bytes(step)
    if sharding.upcasts_frozen_weights:
        return parameters * TENSOR_ROUNDING / sharding.nodes
    rest = step.vocabulary_elements * (step.sizes.trained if step.work.method == "full" else step.sizes.base)
    layer = (parameters - rest) / step.arch.layers
    shards = step.arch.layers * pinned_bytes(layer / sharding.world_size) + pinned_bytes(rest / sharding.world_size)
    return sharding.devices_per_node * shards * (2 if step.trains_adapter else 1)


def weights_after_loading(step: TrainingStep) -> float:
    """Bytes of the offloaded weights as soon as the checkpoint is loaded. FSDP page-locks its shards in the first
    step."""
    moved = step.strategy.fsdp and step.sharding.offload_parameters
    return shardable_weight_bytes(step) / step.sharding.nodes if moved else offloaded_weight_bytes(step)


def offloaded_weight_bytes(step: TrainingStep) -> float:
    """Bytes of the offloaded weights on this node. ZeRO keeps trained weights in one page-locked flat buffer, beside
    cached page-locked partitions from loading; frozen weights stay tensor by tensor."""
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
    """Bytes of the frozen copies of the model, which are offloaded with the parameters."""
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
    """Bytes of the checkpoint while loading: mapped once for all processes of a node, or read by each of them."""
    checkpoint = step.work.base_bytes * step.parameters
    return checkpoint if step.work.low_memory_load else checkpoint * step.sharding.devices_per_node


def _full_model_bytes(step: TrainingStep) -> float:
    """Bytes of whole models while weights are distributed. Under FSDP with sharded loading the first process, or each,
    holds the model and its frozen copies until the shards are sent. Under ZeRO-3 each process holds a checkpoint that
    is unpacked while it loads."""
    if step.strategy == ZERO_3 and step.work.dequantized_at_load:
        return step.sharding.devices_per_node * step.work.base_bytes * step.parameters
    spreads = step.strategy.fsdp and step.sharding.sharded_load
    return (
        step.sharding.full_model_ranks * (loaded_weight_bytes(step) + reference_weight_bytes(step)) if spreads else 0.0
    )


def _merged_expert_bytes(step: TrainingStep) -> float:
    """Bytes of all experts, which transformers 5 merges to one tensor a layer in every process under ZeRO-3 before it
    shards them (integrations/deepspeed.py, _apply_weight_conversions_to_state_dict;
    github.com/huggingface/transformers/issues/47514). Two processes that loaded 768 MiB of experts each held as much
    beside their shards."""
    if step.strategy != ZERO_3 or not step.work.experts_merged or step.work.quant_bits:
        return 0.0
    experts = sum(count * layer.experts for count, layer in decoder_layers.loaded_layers(step.arch))
    return step.sharding.devices_per_node * step.work.base_bytes * experts


def _saving_bytes(step: TrainingStep) -> float:
    """Bytes of the weights that the first process gathers for a save."""
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
    """Return the moments at which host memory can peak, each with bytes by term."""
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
    """Predict the peak memory of one node while loading, training or saving, bytes by term.

    A mapped checkpoint file is page cache, which the kernel takes back when it must: it counts in `high` only, which
    also allows for temporary second copies of buffers and for heavier processes."""
    step = training_step(arch, workload)
    moment, terms = largest_phase(host_phases(step))
    total = sum(terms.values())
    processes = _process_bytes(step)
    cached = _checkpoint_file_bytes(step) + offloaded_weight_bytes(step) + processes
    return Estimate(terms, 0.93 * total, total, max(1.12 * total, cached) + processes * PROCESS_SPREAD, moment)


def disk_usage(
    arch: Architecture, workload: Workload, kept: int, at_once: int, *, save_optimizer: bool
) -> Mapping[DiskTerm, float]:
    """Return the most bytes on disk at once, by term: the base weights, weights and optimizer states of checkpoints,
    the final weights, tokenized data.

    A run that removes old checkpoints has `at_once` of them, one more than the `kept`, while it writes one; at the end
    it has those kept and the final weights, which is never more. If none is removed, both numbers are equal. A ZeRO
    engine writes master weights and moments, below stage 3 with a copy of the trained weights beside them. FSDP writes
    that copy, too, if it saves whole states (accelerate/utils/fsdp_utils.py, save_fsdp_model)."""
    step = training_step(arch, workload)
    model = step.sizes.trained * step.trained_elements + step.sizes.base * (step.parameters - step.trained_elements)
    saved = trained_bytes(step, step.sizes.adapter) if step.trains_adapter else model
    states = states_and_master_bytes(step) if save_optimizer else 0.0
    if save_optimizer and (step.strategy.fsdp or (step.strategy.deepspeed and not step.strategy.shards_weights)):
        states += saved
    return {
        DiskTerm.BASE: workload.base_bytes * step.parameters,
        DiskTerm.WEIGHTS: saved * (kept + 1),
        DiskTerm.OPTIMIZER: states * at_once,
        DiskTerm.DATA: 12.0 * workload.dataset_tokens,
    }
