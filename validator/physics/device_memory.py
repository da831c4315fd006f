"""Peak memory of the worst device, and the figure that nvidia-smi or npu-smi shows: live tensors, allocator overhead,
context, communication buffers.

The coefficients of the allocator are read off runs that published both figures, live tensors and what the tool shows:
fms-acceleration's packed A100 runs, ms-swift's ZeRO-3 runs, peft's method comparison.
benchmarks/accuracy_memory/report.py scores them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from validator.physics import uncertainty, weights
from validator.physics.architecture import Architecture
from validator.physics.estimate import GIB, DeviceTerm, Estimate, largest_phase
from validator.physics.peaks import PHASES, DeviceTerms, resident_terms
from validator.physics.training_step import TrainingStep, training_step
from validator.physics.workload import Workload

# Without expandable segments, blocks of other sizes cannot be merged. Equal batches ask for the same sizes again.
FRAGMENTS_EQUAL = 0.10
# Batches of ever new lengths do not: the cache fills with blocks of earlier lengths, up to several times what one batch
# needs. Published adapter runs hold 1.3 to 3.7 times the tensors that grow with the batch: fms-acceleration's unpacked
# runs 2.0 to 3.3, ms-swift's benchmark 2.3 to 3.7, hiyouga/LLaMA-Factory#7409 1.3 to 2.5. Full runs hold 1.0 to 1.95
# times (fms-acceleration unpacked, ms-swift's examples): their gradients leave large blocks that activations reuse,
# unless they leave for the host.
CACHE_FACTOR, CACHE_FACTOR_HIGH = 2.5, 3.8
CACHE_FACTOR_FULL, CACHE_FACTOR_FULL_HIGH = 1.4, 2.0
# Runs with more slack than room end at 0.93 to 1.0 of the card (fms-acceleration's 80 GB cards), where the allocator
# gives cached blocks back.
FULL_CARD = 0.97
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
# 53 published runs of equal batches held 0.26 to 2.25 times the slack given here, 19 of 20 of them at most 1.8 times.
SLACK_HIGH = 1.8
# Bytes of communication buffers from the first collective on (accelerate's notes on a bare barrier: 1.5 GiB).
COMMUNICATION_BYTES = 1.5 * GIB


class DeviceRuntime(NamedTuple):
    """Memory that a kind of device and its software need in addition to the tensors. `context_gib`: GiB of the device
    context. `evidence`: how well runs on this kind of device are measured. `expandable_segments`: whether the allocator
    uses them. `capacity_gib`: GiB of memory that the allocator cannot exceed; None: no limit."""

    context_gib: float = 0.5
    evidence: Literal["good", "thin"] = "good"
    expandable_segments: bool = False
    capacity_gib: float | None = None


def _unmergeable_share(runtime: DeviceRuntime) -> float:
    """Share of the bytes allocated and freed within a step that lies in fragments between used blocks and cannot be
    given back."""
    return FRAGMENTS_EXPANDABLE if runtime.expandable_segments else FRAGMENTS_EQUAL


def _fragmentation_share(step: TrainingStep, runtime: DeviceRuntime) -> float:
    """Bytes that the allocator holds in addition to the bytes allocated and freed within a step, as a share of the
    latter. The share is larger under FSDP and ZeRO-3, which free gathered weights on a second stream."""
    return _unmergeable_share(runtime) + (SECOND_STREAM_FRAGMENTS if step.strategy.shards_weights else 0.0)


def reserved_unused(step: TrainingStep, transient: float, runtime: DeviceRuntime) -> float:
    """Bytes that the allocator holds beyond the live tensors. `transient`: bytes that are allocated and freed within a
    step."""
    unused = _fragmentation_share(step, runtime) * transient
    if not runtime.expandable_segments and step.work.loss != "fused":
        bytes_per_logit = LEFTOVER_SHIFTED if step.work.loss == "shifted" else LEFTOVER_UPCAST
        unused += bytes_per_logit * step.tokens * step.arch.vocab
    unused += max(weights.side_stream_pools(step), 0.0)
    if step.strategy.fsdp and step.work.method == "full":
        unused += FSDP_PER_TRAINED * step.trained_elements
    return unused


class LiveBytes(NamedTuple):
    """Bytes of live tensors at one moment of a step: `total` of all tensors, `per_batch` of the tensors that grow with
    the batch."""

    total: float
    per_batch: float

    def with_cache(self, times: float) -> float:
        """Bytes of all tensors if the allocator's cache holds `times` the bytes that the batch needs."""
        return self.total + (times - 1) * self.per_batch


def device_memory_band(
    step: TrainingStep, moments: Iterable[LiveBytes], fixed: float, runtime: DeviceRuntime
) -> tuple[float, float, float]:
    """Return (low, expected, high) bytes of device memory, as the device's own tool shows them, over all `moments` of a
    step. `fixed`: bytes of live tensors that stay through the whole step.

    Before an allocation fails, the allocator gives its cached blocks back; only fragments between used blocks are
    stuck. So the cache can fill a device, but cannot by itself exceed the device's memory."""
    lives = tuple(moments)
    allocated = max(live.total for live in lives)
    overhead = runtime.context_gib * GIB + (COMMUNICATION_BYTES if step.sharding.world_size > 1 else 0.0)
    unused = reserved_unused(step, max(allocated - fixed, 0.0), runtime)
    measured = runtime.evidence == "good"
    spread = uncertainty.memory_spread(uncertainty.memory_gaps(step, measured), measured)
    low = allocated * (1 - spread) + overhead / 2
    expected, high = allocated + unused + overhead, allocated * (1 + spread) + SLACK_HIGH * unused + 1.5 * overhead
    if step.work.pads_batches and not runtime.expandable_segments:
        reuses = step.work.method == "full" and not step.sharding.offload_optimizer
        factor, high_factor = (
            (CACHE_FACTOR_FULL, CACHE_FACTOR_FULL_HIGH) if reuses else (CACHE_FACTOR, CACHE_FACTOR_HIGH)
        )
        expected = max(expected, overhead + max(live.with_cache(factor) for live in lives))
        high = max(high, 1.5 * overhead + max(live.with_cache(high_factor + spread) for live in lives))
    if runtime.capacity_gib is not None:
        capacity = runtime.capacity_gib * GIB
        fragments = max(spread * allocated, _unmergeable_share(runtime) * max(allocated - fixed, 0.0))
        expected = min(expected, max(FULL_CARD * capacity, allocated + fragments + overhead))
        high = min(high, max(capacity, allocated * (1 + spread) + unused + 1.5 * overhead))
    return low, expected, high


# Of these the allocator keeps more than one batch needs; the others have the same size in every step.
TERMS_PER_BATCH = tuple(term for term in DeviceTerm if term.grows_with == "batch")


def live_bytes(terms: DeviceTerms) -> LiveBytes:
    """Return the bytes of live tensors at a moment with these terms."""
    return LiveBytes(sum(terms.values()), sum(terms.get(term, 0.0) for term in TERMS_PER_BATCH))


def live_bytes_by_phase(step: TrainingStep) -> dict[str, LiveBytes]:
    """Return the bytes of live tensors in each phase of a run, such as "loss forward", by the phase's name."""
    return {name: live_bytes(terms_of(step)) for name, terms_of in PHASES.items()}


def resident_bytes(arch: Architecture, work: Workload) -> float:
    """Bytes of weights and optimizer states. These are on the device during the whole run, so that the
    peak of every phase is at least as large."""
    return sum(resident_terms(training_step(arch, work)).values())


def _low_end_with_kernels(arch: Architecture, workload: Workload, runtime: DeviceRuntime) -> float:
    """Low end of the memory band, in bytes, for the case that fused kernels of the model's mixer (such as mamba-ssm)
    are installed although the recipe does not say so. Infinite if the model has no mixer, or if `arch` already assumes
    fused kernels."""
    if not arch.mixer or arch.mixer.kernels:
        return float("inf")
    return estimate_device_memory(arch.with_mixer_kernels(), workload, runtime).low


def estimate_device_memory(arch: Architecture, workload: Workload, runtime: DeviceRuntime | None = None) -> Estimate:
    """Estimate the peak memory of the worst device, in bytes: live tensors by term, and the band of what the device's
    own tool (nvidia-smi, npu-smi) shows. `runtime`: None means the defaults of DeviceRuntime."""
    step, runtime = training_step(arch, workload), runtime or DeviceRuntime()
    phases = {name: terms_of(step) for name, terms_of in PHASES.items()}
    moment, terms = largest_phase(phases)
    fixed = sum(resident_terms(step).values())
    low, expected, high = device_memory_band(step, map(live_bytes, phases.values()), fixed, runtime)
    low = min(low, _low_end_with_kernels(arch, workload, runtime))
    return Estimate(terms, low, expected, high, moment, uncertainty.memory_gaps(step, runtime.evidence == "good"))
