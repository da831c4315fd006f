"""What published measurements say little about: there the band is wider, and the answer says so."""

from __future__ import annotations

from collections.abc import Iterator

from .run import Run

# Half of the band's relative width around the live tensors, by what is missing. Runs on one node of the common kinds of
# device were within 3 % (benchmarks/accuracy_memory/report.py); a software path that only the simulator has seen gets
# twice that; of some kinds of device only a handful of rough figures is public.
MEASURED, UNMEASURED_RUN, UNMEASURED_DEVICE = 0.03, 0.06, 0.08
_OPTIMIZERS = ("adamw", "adamw_foreach", "adamw_8bit", "sgd", "adafactor")
_LONGEST = 16384  # tokens of the longest published run with a known peak


def gaps(run: Run, device_measured: bool = True) -> tuple[str, ...]:
    """What of this run has few published measurements, in words that follow "few measurements of"."""
    device = () if device_measured else ("this kind of device",)
    return (*device, *_unmeasured(run))


def _unmeasured(run: Run) -> Iterator[str]:
    sharding, work = run.sharding, run.work
    if run.arch.counted:
        yield "models that no formula knows"
    if sharding.nodes > 1:
        yield "runs on several nodes"
    if sharding.offload_optimizer or sharding.offload_parameters:
        yield "offload to the host"
    yield from _unmeasured_shapes(run)
    if work.method == "oft":
        yield "orthogonal adapters"
    if work.optimizer not in _OPTIMIZERS:
        yield "this optimizer"
    if work.needs_full_logits or work.value_head:
        yield "preference and reward stages"
    if work.checkpointing == "offloaded":
        yield "checkpoints on the host"
    if work.length > _LONGEST:
        yield f"samples over {_LONGEST} tokens"


def _unmeasured_shapes(run: Run) -> Iterator[str]:
    if run.arch.ffn.experts:
        yield "mixtures of experts"
    if run.arch.towers:
        yield "models that see or hear"
    if run.arch.attn.kv_rank:
        yield "latent attention"
    if run.arch.mixer:
        yield run.arch.mixer.rare


def spread(gaps: tuple[str, ...], device_measured: bool) -> float:
    """Relative uncertainty of the live tensors."""
    if not device_measured:
        return UNMEASURED_DEVICE
    return UNMEASURED_RUN if gaps else MEASURED
