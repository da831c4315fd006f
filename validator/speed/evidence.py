"""How sure a prediction is: by what takes the time, and by what published runs say little about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validator.memory.mixers import Delta
from validator.memory.run import Run

from .device import Device
from .terms import Term

# Half of the 90 % band's relative width that each term would have alone. Residuals of packed runs for products,
# attention and memory-bound work; what has few published times is guessed wide.
_TERMS: Mapping[Term, float] = {
    Term.PRODUCTS: 0.10, Term.RECOMPUTATION: 0.10, Term.ATTENTION: 0.30, Term.EXPERTS: 0.5, Term.TOWERS: 0.4,
    Term.HEAD: 0.15, Term.ELEMENTWISE: 0.25, Term.QUANTIZATION: 0.5, Term.LAUNCHES: 0.5, Term.OPTIMIZER: 0.3,
    Term.LINKS: 0.5, Term.NETWORK: 0.5, Term.OFFLOAD: 0.5, Term.HOST_OPTIMIZER: 0.5, Term.LOADING: 0.6,
}  # fmt: skip
# What all terms share: the rate that a device really attains, by how many published runs of its kind there are.
_DEVICES = {"good": 0.12, "few": 0.25, "none": 0.40}
# What every gap adds.
_GAP = 0.2


def spread(run: Run, device: Device, terms: Mapping[Term, float]) -> float:
    """Relative width of the band to either side: terms err on their own, the device's rate for all of them."""
    whole = sum(terms.values())
    alone = sum((_TERMS[term] * seconds / whole) ** 2 for term, seconds in terms.items())
    return float((alone + _DEVICES[device.evidence] ** 2 + len(tuple(_unmeasured(run))) * _GAP**2) ** 0.5)


def gaps(run: Run, device: Device) -> tuple[str, ...]:
    """What of this run has few published times, in words that follow "few measurements of"."""
    kind = () if device.evidence == "good" else ("this kind of device",)
    return (*kind, *_unmeasured(run))


def _unmeasured(run: Run) -> Iterator[str]:
    sharding, work = run.sharding, run.work
    if sharding.nodes > 1:
        yield "runs on several nodes"
    if sharding.offload_optimizer or sharding.offload_parameters:
        yield "offload to the host"
    yield from _unmeasured_shapes(run)
    if work.quant_bits == 8:
        yield "8-bit weights"
    if work.method == "oft":
        yield "orthogonal adapters"
    if work.needs_full_logits or work.value_head:
        yield "preference and reward stages"
    if work.checkpointing == "offloaded":
        yield "checkpoints on the host"


def _unmeasured_shapes(run: Run) -> Iterator[str]:
    if run.arch.counted:
        yield "models that no formula knows"
    if run.arch.ffn.experts:
        yield "mixtures of experts"
    if any(encoding.tokens for encoding in run.work.encodings):
        yield "models that see or hear"
    match run.arch.mixer:
        case Delta():
            yield "linear attention (less time is needed with flash-linear-attention)"
        case None:
            pass
        case _:
            yield "layers without attention"
