"""The moments of a run at which device memory can peak. Each gives bytes by term."""

from __future__ import annotations

from collections.abc import Callable

from . import backward, forward, traffic
from .forward import Terms
from .optimizer import step_bytes
from .shapes import parameters
from .states import base_weight_bytes, gradients, reference, reference_whole, resident
from .workload import Architecture, Workload


def _whole_first(workload: Workload) -> bool:
    """Whether every device holds all weights before they are spread: a model that is quantized while it loads skips
    ZeRO-3's partitioned initialization (transformers, modeling_utils and quantizer_bnb_4bit.update_device_map), and
    FSDP that starts after loading finds the model on the device."""
    sharding = workload.sharding
    quantized = workload.quant_bits > 0 and not workload.quant_grouped
    return (sharding.zero == 3 and quantized) or (sharding.fsdp and not sharding.sharded_load)


def loading(arch: Architecture, workload: Workload) -> Terms:
    """A full fine-tune under ZeRO below stage 3 raises its weights to fp32 on the device before the engine takes
    them."""
    if _whole_first(workload):
        whole = reference_whole(arch, workload) if workload.sharding.fsdp else 0.0
        return {"weights": base_weight_bytes(arch, workload), "reference": whole}
    if workload.method != "full" or workload.precision != "engine" or workload.sharding.zero == 3:
        return {}
    return {"weights": 4.0 * parameters(arch), "reference": reference(arch, workload)}


def step(arch: Architecture, workload: Workload) -> Terms:
    """ZeRO-3's reduce bucket stands; below stage 3 it is freed before the step."""
    standing = workload.sharding.zero == 3 or not workload.sharding.engine
    return {
        **resident(arch, workload),
        "gradients": gradients(arch, workload),
        "buckets": traffic.buckets(arch, workload) if standing else 0.0,
        "step": step_bytes(arch, workload),
    }


MOMENTS: dict[str, Callable[[Architecture, Workload], Terms]] = {
    "loading": loading,
    "last layer forward": forward.last_layer,
    "loss forward": forward.loss_forward,
    "loss backward": forward.loss_backward,
    "output layer gradient": backward.head_gradient,
    "last layer backward": backward.last_layer,
    "first layer backward": backward.first_layer,
    "embedding gradient": backward.embedding_gradient,
    "optimizer step": step,
    "evaluation": forward.evaluation,
}
