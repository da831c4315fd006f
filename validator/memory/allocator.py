"""From live tensors to what nvidia-smi or npu-smi shows: context, communication, what the caching allocator holds.

The coefficients are read off runs that published both figures: fms-acceleration's packed A100 runs (one, two and four
devices), ms-swift's ZeRO-3 runs, peft's method comparison; benchmarks/accuracy_memory/report.py scores them.
"""

# Annotations are not postponed, as workload.py says: each start would pay for it.

from collections.abc import Iterable
from typing import Literal, NamedTuple

from . import evidence, traffic
from .estimate import GIB
from .run import Run

# Without expandable segments, blocks of other sizes cannot be merged. Equal batches ask for the same sizes again.
FRAGMENTS_EQUAL = 0.10
# Batches of ever new lengths do not: the cache fills with blocks of earlier lengths, up to several times what one batch
# needs. Published adapter runs hold 1.3 to 3.7 times the tensors that grow with the batch: fms-acceleration's unpacked
# runs 2.0 to 3.3, ms-swift's benchmark 2.3 to 3.7, hiyouga/LLaMA-Factory#7409 1.3 to 2.5. Full runs hold 1.0 to 1.95
# times (fms-acceleration unpacked, ms-swift's examples): their gradients leave large blocks that activations reuse,
# unless they leave for the host.
VARYING, VARYING_HIGH = 2.5, 3.8
VARYING_FULL, VARYING_FULL_HIGH = 1.4, 2.0
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
COMMUNICATION = 1.5 * GIB


class Runtime(NamedTuple):
    """What the device kind and its software add.

    `evidence`: how well this kind has been measured. `capacity_gib`: what all processes can use; at that limit the
    allocator gives cached blocks back instead of failing."""

    context_gib: float = 0.5
    evidence: Literal["good", "thin"] = "good"
    expandable_segments: bool = False
    capacity_gib: float | None = None


def _pieces(runtime: Runtime) -> float:
    """Share of what comes and goes that lies between blocks in use and cannot be given back."""
    return FRAGMENTS_EXPANDABLE if runtime.expandable_segments else FRAGMENTS_EQUAL


def _fragments(run: Run, runtime: Runtime) -> float:
    """Share of what comes and goes that the allocator holds on top of it."""
    return _pieces(runtime) + (SECOND_STREAM_FRAGMENTS if run.spreads_weights else 0.0)


def slack(run: Run, passing: float, runtime: Runtime) -> float:
    """Bytes the allocator holds beyond the live tensors, of which `passing` come and go within a step."""
    held = _fragments(run, runtime) * passing
    if not runtime.expandable_segments and run.work.loss != "fused":
        each = LEFTOVER_SHIFTED if run.work.loss == "shifted" else LEFTOVER_UPCAST
        held += each * run.tokens * run.arch.vocab
    held += max(traffic.side_pools(run), 0.0)
    if run.sharding.fsdp and run.work.method == "full":
        held += FSDP_PER_TRAINED * run.trained
    return held


class Live(NamedTuple):
    """Bytes of live tensors at one moment: all of them, and those that grow with the batch."""

    all: float
    batch: float

    def held(self, times: float) -> float:
        """All, when the cache holds `times` what the batch needs."""
        return self.all + (times - 1) * self.batch


def band(run: Run, moments: Iterable[Live], fixed: float, runtime: Runtime) -> tuple[float, float, float]:
    """(low, expected, high) in bytes over all moments of a step. `fixed`: what stays through the whole of it.

    Cached blocks are given back before an allocation fails: only pieces between blocks in use are stuck, so slack alone
    fills a device, but does not exceed it."""
    lives = tuple(moments)
    allocated = max(live.all for live in lives)
    beside = runtime.context_gib * GIB + (COMMUNICATION if run.sharding.world > 1 else 0.0)
    held = slack(run, max(allocated - fixed, 0.0), runtime)
    measured = runtime.evidence == "good"
    spread = evidence.spread(evidence.gaps(run, measured), measured)
    low = allocated * (1 - spread) + beside / 2
    expected, high = allocated + held + beside, allocated * (1 + spread) + SLACK_HIGH * held + 1.5 * beside
    if run.work.padded and not runtime.expandable_segments:
        reuses = run.work.method == "full" and not run.sharding.offload_optimizer
        usual, most = (VARYING_FULL, VARYING_FULL_HIGH) if reuses else (VARYING, VARYING_HIGH)
        expected = max(expected, beside + max(live.held(usual) for live in lives))
        high = max(high, 1.5 * beside + max(live.held(most + spread) for live in lives))
    if runtime.capacity_gib is not None:
        capacity = runtime.capacity_gib * GIB
        stuck = max(spread * allocated, _pieces(runtime) * max(allocated - fixed, 0.0))
        expected = min(expected, max(FULL_CARD * capacity, allocated + stuck + beside))
        high = min(high, max(capacity, allocated * (1 + spread) + held + 1.5 * beside))
    return low, expected, high
