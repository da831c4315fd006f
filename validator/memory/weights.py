"""Weights on the worst device: the base model's, the adapter's and those of a frozen copy. Bytes."""

from __future__ import annotations

from functools import lru_cache

from . import idle
from .blocks import blocks
from .parameters import layer_projection
from .precision import frozen
from .run import Run
from .tower import all_linears
from .trained import trained_bytes
from .workload import Workload


def quantized_bytes(workload: Workload) -> float:
    """Bytes per element of a quantized linear module, scales included. 8-bit bitsandbytes keeps one scale for each row;
    GPTQ and AWQ keep a half-precision scale and a zero point for 128 elements."""
    bits = workload.quant_bits
    if workload.quant_grouped:
        return bits / 8 + (2 + bits / 8) / 128
    return bits / 8 + _scale_bytes(workload)


def _scale_bytes(workload: Workload) -> float:
    """Bytes per element of the scales of bitsandbytes' 4-bit weights: one in fp32 for 64 elements, or one byte and a
    second-level scale (QLoRA, arXiv 2305.14314)."""
    if workload.quant_bits != 4 or workload.quant_grouped:
        return 0.0
    return (1 + 4 / 256) / 64 if workload.double_quant else 4 / 64


def _quantizable(run: Run) -> int:
    """Elements inside linear modules of layers, towers and projectors; embeddings, output layer, norms and fused
    experts stay as they are, and in checkpoints that are quantized already the towers (vLLM pull request 10169)."""
    loaded = idle.loaded(run.arch, run.work.experts_fused)
    inside = sum(count * block.linear_elements for count, block in loaded) + layer_projection(run.arch)
    return inside + (0 if run.work.quant_grouped else sum(all_linears(tower) for tower in run.arch.towers))


@lru_cache(maxsize=64)
def base_weights(run: Run) -> float:
    """The base model's weights, whole."""
    sizes, total, work = run.sizes, run.parameters, run.work
    if work.quant_bits and work.method != "full":
        linear = _quantizable(run)
        return quantized_bytes(work) * linear + sizes.base * (total - linear)
    if work.method in ("full", "freeze"):
        raised = run.trained + idle.unstepped(run.arch, work)
        return sizes.trained * raised + sizes.base * (total - raised)
    norms = 2.0 * sum(count * block.vectors for count, block in blocks(run.arch)) if work.upcast_norms else 0.0
    return sizes.base * total + norms


def scales(run: Run) -> float:
    """Scales of all 4-bit weights. They are no parameters (bitsandbytes, nn/modules.py, Params4bit.quant_state), so
    neither FSDP nor ZeRO-3 spreads or offloads them, and every device keeps those of the whole model: seen in two
    processes under FSDP, whose shards halve and whose scales do not."""
    return _scale_bytes(run.work) * _quantizable(run) if run.work.method != "full" else 0.0


def spreadable(run: Run) -> float:
    """The base model's weights, whole, as far as they are parameters, which FSDP and ZeRO-3 spread."""
    return base_weights(run) - scales(run)


def loaded_weights(run: Run) -> float:
    """The base model's weights, whole, before FSDP2 raises frozen ones to fp32."""
    lifted = run.adapts and not run.work.quant_bits
    return base_weights(run) * (run.work.base_bytes / run.sizes.base if lifted else 1.0)


def _persistent(run: Run) -> float:
    """ZeRO-3 keeps parameters smaller than the threshold whole on every device: norms and biases, and small adapters.
    At higher ranks their narrow matrices remain, counted as no less than what the rank at the threshold keeps."""
    if run.sharding.zero != 3:
        return 0.0
    vectors = run.sizes.base * sum(count * block.vectors for count, block in run.layers)
    if not run.adapts:
        return vectors
    small = min(1.0, run.sharding.persistence_threshold / (run.work.adapter.rank * run.arch.hidden))
    return vectors + small * run.sizes.adapter * (run.trained - run.saved)


def _share(run: Run, whole: float) -> float:
    """Of weights that are spread over all devices, or offloaded."""
    return 0.0 if run.sharding.offload_parameters else whole / run.sharding.world


def weights(run: Run) -> float:
    """The base model's weights on one device."""
    held = _buffers(run) if run.arch.mixer else 0.0
    if not run.spreads_weights:
        return held + base_weights(run)
    return held + scales(run) + _share(run, spreadable(run)) + _persistent(run)


def _buffers(run: Run) -> float:
    from . import mixing  # which few models have

    return mixing.buffers(run)


def adapter(run: Run) -> float:
    if not run.adapts:
        return 0.0
    whole = trained_bytes(run, run.sizes.adapter)
    return _share(run, whole) if run.spreads_weights else whole


def whole_reference(run: Run) -> float:
    """Frozen copies of the model."""
    return run.work.reference_copies * frozen(run.work) * run.parameters


def reference(run: Run) -> float:
    """Only ZeRO-3 and FSDP spread the frozen copies, and offload them with the parameters: below stage 3 their engine
    runs at stage 0 (trl prepare_deepspeed)."""
    whole = whole_reference(run)
    return _share(run, whole) if run.spreads_weights else whole
