"""Model states on the worst device: weights, adapter, gradients, optimizer, reference. Bytes."""

from __future__ import annotations

from functools import lru_cache

from .optimizer import partitions, state_bytes, trained_bytes
from .precision import element_bytes
from .shapes import attends_in_squares, blocks, embedding, head, parameters, saved_elements, trainable_parameters
from .workload import Architecture, Workload


def quantized_bytes(workload: Workload) -> float:
    """Bytes per element of a quantized linear module, scales included.

    bitsandbytes 4-bit: one fp32 scale for 64 elements, or one byte and a second-level scale (QLoRA, arXiv 2305.14314);
    8-bit keeps one scale for each row; GPTQ and AWQ keep a half-precision scale and a zero point for 128 elements."""
    bits = workload.quant_bits
    if workload.quant_grouped:
        return bits / 8 + (2 + bits / 8) / 128
    if bits == 8:
        return 1.0
    return 0.5 + ((1 + 4 / 256) / 64 if workload.double_quant else 4 / 64)


@lru_cache(maxsize=2048)
def quantizable(arch: Architecture, fused: bool) -> int:
    """Elements inside linear modules of the layers; embeddings, output layer, norms and fused experts stay as they
    are."""
    return sum(count * block.linear_elements for count, block in blocks(arch, fused))


@lru_cache(maxsize=2048)
def base_weight_bytes(arch: Architecture, workload: Workload) -> float:
    """Bytes of the base model's weights, whole."""
    sizes, total = element_bytes(workload), parameters(arch)
    if workload.method == "full":
        return sizes.trained * total
    if workload.quant_bits:
        linear = quantizable(arch, workload.experts_fused)
        return quantized_bytes(workload) * linear + sizes.base * (total - linear)
    if workload.method == "freeze":
        trained = trainable_parameters(arch, workload)
        return sizes.trained * trained + sizes.base * (total - trained)
    norms = 2.0 * sum(count * block.vectors for count, block in blocks(arch)) if workload.upcast_norms else 0.0
    return sizes.base * total + norms


def weights_sharded(workload: Workload) -> bool:
    return workload.sharding.zero == 3 or workload.sharding.fsdp


def _persistent(arch: Architecture, workload: Workload) -> float:
    """ZeRO-3 keeps parameters smaller than the threshold whole on every device: norms and biases, and small adapters.
    At higher ranks their narrow matrices remain, counted as no less than what the rank at the threshold keeps."""
    if workload.sharding.zero != 3:
        return 0.0
    sizes = element_bytes(workload)
    vectors = sizes.base * sum(count * block.vectors for count, block in blocks(arch, workload.experts_fused))
    if workload.method not in ("lora", "oft"):
        return vectors
    small = min(1.0, workload.sharding.persistence_threshold / (workload.adapter.rank * arch.hidden))
    return vectors + small * sizes.adapter * (trainable_parameters(arch, workload) - saved_elements(arch, workload))


def weights(arch: Architecture, workload: Workload) -> float:
    whole = base_weight_bytes(arch, workload)
    if not weights_sharded(workload):
        return whole
    shard = 0.0 if workload.sharding.offload_parameters else whole / workload.sharding.world
    return shard + _persistent(arch, workload)


def adapter(arch: Architecture, workload: Workload) -> float:
    if workload.method not in ("lora", "oft"):
        return 0.0
    whole = trained_bytes(arch, workload, element_bytes(workload).adapter)
    if not weights_sharded(workload):
        return whole
    return 0.0 if workload.sharding.offload_parameters else whole / workload.sharding.world


def optimizer(arch: Architecture, workload: Workload) -> float:
    """Moments and master weights on the device; paged moments live in memory that the driver moves out under
    pressure, master weights do not."""
    if workload.sharding.offload_optimizer:
        return 0.0
    paged = state_bytes(arch, workload) if workload.optimizer.startswith("paged_") else 0.0
    return (optimizer_whole(arch, workload) - paged) / partitions(workload)


def optimizer_whole(arch: Architecture, workload: Workload) -> float:
    master = element_bytes(workload).master * trainable_parameters(arch, workload)
    return state_bytes(arch, workload) + master


def gradients(arch: Architecture, workload: Workload) -> float:
    """All gradients at the end of the backward pass. Offloading the optimizer sends partitioned gradients with it."""
    sharding = workload.sharding
    if workload.layerwise_update or workload.optimizer == "badam":
        return 0.0
    whole = trained_bytes(arch, workload, element_bytes(workload).gradient)
    if sharding.zero >= 2 or sharding.fsdp:
        return 0.0 if sharding.offload_optimizer else whole / sharding.world
    return whole


def accumulated(arch: Architecture, workload: Workload) -> float:
    """Gradients while micro batches follow one another. FSDP spreads them only in the last one: until then every device
    has all of them, in the precision of its gathered weights (transformers and accelerate run the others under
    no_sync)."""
    if workload.sharding.fsdp and workload.accumulation > 1:
        return element_bytes(workload).compute * trainable_parameters(arch, workload)
    return gradients(arch, workload)


def mask(arch: Architecture, workload: Workload) -> float:
    """Attention masks of the whole model: one, and one more for sliding windows. Eager attention adds it to the
    scores in the residual stream's precision; sdpa reads booleans, and needs one only for padding or a window that is
    reached."""
    square = float(workload.micro_batch * workload.sequences_per_sample * workload.length**2)
    windows = arch.attn.window > 0
    if attends_in_squares(arch, workload):
        return square * element_bytes(workload).residual * (2 if windows else 1)
    if workload.attention != "sdpa":
        return 0.0
    reached = windows and workload.length >= arch.attn.window
    return square * (int(workload.padded) + int(reached))


def reference_whole(arch: Architecture, workload: Workload) -> float:
    """Frozen copies of the model in the checkpoint's precision."""
    return workload.reference_copies * workload.base_bytes * parameters(arch)


def reference(arch: Architecture, workload: Workload) -> float:
    """Only ZeRO-3 and FSDP spread the frozen copies, and offload them with the parameters: below stage 3 their engine
    runs at stage 0 (trl prepare_deepspeed)."""
    if not weights_sharded(workload):
        return reference_whole(arch, workload)
    return 0.0 if workload.sharding.offload_parameters else reference_whole(arch, workload) / workload.sharding.world


def head_elements(arch: Architecture) -> int:
    """Elements of the matrix that makes logits, whether or not it is the embedding's."""
    return head(arch) if not arch.tied else embedding(arch)


def resident(arch: Architecture, workload: Workload) -> dict[str, float]:
    """What stays on the device through the whole step, gradients apart."""
    return {
        "weights": weights(arch, workload),
        "adapter": adapter(arch, workload),
        "optimizer": optimizer(arch, workload),
        "reference": reference(arch, workload),
    }
