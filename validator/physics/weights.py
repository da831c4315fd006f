"""Weights on the worst device: base model, adapter and reference model; whole parameters gathered by ZeRO-3 or FSDP;
and copies in other precisions (autocast copies, dequantized matrices, DoRA's weight norm). Bytes."""

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
    """Bytes per element of the scales of bitsandbytes' 4-bit weights: one in fp32 for 64 elements, or one byte and a
    second-level scale (QLoRA, arXiv 2305.14314)."""
    if workload.quant_bits != 4 or workload.quant_grouped:
        return 0.0
    return (1 + 4 / 256) / 64 if workload.double_quant else 4 / 64


def _quantizable_elements(step: TrainingStep) -> int:
    """Elements inside linear modules of layers, towers and projectors. Embeddings, output layer, norms and fused
    experts are not quantized, nor are the towers of checkpoints that are quantized already (vLLM pull request
    10169)."""
    loaded = decoder_layers.loaded_layers(step.arch, step.work.experts_fused)
    in_layers = sum(count * layer.linear_elements for count, layer in loaded) + per_layer_projection_elements(step.arch)
    return in_layers + (0 if step.work.quant_grouped else sum(tower.linear_elements for tower in step.arch.towers))


@lru_cache(maxsize=64)
def base_weight_bytes(step: TrainingStep) -> float:
    """Bytes of the base model's weights, unsharded."""
    sizes, total, work = step.sizes, step.parameters, step.work
    if work.quant_bits and work.method != "full":
        linear = _quantizable_elements(step)
        return quantized_element_size(work) * linear + sizes.base * (total - linear)
    if work.method in ("full", "freeze"):
        raised = step.trained_elements + decoder_layers.elements_without_states(step.arch, work)
        return sizes.trained * raised + sizes.base * (total - raised)
    norms = 2.0 * sum(count * layer.vectors for count, layer in build_layers(step.arch)) if work.upcast_norms else 0.0
    return sizes.base * total + norms


def quantization_scale_bytes(step: TrainingStep) -> float:
    """Bytes of the scales of all 4-bit weights. They are no parameters (bitsandbytes, nn/modules.py,
    Params4bit.quant_state), so FSDP and ZeRO-3 neither shard nor offload them: seen in two processes under FSDP."""
    return _scale_element_size(step.work) * _quantizable_elements(step) if step.work.method != "full" else 0.0


def shardable_weight_bytes(step: TrainingStep) -> float:
    """Bytes of the base model's parameters, unsharded: its weights without scales."""
    return base_weight_bytes(step) - quantization_scale_bytes(step)


def loaded_weight_bytes(step: TrainingStep) -> float:
    """Bytes of the base model's weights, unsharded, before FSDP2 upcasts frozen ones to fp32."""
    lifted = step.trains_adapter and not step.work.quant_bits
    return base_weight_bytes(step) * (step.work.base_bytes / step.sizes.base if lifted else 1.0)


def _persistent_bytes(step: TrainingStep) -> float:
    """Bytes of parameters that ZeRO-3 keeps whole on every device, as they are smaller than its threshold: norms,
    biases, and small adapters. At higher ranks the adapters' narrow matrices stay, counted as no less than at the
    threshold's rank."""
    if step.strategy != ZERO_3:
        return 0.0
    vectors = step.sizes.base * sum(count * layer.vectors for count, layer in step.layers)
    if not step.trains_adapter:
        return vectors
    small = min(1.0, step.sharding.persistence_threshold / (step.work.adapter.rank * step.arch.hidden))
    return vectors + small * step.sizes.adapter * (step.trained_elements - step.modules_to_save)


def _sharded_bytes(step: TrainingStep, whole: float) -> float:
    """Bytes of sharded weights on one device; 0 if they are offloaded."""
    return 0.0 if step.sharding.offload_parameters else whole / step.sharding.world_size


def base_weights_on_device(step: TrainingStep) -> float:
    """Bytes of the base model's weights on one device."""
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
    )


def adapter_weights_on_device(step: TrainingStep) -> float:
    """Bytes of the adapter's weights on one device."""
    if not step.trains_adapter:
        return 0.0
    unsharded = trained_bytes(step, step.sizes.adapter)
    return _sharded_bytes(step, unsharded) if step.strategy.shards_weights else unsharded


def reference_weight_bytes(step: TrainingStep) -> float:
    """Bytes of the frozen copies of the model, unsharded."""
    return step.work.reference_copies * frozen_element_size(step.work) * step.parameters


def reference_weights_on_device(step: TrainingStep) -> float:
    """Bytes of the frozen copies of the model on one device. Only ZeRO-3 and FSDP shard and offload them: below stage 3
    their engine runs at stage 0 (trl prepare_deepspeed)."""
    unsharded = reference_weight_bytes(step)
    return _sharded_bytes(step, unsharded) if step.strategy.shards_weights else unsharded


def autocast_elements(step: TrainingStep, layer: DecoderLayer) -> float:
    """Elements of one layer's trained matrices that autocast copies to half precision."""
    if step.sizes.autocast_copies:
        return layer.matrices
    if step.work.precision == "amp" and step.trains_adapter:
        return sum(adapter_elements(linear, step.work) for linear in layer.linears)
    return 0.0


@lru_cache(maxsize=64)
def layer_autocast_copies(step: TrainingStep) -> float:
    """Bytes of the copies of all layers' trained matrices. Copies of views are freed with their layer's results."""
    if step.arch.recasts_weights and step.sizes.autocast_copies and step.checkpointing != "off":
        return 0.0
    return 2.0 * sum(number * autocast_elements(step, layer) for number, layer in step.backward_layers)


def lm_head_autocast_copy(step: TrainingStep) -> float:
    """Bytes of the copy of a trained output layer, which its backward pass still needs."""
    casts_head = step.sizes.autocast_copies and step.work.method == "full"
    return (
        2.0 * step.lm_head_elements
        if casts_head or (step.work.adapter.full_head and step.work.precision == "amp")
        else 0.0
    )


def largest_matrix(linears: Iterable[Linear]) -> int:
    """Elements of the largest matrix."""
    return max((linear.inputs * linear.outputs for linear in linears), default=0)


def dequantized_bytes(step: TrainingStep, linears: Iterable[Linear]) -> float:
    """Bytes of the largest matrix in compute precision, which is dequantized for its product and freed again."""
    return 2.0 * largest_matrix(linears) if step.work.quant_bits else 0.0


def dora_norm_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes of DoRA's norm of an adapted matrix (peft, tuners/lora/dora.py): an identity matrix of its inputs with a
    copy in compute precision; the adapter's product, plain and scaled; the base's matrix and the sum in the adapter's
    precision."""
    work, sizes = step.work, step.sizes
    if not work.adapter.dora or work.method != "lora":
        return 0.0
    product_size = sizes.compute if work.precision == "amp" else sizes.adapter
    identity = sizes.adapter + (product_size if product_size < sizes.adapter else 0.0)
    copied = sizes.adapter if work.quant_bits or sizes.base != sizes.adapter else 0.0
    matrix = copied + sizes.adapter + 2 * product_size
    adapted = layer.by_role(*work.adapter.targets)
    return max((each.inputs * (identity * each.inputs + matrix * each.outputs) for each in adapted), default=0.0)


GatherPoint = Literal["loss", "last layer", "first layer", "embedding"]


def gathered_weight_bytes(step: TrainingStep, where: GatherPoint) -> float:
    """Bytes of gathered parameters on the device of a sharded run at this point of the step."""
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
    """Bytes per element of the layers, as they are gathered."""
    return (shardable_weight_bytes(step) - _embedding_element_size(step) * step.vocabulary_elements) / (
        step.parameters - step.vocabulary_elements
    )


def _gathered_zero3(step: TrainingStep, where: GatherPoint) -> float:
    """Bytes of the parameters that ZeRO-3 has gathered: the module at work, a prefetch bucket, and parameters that are
    used again within the reuse distance. At the loss the latter are a third of the distance, as a checkpointed layer is
    used once forward and twice backward, less the output layer, which is passed twice
    (deepspeed/runtime/zero/partitioned_param_coordinator.py)."""
    sharding, whole, per_table = step.sharding, shardable_weight_bytes(step), _embedding_element_size(step)
    per_layer = _layer_element_size(step)
    reuse = min(sharding.max_reuse_distance, sharding.max_live_parameters)
    table, reused = {
        "loss": (step.lm_head_elements, max(0.0, (reuse - 2 * step.lm_head_elements) / 3)),
        "last layer": (0, max(step.largest_layer, reuse / 3)),
        "first layer": (0, step.largest_layer),
        "embedding": (step.embedding_elements, 0),
    }[where]
    return min(whole, per_table * table + per_layer * (reused + sharding.prefetch_bucket))


def side_stream_pools(step: TrainingStep) -> float:
    """Bytes that the allocator keeps for ZeRO-3's other streams, beyond the live bytes at the peak. Under overlap_comm
    parameters are gathered on a stream of their own (deepspeed, parameter_offload.py), whose pool holds embedding,
    output layer and the layers within the reuse distance. Gradients of embedding and output layer that are offloaded
    take blocks twice: as computed and as reduced.

    hiyouga/LLaMA-Factory#5977 and #7282 hold 11 and 25 GiB where 2 to 6 are live."""
    sharding = step.sharding
    if step.strategy != ZERO_3 or not sharding.overlap_comm:
        return 0.0
    reused = min(sharding.max_reuse_distance, sharding.max_live_parameters, step.parameters - step.vocabulary_elements)
    leaves = step.work.method == "full" and sharding.offload_optimizer
    leaving = 2 * step.sizes.gradient * step.vocabulary_elements if leaves else 0.0
    return _embedding_element_size(step) * (step.vocabulary_elements + reused) - _gathered_zero3(step, "loss") + leaving


def _gathered_fsdp(step: TrainingStep) -> float:
    """Bytes of the parameters that FSDP has gathered: the root unit (embedding, output layer, towers), and two layers,
    the one at work and the one prefetched."""
    sizes = step.sizes
    if step.strategy.keeps_gathered:
        return sizes.compute * step.parameters
    quantized = _layer_element_size(step) / step.work.base_bytes if step.work.quant_bits else 1.0
    towers = sum(tower.all_elements for tower in step.arch.towers)
    return sizes.compute * (step.vocabulary_elements + (towers + 2 * step.largest_layer) * quantized)
