"""Weights on the worst device: base model, adapter and reference model; whole parameters gathered by ZeRO-3 or FSDP;
and copies in other precisions (autocast copies, dequantized matrices, DoRA's weight norm). Bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from validator.physics import decoder_layers
from validator.physics.architecture import Linear, Mixer, tower_and_projector_elements, tower_linear_elements
from validator.physics.decoder_layers import DecoderLayer, build_layers
from validator.physics.parameters import adapter_elements, per_layer_projection_elements
from validator.physics.training_step import TrainingStep, trained_bytes
from validator.physics.workload import Workload, frozen_element_size


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


def _quantizable_elements(run: TrainingStep) -> int:
    """Elements inside linear modules of layers, towers and projectors; embeddings, output layer, norms and fused
    experts stay as they are, and in checkpoints that are quantized already the towers (vLLM pull request 10169)."""
    loaded = decoder_layers.loaded_layers(run.arch, run.work.experts_fused)
    inside = sum(count * block.linear_elements for count, block in loaded) + per_layer_projection_elements(run.arch)
    return inside + (0 if run.work.quant_grouped else sum(tower_linear_elements(tower) for tower in run.arch.towers))


@lru_cache(maxsize=64)
def base_weight_bytes(run: TrainingStep) -> float:
    """The base model's weights, whole."""
    sizes, total, work = run.sizes, run.parameters, run.work
    if work.quant_bits and work.method != "full":
        linear = _quantizable_elements(run)
        return quantized_element_size(work) * linear + sizes.base * (total - linear)
    if work.method in ("full", "freeze"):
        raised = run.trained + decoder_layers.elements_without_states(run.arch, work)
        return sizes.trained * raised + sizes.base * (total - raised)
    norms = 2.0 * sum(count * block.vectors for count, block in build_layers(run.arch)) if work.upcast_norms else 0.0
    return sizes.base * total + norms


def quantization_scale_bytes(run: TrainingStep) -> float:
    """Scales of all 4-bit weights. They are no parameters (bitsandbytes, nn/modules.py, Params4bit.quant_state), so
    neither FSDP nor ZeRO-3 spreads or offloads them, and every device keeps those of the whole model: seen in two
    processes under FSDP, whose shards halve and whose scales do not."""
    return _scale_element_size(run.work) * _quantizable_elements(run) if run.work.method != "full" else 0.0


def shardable_weight_bytes(run: TrainingStep) -> float:
    """The base model's weights, whole, as far as they are parameters, which FSDP and ZeRO-3 spread."""
    return base_weight_bytes(run) - quantization_scale_bytes(run)


def loaded_weight_bytes(run: TrainingStep) -> float:
    """The base model's weights, whole, before FSDP2 raises frozen ones to fp32."""
    lifted = run.adapts and not run.work.quant_bits
    return base_weight_bytes(run) * (run.work.base_bytes / run.sizes.base if lifted else 1.0)


def _persistent_bytes(run: TrainingStep) -> float:
    """ZeRO-3 keeps parameters smaller than the threshold whole on every device: norms and biases, and small adapters.
    At higher ranks their narrow matrices remain, counted as no less than what the rank at the threshold keeps."""
    if run.sharding.zero != 3:
        return 0.0
    vectors = run.sizes.base * sum(count * block.vectors for count, block in run.layers)
    if not run.adapts:
        return vectors
    small = min(1.0, run.sharding.persistence_threshold / (run.work.adapter.rank * run.arch.hidden))
    return vectors + small * run.sizes.adapter * (run.trained - run.saved)


def _sharded_bytes(run: TrainingStep, whole: float) -> float:
    """Of weights that are spread over all devices, or offloaded."""
    return 0.0 if run.sharding.offload_parameters else whole / run.sharding.world


def base_weights_on_device(run: TrainingStep) -> float:
    """The base model's weights on one device."""
    held = _mixer_buffer_bytes(run, run.arch.mixer) if run.arch.mixer else 0.0
    if not run.spreads_weights:
        return held + base_weight_bytes(run)
    return (
        held + quantization_scale_bytes(run) + _sharded_bytes(run, shardable_weight_bytes(run)) + _persistent_bytes(run)
    )


def _mixer_buffer_bytes(run: TrainingStep, mixer: Mixer) -> float:
    """Bytes that the mixers of all layers hold beside their weights, whole on every device."""
    layers = sum(count for count, block in run.layers if block.mixer)
    return run.work.base_bytes * layers * mixer.buffer_elements


def adapter_weights_on_device(run: TrainingStep) -> float:
    if not run.adapts:
        return 0.0
    whole = trained_bytes(run, run.sizes.adapter)
    return _sharded_bytes(run, whole) if run.spreads_weights else whole


def reference_weight_bytes(run: TrainingStep) -> float:
    """Frozen copies of the model."""
    return run.work.reference_copies * frozen_element_size(run.work) * run.parameters


def reference_weights_on_device(run: TrainingStep) -> float:
    """Only ZeRO-3 and FSDP spread the frozen copies, and offload them with the parameters: below stage 3 their engine
    runs at stage 0 (trl prepare_deepspeed)."""
    whole = reference_weight_bytes(run)
    return _sharded_bytes(run, whole) if run.spreads_weights else whole


def autocast_elements(run: TrainingStep, block: DecoderLayer) -> float:
    """Elements of one layer's trained matrices that autocast copies to half precision."""
    if run.sizes.casts:
        return block.matrices
    if run.work.precision == "amp" and run.adapts:
        return sum(adapter_elements(linear, run.work) for linear in block.linears)
    return 0.0


@lru_cache(maxsize=64)
def layer_autocast_copies(run: TrainingStep) -> float:
    """Bytes of the copies of all the layers' trained matrices. Those of views die with their layer's results."""
    if run.arch.recast and run.sizes.casts and run.checkpointing != "off":
        return 0.0
    return 2.0 * sum(number * autocast_elements(run, block) for number, block in run.visited)


def lm_head_autocast_copy(run: TrainingStep) -> float:
    """Bytes of the copy of a trained output layer, which its backward pass still needs."""
    casts_head = run.sizes.casts and run.work.method == "full"
    return 2.0 * run.head if casts_head or (run.work.adapter.full_head and run.work.precision == "amp") else 0.0


def matrix_elements(linears: Iterable[Linear]) -> int:
    return sum(linear.elements for linear in linears)


def largest_matrix(linears: Iterable[Linear]) -> int:
    """Elements of the largest matrix."""
    return max((linear.inputs * linear.outputs for linear in linears), default=0)


def dequantized_bytes(run: TrainingStep, linears: Iterable[Linear]) -> float:
    """The largest matrix in compute precision, rebuilt for its product and dropped again."""
    return 2.0 * largest_matrix(linears) if run.work.quant_bits else 0.0


def dora_norm_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    """What DoRA needs to take the norm of an adapted matrix: an identity matrix of its inputs, with a copy in compute
    precision, from which the adapter's product is made; the product and the scaled product; the base's matrix and the
    sum in the adapter's precision (peft, tuners/lora/dora.py)."""
    work, sizes = run.work, run.sizes
    if not work.adapter.dora or work.method != "lora":
        return 0.0
    made = sizes.compute if work.precision == "amp" else sizes.adapter
    identity = sizes.adapter + (made if made < sizes.adapter else 0.0)
    copied = sizes.adapter if work.quant_bits or sizes.base != sizes.adapter else 0.0
    matrix = copied + sizes.adapter + 2 * made
    adapted = block.by_role(*work.adapter.targets)
    return max((each.inputs * (identity * each.inputs + matrix * each.outputs) for each in adapted), default=0.0)


GatherPoint = Literal["loss", "last layer", "first layer", "embedding"]


def gathered_weight_bytes(run: TrainingStep, where: GatherPoint) -> float:
    """Whole parameters that a sharded run has on the device at this point of the step."""
    if run.sharding.zero == 3:
        return _gathered_zero3(run, where)
    return _gathered_fsdp(run) if run.sharding.fsdp else 0.0


def _embedding_element_size(run: TrainingStep) -> float:
    """Bytes per element of embedding and output layer."""
    return run.sizes.trained if run.work.method == "full" else run.sizes.base


def _layer_element_size(run: TrainingStep) -> float:
    """Bytes per element of the layers that are gathered."""
    return (shardable_weight_bytes(run) - _embedding_element_size(run) * run.tables) / (run.parameters - run.tables)


def _gathered_zero3(run: TrainingStep, where: GatherPoint) -> float:
    """ZeRO-3 gathers the module at work and a prefetch bucket, and keeps what it will use again within the reuse
    distance: at the loss that is a third of it, since a checkpointed layer is used once going forward and twice
    coming back, less the output layer, which is passed twice
    (deepspeed/runtime/zero/partitioned_param_coordinator.py)."""
    sharding, whole, per_table = run.sharding, shardable_weight_bytes(run), _embedding_element_size(run)
    per_layer = _layer_element_size(run)
    reuse = min(sharding.max_reuse_distance, sharding.max_live_parameters)
    table, inside = {
        "loss": (run.head, max(0.0, (reuse - 2 * run.head) / 3)),
        "last layer": (0, max(run.largest_layer, reuse / 3)),
        "first layer": (0, run.largest_layer),
        "embedding": (run.embedding, 0),
    }[where]
    return min(whole, per_table * table + per_layer * (inside + sharding.prefetch_bucket))


def side_stream_pools(run: TrainingStep) -> float:
    """What the allocator keeps for ZeRO-3's second streams beside what is live at the peak. With overlapping
    communication parameters are gathered on a stream of their own (deepspeed, parameter_offload.py), and the
    allocator keeps a pool for each stream: both tables and the layers within the reuse distance, at their largest.
    Gradients of the tables on their way to the host take blocks of their own, twice: as made and as reduced.

    hiyouga/LLaMA-Factory#5977 and #7282 hold 11 and 25 GiB where 2 to 6 are live."""
    sharding = run.sharding
    if sharding.zero != 3 or not sharding.overlap:
        return 0.0
    inside = min(sharding.max_reuse_distance, sharding.max_live_parameters, run.parameters - run.tables)
    leaves = run.work.method == "full" and sharding.offload_optimizer
    leaving = 2 * run.sizes.gradient * run.tables if leaves else 0.0
    return _embedding_element_size(run) * (run.tables + inside) - _gathered_zero3(run, "loss") + leaving


def _gathered_fsdp(run: TrainingStep) -> float:
    """FSDP holds the root unit (embedding, output layer, towers) whole, and two layers: the one at work and the one
    prefetched."""
    sizes = run.sizes
    if run.sharding.stage == 2:
        return sizes.compute * run.parameters
    quantized = _layer_element_size(run) / run.work.base_bytes if run.work.quant_bits else 1.0
    towers = sum(tower_and_projector_elements(tower) for tower in run.arch.towers)
    return sizes.compute * (run.tables + (towers + 2 * run.largest_layer) * quantized)
