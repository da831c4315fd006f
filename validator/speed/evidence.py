"""How sure a prediction is: by what takes the time, and by what published runs say little about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from validator.memory.mixers import Delta
from validator.memory.run import Run

from .device import Device
from .terms import Term

# Half of the 90 % band's relative width that each term would have alone. Residuals of packed runs for products,
# attention and memory-bound work; what has few published times is guessed wide.
_TERMS: Mapping[Term, float] = {
    Term.PRODUCTS: 0.10, Term.RECOMPUTATION: 0.10, Term.ATTENTION: 0.30, Term.EXPERTS: 0.5, Term.TOWERS: 0.4,
    Term.HEAD: 0.15, Term.ELEMENTWISE: 0.25, Term.QUANTIZATION: 0.5, Term.LAUNCHES: 0.5, Term.OPTIMIZER: 0.3,
    Term.LINKS: 0.5, Term.NETWORK: 0.5, Term.OFFLOAD: 0.8, Term.HOST_OPTIMIZER: 1.0, Term.LOADING: 0.6,
}  # fmt: skip
# The same of links that lead through main memory: 2 to 28 GB/s were measured on like cards (data/networks.yaml).
_SHARED_LINKS = 1.5
# What all terms share: the rate that a device really attains, by how many published runs of its kind there are.
_DEVICES = {"good": 0.14, "few": 0.25, "none": 0.40}
# Above this share of a step, pictures and sound make it uncertain by themselves; below it their terms' widths do.
_SEEN = 0.1


class Gap(NamedTuple):
    """What has few published times, in words that follow "few measurements of", and how far a step may be faster and
    slower for that: networks and hosts fall behind their rates in many ways, and never surpass them."""

    words: str
    faster: float
    slower: float


def band(run: Run, device: Device, terms: Mapping[Term, float]) -> tuple[float, float]:
    """Seconds of the low and of the high end: terms err on their own, the device's rate for all of them."""
    whole, missing = sum(terms.values()), tuple(_gaps(run, device, terms))
    widths = _TERMS if device.switched else {**_TERMS, Term.LINKS: _SHARED_LINKS}
    alone = sum((widths[term] * seconds / whole) ** 2 for term, seconds in terms.items())
    known = alone + _DEVICES[device.evidence] ** 2
    faster = (known + sum(gap.faster**2 for gap in missing)) ** 0.5
    slower = (known + sum(gap.slower**2 for gap in missing)) ** 0.5
    return whole / (1 + faster), whole * (1 + slower)


def gaps(run: Run, device: Device, terms: Mapping[Term, float]) -> tuple[str, ...]:
    """What of this run has few published times, in words that follow "few measurements of"."""
    kind = () if device.evidence == "good" else ("this kind of device",)
    return (*kind, *(gap.words for gap in _gaps(run, device, terms)))


def _gaps(run: Run, device: Device, terms: Mapping[Term, float]) -> Iterator[Gap]:
    yield from _of_sharding(run)
    yield from _of_work(run, device)
    yield from _of_shapes(run)
    seen = terms.get(Term.TOWERS, 0.0) + terms.get(Term.LOADING, 0.0)
    if seen > _SEEN * sum(terms.values()):
        yield Gap("models that see or hear", 0.3, 0.4)


def _of_sharding(run: Run) -> Iterator[Gap]:
    sharding = run.sharding
    # A network's rate, and who else uses it, is known least of all; under ZeRO-3, BigScience's runs took up to four
    # times as long as ours, MLPerf's as long.
    if sharding.nodes > 1:
        yield Gap("runs on several nodes", 0.3, 1.0)
    if sharding.nodes > 1 and sharding.zero == 3:
        yield Gap("ZeRO-3 between nodes", 0.2, 1.5)
    if sharding.offload_optimizer or sharding.offload_parameters:
        yield Gap("offload to the host", 0.4, 0.6)


def _of_work(run: Run, device: Device) -> Iterator[Gap]:
    work = run.work
    if work.quant_bits == 8:
        yield Gap("8-bit weights", 0.5, 1.2)
    # A blog's runs of 4 bits took five times as long as ours on MI300X, twice on MI250.
    if work.quant_bits and not device.cuda:
        yield Gap("quantized weights on other devices than NVIDIA's", 0.3, 4.0)
    if work.optimizer.startswith("galore"):
        yield Gap("GaLore's decompositions", 0.6, 0.6)
    if work.method == "oft":
        yield Gap("orthogonal adapters", 0.4, 0.4)
    if work.needs_full_logits and work.value_head:
        yield Gap("the answers that PPO generates", 0.2, 3.0)
    elif work.needs_full_logits or work.value_head:
        yield Gap("preference and reward stages", 0.2, 0.2)
    if work.checkpointing == "offloaded":
        yield Gap("checkpoints on the host", 0.2, 0.4)


def _of_shapes(run: Run) -> Iterator[Gap]:
    if run.arch.counted:
        yield Gap("models that no formula knows", 0.4, 0.6)
    if run.arch.ffn.experts:
        yield Gap("mixtures of experts", 0.4, 0.6)
    match run.arch.mixer:
        # Three runs of Qwen3.5-9B on B200 took 1.3 to 1.5 times as long as ours (benchmarks/evidence/time/times.csv).
        case Delta(kernels=True):
            yield Gap("linear attention", 0.1, 0.45)
        case Delta():
            yield Gap("linear attention (less time is needed with flash-linear-attention)", 0.8, 0.5)
        case None:
            pass
        case _:
            yield Gap("layers without attention", 0.3, 0.3)
