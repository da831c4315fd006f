"""Bytes of weights on the worst device: base model, adapter and reference model; whole parameters gathered by ZeRO-3 or
FSDP; and copies in other precisions (autocast copies, dequantized matrices, DoRA's weight norm)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from validator.physics import decoder_layers
from validator.physics.architecture import Linear
from validator.physics.decoder_layers import DecoderLayer, build_layers
from validator.physics.parameters import adapter_elements, per_layer_projection_elements
from validator.physics.training_step import TrainingStep, trained_bytes
from validator.physics.workload import ZERO_3, Workload, frozen_element_size


def quantized_element_size(workload: Workload) -> float:
    """Bytes per element of a quantized linear module, scales included. 8-bit bitsandbytes keeps one scale for each row;
    GPTQ and AWQ keep a half-precision scale and a zero point for 128 elements."""
    bits = workload.quant_bits
    if workload.quant_grouped:
        return bits / 8 + (2 + bits / 8) / 128
    return bits / 8 + _scale_element_size(workload)


def _scale_element_size(workload: Workload) -> float:
    """Bytes per element of the scales of bitsandbytes' 4-bit weights: one fp32 scale for 64 elements, or, with double
    quantization, one byte and a second-level scale (QLoRA, arXiv 2305.14314). Zero for other kinds of quantization."""
    if workload.quant_bits != 4 or workload.quant_grouped:
        return 0.0
    return (1 + 4 / 256) / 64 if workload.double_quant else 4 / 64


def _quantizable_elements(step: TrainingStep) -> int:
    """Number of elements that quantization applies to: the linear modules of layers, towers and projectors. Embeddings,
    output layer, norms and fused experts are not quantized. Checkpoints that are quantized already do not quantize the
    towers, either (vLLM pull request 10169)."""
    loaded = decoder_layers.loaded_layers(step.arch, step.work.experts_fused)
    in_layers = sum(count * layer.linear_elements for count, layer in loaded) + per_layer_projection_elements(step.arch)
    return in_layers + (0 if step.work.quant_grouped else sum(tower.linear_elements for tower in step.arch.towers))


@lru_cache(maxsize=64)
def base_weight_bytes(step: TrainingStep) -> float:
    """Bytes of all weights of the base model, before sharding."""
    sizes, total, work = step.sizes, step.parameters, step.work
    if work.quant_bits and work.method != "full":
        linear = _quantizable_elements(step)
        return quantized_element_size(work) * linear + sizes.base * (total - linear)
    if work.method in ("full", "freeze"):
        elements = step.trained_elements + decoder_layers.elements_without_states(step.arch, work)
        return sizes.trained * elements + sizes.base * (total - elements)
    norms = 2.0 * sum(count * layer.vectors for count, layer in build_layers(step.arch)) if work.upcast_norms else 0.0
    return sizes.base * total + norms


def quantization_scale_bytes(step: TrainingStep) -> float:
    """Bytes of the scales of all 4-bit weights. Scales are no parameters (bitsandbytes, nn/modules.py,
    Params4bit.quant_state), so neither FSDP nor ZeRO-3 shards or offloads them, and every device keeps the scales of
    the whole model. Two processes under FSDP showed this: their shards halve, their scales do not."""
    return _scale_element_size(step.work) * _quantizable_elements(step) if step.work.method != "full" else 0.0


def shardable_weight_bytes(step: TrainingStep) -> float:
    """Bytes of the base model's weights that FSDP and ZeRO-3 shard, before sharding. These are all weights except
    quantization scales, which are no parameters."""
    return base_weight_bytes(step) - quantization_scale_bytes(step)


def loaded_weight_bytes(step: TrainingStep) -> float:
    """Bytes of all weights of the base model right after loading, before sharding, and before FSDP2 raises frozen
    weights to fp32."""
    is_raised = step.trains_adapter and not step.work.quant_bits
    return base_weight_bytes(step) * (step.work.base_bytes / step.sizes.base if is_raised else 1.0)


def _persistent_bytes(step: TrainingStep) -> float:
    """Bytes of the parameters that ZeRO-3 keeps whole on every device because they are smaller than the persistence
    threshold: norms, biases and small adapters. Zero for other strategies. At a high adapter rank only the adapters'
    narrow matrices are below the threshold; they count with no fewer bytes than the adapters of the rank that just
    reaches the threshold."""
    if step.strategy != ZERO_3:
        return 0.0
    vectors = step.sizes.base * sum(count * layer.vectors for count, layer in step.layers)
    if not step.trains_adapter:
        return vectors
    share = min(1.0, step.sharding.persistence_threshold / (step.work.adapter.rank * step.arch.hidden))
    return vectors + share * step.sizes.adapter * (step.trained_elements - step.modules_to_save)


def _sharded_bytes(step: TrainingStep, total: float) -> float:
    """Bytes of one device's shard of `total` bytes; 0 if the parameters are offloaded."""
    return 0.0 if step.sharding.offload_parameters else total / step.sharding.shard_devices


def second_copy_bytes(step: TrainingStep) -> float:
    """Bytes of one process's part of the second copy of the weights that ZeRO-3 keeps for hierarchical partitioning
    (hpZ); 0 without it. The copy is on the device, or in main memory if parameters are offloaded. It holds all weights
    of the run in compute precision (deepspeed, runtime/zero/partition_parameters.py, _partition_param_sec)."""
    if not step.sharding.second_copy_devices:
        return 0.0
    adapter = trained_bytes(step, step.sizes.adapter) if step.trains_adapter else 0.0
    whole = shardable_weight_bytes(step) + adapter + reference_weight_bytes(step)
    return whole / step.sharding.second_copy_devices


def base_weights_on_device(step: TrainingStep) -> float:
    """Bytes of the base model's weights and buffers that one device keeps. Weights that are gathered for a while are
    not included."""
    buffers = 0.0
    if mixer := step.arch.mixer:  # buffers of all layers, whole on every device
        buffers = (
            step.work.base_bytes * sum(count for count, layer in step.layers if layer.mixer) * mixer.buffer_elements
        )
    if not step.strategy.shards_weights:
        return buffers + base_weight_bytes(step)
    return (
        buffers
        + quantization_scale_bytes(step)
        + _sharded_bytes(step, shardable_weight_bytes(step))
        + _persistent_bytes(step)
        + (0.0 if step.sharding.offload_parameters else second_copy_bytes(step))
    )


def adapter_weights_on_device(step: TrainingStep) -> float:
    """Bytes of the adapter's weights on one device."""
    if not step.trains_adapter:
        return 0.0
    unsharded = trained_bytes(step, step.sizes.adapter)
    return _sharded_bytes(step, unsharded) if step.strategy.shards_weights else unsharded


def reference_weight_bytes(step: TrainingStep) -> float:
    """Bytes of the frozen reference copies of the model, before sharding."""
    return step.work.reference_copies * frozen_element_size(step.work) * step.parameters


def reference_weights_on_device(step: TrainingStep) -> float:
    """Bytes of the frozen reference copies of the model on one device. Only ZeRO-3 and FSDP shard these copies, and
    offload them with the parameters. Below stage 3 the copies' engine runs at stage 0 (trl prepare_deepspeed)."""
    unsharded = reference_weight_bytes(step)
    return _sharded_bytes(step, unsharded) if step.strategy.shards_weights else unsharded


def autocast_elements(step: TrainingStep, layer: DecoderLayer) -> float:
    """Number of elements of one layer's trained matrices that autocast copies to half precision."""
    if step.sizes.autocast_copies:
        return layer.matrices
    if step.work.precision == "amp" and step.trains_adapter:
        return sum(adapter_elements(linear, step.work) for linear in layer.linears)
    return 0.0


@lru_cache(maxsize=64)
def layer_autocast_copies(step: TrainingStep) -> float:
    """Bytes of autocast's half-precision copies of the trained matrices of all layers. Zero if the model casts its
    weights anew for each matmul and its layers are checkpointed, because these copies are freed together with the
    layer's results."""
    if step.arch.recasts_weights and step.sizes.autocast_copies and step.checkpointing != "off":
        return 0.0
    return 2.0 * sum(number * autocast_elements(step, layer) for number, layer in step.backward_layers)


def lm_head_autocast_copy(step: TrainingStep) -> float:
    """Bytes of autocast's half-precision copy of a trained output layer. Its backward pass still needs the copy. Zero
    if the output layer does not train under autocast."""
    casts_head = step.sizes.autocast_copies and step.work.method == "full"
    return (
        2.0 * step.lm_head_elements
        if casts_head or (step.work.adapter.full_head and step.work.precision == "amp")
        else 0.0
    )


def largest_matrix(linears: Iterable[Linear]) -> int:
    """Number of elements of the largest matrix among linear modules."""
    return max((linear.inputs * linear.outputs for linear in linears), default=0)


def dequantized_bytes(step: TrainingStep, linears: Iterable[Linear]) -> float:
    """Bytes of the largest matrix among linear modules in compute precision. A quantized matrix is rebuilt in this size
    for its matmul and freed again. Zero without quantization."""
    return 2.0 * largest_matrix(linears) if step.work.quant_bits else 0.0


def dora_norm_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Temporary bytes to compute DoRA's weight norm, for the adapted matrix of the layer that needs most. These are an
    identity matrix (inputs x inputs) with a copy in compute precision, the product of the adapter's matrices before and
    after scaling, and the base matrix and the sum in the adapter's precision (peft, tuners/lora/dora.py). Zero without
    DoRA."""
    work, sizes = step.work, step.sizes
    if not work.adapter.dora or work.method != "lora":
        return 0.0
    product_size = sizes.compute if work.precision == "amp" else sizes.adapter
    identity = sizes.adapter + (product_size if product_size < sizes.adapter else 0.0)
    copy = sizes.adapter if work.quant_bits or sizes.base != sizes.adapter else 0.0
    matrix = copy + sizes.adapter + 2 * product_size
    linears = layer.by_role(*step.for_layer(layer).work.adapter.targets)
    return max((each.inputs * (identity * each.inputs + matrix * each.outputs) for each in linears), default=0.0)


GatherPoint = Literal["loss", "last layer", "first layer", "embedding"]


def gathered_weight_bytes(step: TrainingStep, where: GatherPoint) -> float:
    """Bytes of whole parameters that ZeRO-3 or FSDP has gathered on the device at the point `where` of the step. Zero
    if weights are not sharded."""
    match step.strategy.gathers:
        case "module":
            return _gathered_zero3(step, where)
        case "layer":
            return _gathered_fsdp(step)
    return 0.0


def _embedding_element_size(step: TrainingStep) -> float:
    """Bytes per element of embedding and output layer."""
    return step.sizes.trained if step.work.method == "full" else step.sizes.base


def _layer_element_size(step: TrainingStep) -> float:
    """Average bytes per element of the sharded weights outside embedding and output layer."""
    return (shardable_weight_bytes(step) - _embedding_element_size(step) * step.vocabulary_elements) / (
        step.parameters - step.vocabulary_elements
    )


def _gathered_zero3(step: TrainingStep, where: GatherPoint) -> float:
    """Bytes of parameters that ZeRO-3 has gathered at the point `where` of the step: the module at work, a prefetch
    bucket, and parameters that are used again within the reuse distance.

    At the loss, a third of the reuse distance counts, because a checkpointed layer is used once in the forward pass and
    twice in the backward pass; the output layer, which is passed twice, is subtracted first
    (deepspeed/runtime/zero/partitioned_param_coordinator.py)."""
    sharding, total, per_table = step.sharding, shardable_weight_bytes(step), _embedding_element_size(step)
    per_layer = _layer_element_size(step)
    reuse = min(sharding.max_reuse_distance, sharding.max_live_parameters)
    table, reused = {
        "loss": (step.lm_head_elements, max(0.0, (reuse - 2 * step.lm_head_elements) / 3)),
        "last layer": (0, max(step.largest_layer, reuse / 3)),
        "first layer": (0, step.largest_layer),
        "embedding": (step.embedding_elements, 0),
    }[where]
    gathered = min(total, per_table * table + per_layer * (reused + sharding.prefetch_bucket))
    return gathered + (_experts_held_by_autograd(step) if where in ("loss", "last layer") else 0.0)


def _experts_held_by_autograd(step: TrainingStep) -> float:
    """Bytes of whole experts that ZeRO-3 has released, and that autograd holds until the backward pass of their layer.
    Only layers that are not computed again have such experts.

    A matmul saves its factors. A linear module saves the parameter itself, which ZeRO-3 empties and gathers again
    (deepspeed, runtime/zero/linear.py). Experts in one tensor are multiplied by a transposed view or a slice of the
    parameter (transformers, integrations/moe.py, _grouped_linear), and that keeps the gathered tensor, as DeepSpeed
    shows on the CPU."""
    if step.arch.ffn.experts_as_stored and step.work.experts == "grouped":
        return 0.0
    held = sum(number * layer.experts for number, layer in step.backward_layers if not step.is_recomputed(layer))
    return _layer_element_size(step) * held


def side_stream_pools(step: TrainingStep) -> float:
    """Bytes that the allocator keeps for ZeRO-3's second streams, beyond the live bytes at the peak. Zero unless ZeRO-3
    runs with `overlap_comm`: then parameters are gathered on a stream of their own (deepspeed, parameter_offload.py),
    for which the allocator keeps a pool. The pool holds embedding, output layer and the layers within the reuse
    distance. If full fine-tuning offloads the optimizer, the gradients of embedding and output layer take blocks twice:
    as computed and as reduced.

    The runs of hiyouga/LLaMA-Factory#5977 and #7282 hold 11 and 25 GiB where 2 to 6 are live."""
    sharding = step.sharding
    if step.strategy != ZERO_3 or not sharding.overlap_comm:
        return 0.0
    reused = min(sharding.max_reuse_distance, sharding.max_live_parameters, step.parameters - step.vocabulary_elements)
    is_offloaded = step.work.method == "full" and sharding.offload_optimizer
    copies = 2 * step.sizes.gradient * step.vocabulary_elements if is_offloaded else 0.0
    return _embedding_element_size(step) * (step.vocabulary_elements + reused) - _gathered_zero3(step, "loss") + copies


def _gathered_fsdp(step: TrainingStep) -> float:
    """Bytes of parameters that FSDP has gathered: the whole root unit (embedding, output layer, towers) and two layers,
    the layer at work and the prefetched one. If gathered weights are kept until the backward pass (SHARD_GRAD_OP), all
    parameters count."""
    sizes = step.sizes
    if step.strategy.keeps_gathered:
        return sizes.compute * step.parameters
    share = _layer_element_size(step) / step.work.base_bytes if step.work.quant_bits else 1.0
    towers = sum(tower.all_elements for tower in step.arch.towers)
    return sizes.compute * (step.vocabulary_elements + (towers + 2 * step.largest_layer) * share)
