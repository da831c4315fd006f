"""From live tensors to what nvidia-smi or npu-smi shows: context, communication, what the caching allocator holds.

The coefficients are read off runs that published both figures: fms-acceleration's packed A100 runs (one, two and four
devices), ms-swift's ZeRO-3 runs, peft's method comparison; benchmarks/memory.py scores them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .activations import tokens
from .shapes import trainable_parameters
from .workload import Architecture, Workload

GIB = float(1 << 30)

# Freed blocks of the step before last fit the next tensors less well when batches differ in length.
FRAGMENTS_EQUAL = 0.10
FRAGMENTS_VARYING = 0.25
# Expandable segments grow and shrink page by page: little is left between blocks.
FRAGMENTS_EXPANDABLE = 0.05
# Bytes per logit in blocks that the loss's backward pass cannot use again: the half-precision logits are too small for
# an fp32 gradient, and releases that shifted the logits left the fp32 copy, too.
LEFTOVER_UPCAST = 2.0
LEFTOVER_SHIFTED = 4.0
# FSDP and ZeRO-3 free gathered weights on a second stream, so the allocator may not reuse them at once: more fragments,
# and under FSDP, when the base model trains, more than half of its half-precision size.
SECOND_STREAM_FRAGMENTS = 0.10
FSDP_PER_TRAINED = 1.2
# Bytes of communication buffers from the first collective on (accelerate's notes on a bare barrier: 1.5 GiB).
COMMUNICATION = 1.5 * GIB


@dataclass(frozen=True)
class Runtime:
    """What the device kind and its software add.

    `evidence`: how well this kind has been measured. `capacity_gib`: what all processes can use; at that limit the
    allocator gives cached blocks back instead of failing."""

    context_gib: float = 0.5
    evidence: Literal["good", "thin"] = "good"
    expandable_segments: bool = False
    capacity_gib: float | None = None


def _fragments(workload: Workload, runtime: Runtime) -> float:
    """Share of what comes and goes that the allocator holds on top of it."""
    if runtime.expandable_segments:
        share = FRAGMENTS_EXPANDABLE
    else:
        share = FRAGMENTS_VARYING if workload.padded else FRAGMENTS_EQUAL
    gathers = workload.sharding.fsdp or workload.sharding.zero == 3
    return share + (SECOND_STREAM_FRAGMENTS if gathers else 0.0)


def slack(arch: Architecture, workload: Workload, passing: float, runtime: Runtime) -> float:
    """Bytes the allocator holds beyond the live tensors, of which `passing` come and go within a step."""
    held = _fragments(workload, runtime) * passing
    if not runtime.expandable_segments and workload.loss != "fused":
        each = LEFTOVER_SHIFTED if workload.loss == "shifted" else LEFTOVER_UPCAST
        held += each * tokens(workload) * arch.vocab
    if workload.sharding.fsdp and workload.method == "full":
        held += FSDP_PER_TRAINED * trainable_parameters(arch, workload)
    return held


def band(
    arch: Architecture, workload: Workload, allocated: float, fixed: float, runtime: Runtime
) -> tuple[float, float, float]:
    """(low, expected, high) in bytes. `fixed`: the part of `allocated` that stays through the whole step."""
    beside = runtime.context_gib * GIB + (COMMUNICATION if workload.sharding.world > 1 else 0.0)
    held = slack(arch, workload, max(allocated - fixed, 0.0), runtime)
    spread = 0.03 if runtime.evidence == "good" else 0.08
    low = allocated * (1 - spread) + beside / 2
    expected, high = allocated + held + beside, allocated * (1 + spread) + 2 * held + 1.5 * beside
    if runtime.capacity_gib is not None:
        full = max(runtime.capacity_gib * GIB, allocated * (1 + spread) + beside)
        return low, min(expected, full), high
    return low, expected, high
