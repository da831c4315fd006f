"""What published measurements say little about, and how much wider the bands of memory and time are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validator.physics.estimate import EvidenceGap, TimeTerm
from validator.physics.rates import DeviceRates
from validator.physics.training_step import TrainingStep
from validator.physics.workload import ZERO_3

# Half of the band's relative width around the live tensors, by what is missing. Runs on one node of the common kinds of
# device were within 3 % (benchmarks/accuracy_memory/report.py); a software path that only the simulator has seen gets
# twice that; of some kinds of device only a handful of rough figures is public.
SPREAD_MEASURED, SPREAD_UNMEASURED_RUN, SPREAD_UNMEASURED_DEVICE = 0.03, 0.06, 0.08
_MEASURED_OPTIMIZERS = ("adamw", "adamw_foreach", "adamw_8bit", "sgd", "adafactor")
_LONGEST_MEASURED = 16384  # tokens of the longest published run with a known peak


def memory_gaps(step: TrainingStep, device_measured: bool = True) -> tuple[str, ...]:
    """What of this run has few published measurements, in words that follow "few measurements of"."""
    device = () if device_measured else ("this kind of device",)
    return (*device, *_memory_gaps_of_run(step))


def _memory_gaps_of_run(step: TrainingStep) -> Iterator[str]:
    sharding, work = step.sharding, step.work
    if step.arch.counted:
        yield "models that no formula knows"
    if sharding.nodes > 1:
        yield "runs on several nodes"
    if sharding.offload_optimizer or sharding.offload_parameters:
        yield "offload to the host"
    yield from _memory_gaps_of_shapes(step)
    if work.method == "oft":
        yield "orthogonal adapters"
    if work.optimizer not in _MEASURED_OPTIMIZERS:
        yield "this optimizer"
    if work.needs_full_logits or work.value_head:
        yield "preference and reward stages"
    if work.checkpointing == "offloaded":
        yield "checkpoints on the host"
    if work.length > _LONGEST_MEASURED:
        yield f"samples over {_LONGEST_MEASURED} tokens"


def _memory_gaps_of_shapes(step: TrainingStep) -> Iterator[str]:
    if step.arch.ffn.experts:
        yield "mixtures of experts"
    if step.arch.towers:
        yield "models that see or hear"
    if step.arch.attn.kv_rank:
        yield "latent attention"
    if step.arch.mixer:
        yield step.arch.mixer.memory_gap


def memory_spread(gaps: tuple[str, ...], device_measured: bool) -> float:
    """Relative uncertainty of the live tensors."""
    if not device_measured:
        return SPREAD_UNMEASURED_DEVICE
    return SPREAD_UNMEASURED_RUN if gaps else SPREAD_MEASURED


# Half of the 90 % band's relative width that each term would have alone. Residuals of packed runs for products,
# attention and memory-bound work; what has few published times is guessed wide.
_TERM_WIDTHS: Mapping[TimeTerm, float] = {
    TimeTerm.MATMUL: 0.10,
    TimeTerm.RECOMPUTATION: 0.10,
    TimeTerm.ATTENTION: 0.30,
    TimeTerm.EXPERTS: 0.5,
    TimeTerm.TOWERS: 0.4,
    TimeTerm.HEAD: 0.15,
    TimeTerm.ELEMENTWISE: 0.25,
    TimeTerm.QUANTIZATION: 0.5,
    TimeTerm.KERNEL_LAUNCHES: 0.5,
    TimeTerm.OPTIMIZER: 0.3,
    TimeTerm.COMMUNICATION: 0.5,
    TimeTerm.NETWORK: 0.5,
    TimeTerm.OFFLOAD_COPIES: 0.8,
    TimeTerm.CPU_OPTIMIZER: 1.0,
    TimeTerm.DATA_LOADING: 0.6,
}
# The same of links that lead through main memory: 2 to 28 GB/s were measured on like cards (data/networks.yaml).
_SHARED_LINK_WIDTH = 1.5
# What all terms share: the rate that a device really attains, by how many published runs of its kind there are.
_DEVICE_WIDTHS = {"good": 0.14, "few": 0.25, "none": 0.40}
# Above this share of a step, pictures and sound make it uncertain by themselves; below it their terms' widths do.
_TOWER_SHARE = 0.1


def step_time_band(step: TrainingStep, device: DeviceRates, terms: Mapping[TimeTerm, float]) -> tuple[float, float]:
    """Seconds of the low and of the high end: terms err on their own, the device's rate for all of them."""
    whole, missing = sum(terms.values()), tuple(_evidence_gaps(step, device, terms))
    widths = _TERM_WIDTHS if device.nvlink_switch else {**_TERM_WIDTHS, TimeTerm.COMMUNICATION: _SHARED_LINK_WIDTH}
    alone = sum((widths[term] * seconds / whole) ** 2 for term, seconds in terms.items())
    known = alone + _DEVICE_WIDTHS[device.evidence] ** 2
    faster = (known + sum(gap.faster**2 for gap in missing)) ** 0.5
    slower = (known + sum(gap.slower**2 for gap in missing)) ** 0.5
    return whole / (1 + faster), whole * (1 + slower)


def step_time_gaps(step: TrainingStep, device: DeviceRates, terms: Mapping[TimeTerm, float]) -> tuple[str, ...]:
    """What of this run has few published times, in words that follow "few measurements of"."""
    kind = () if device.evidence == "good" else ("this kind of device",)
    return (*kind, *(gap.words for gap in _evidence_gaps(step, device, terms)))


def _evidence_gaps(step: TrainingStep, device: DeviceRates, terms: Mapping[TimeTerm, float]) -> Iterator[EvidenceGap]:
    yield from _gaps_of_sharding(step)
    yield from _gaps_of_workload(step, device)
    yield from _gaps_of_shapes(step)
    seen = terms.get(TimeTerm.TOWERS, 0.0) + terms.get(TimeTerm.DATA_LOADING, 0.0)
    if seen > _TOWER_SHARE * sum(terms.values()):
        yield EvidenceGap("models that see or hear", 0.3, 0.4)


def _gaps_of_sharding(step: TrainingStep) -> Iterator[EvidenceGap]:
    sharding = step.sharding
    # A network's rate, and who else uses it, is known least of all; under ZeRO-3, BigScience's runs took up to four
    # times as long as ours, MLPerf's as long.
    if sharding.nodes > 1:
        yield EvidenceGap("runs on several nodes", 0.3, 1.0)
    if sharding.nodes > 1 and step.strategy == ZERO_3:
        yield EvidenceGap("ZeRO-3 between nodes", 0.2, 1.5)
    if sharding.offload_optimizer or sharding.offload_parameters:
        yield EvidenceGap("offload to the host", 0.4, 0.6)


def _gaps_of_workload(step: TrainingStep, device: DeviceRates) -> Iterator[EvidenceGap]:
    work = step.work
    if work.quant_bits == 8:
        yield EvidenceGap("8-bit weights", 0.5, 1.2)
    # A blog's runs of 4 bits took five times as long as ours on MI300X, twice on MI250.
    if work.quant_bits and not device.cuda:
        yield EvidenceGap("quantized weights on other devices than NVIDIA's", 0.3, 4.0)
    if work.optimizer.startswith("galore"):
        yield EvidenceGap("GaLore's decompositions", 0.6, 0.6)
    if work.method == "oft":
        yield EvidenceGap("orthogonal adapters", 0.4, 0.4)
    if work.needs_full_logits and work.value_head:
        yield EvidenceGap("the answers that PPO generates", 0.2, 3.0)
    elif work.needs_full_logits or work.value_head:
        yield EvidenceGap("preference and reward stages", 0.2, 0.2)
    if work.checkpointing == "offloaded":
        yield EvidenceGap("checkpoints on the host", 0.2, 0.4)


def _gaps_of_shapes(step: TrainingStep) -> Iterator[EvidenceGap]:
    if step.arch.counted:
        yield EvidenceGap("models that no formula knows", 0.4, 0.6)
    if step.arch.ffn.experts:
        yield EvidenceGap("mixtures of experts", 0.4, 0.6)
    if step.arch.mixer:
        yield step.arch.mixer.time_gap
