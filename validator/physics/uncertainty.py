"""The kinds of runs for which few measurements are published, and how much wider the bands of memory and time are for
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from validator.physics.estimate import EvidenceGap, TimeTerm
from validator.physics.rates import DeviceRates
from validator.physics.training_step import TrainingStep
from validator.physics.workload import ZERO_3

# Half of the band's relative width around the live tensors, by what is missing. Runs on one node of the common kinds of
# device were within 3 % (benchmarks/accuracy_memory/report.py); a software path that only the simulator has seen gets
# twice that; of some kinds of device only a handful of rough figures is public.
SPREAD_MEASURED, SPREAD_UNMEASURED_RUN, SPREAD_UNMEASURED_DEVICE = 0.03, 0.06, 0.08
_LONGEST_MEASURED = 16384  # tokens of the longest published run with a known peak


class EvidenceRow(NamedTuple):
    """A property for which few runs are published. `words` follow "few measurements of". `applies`: a function that
    gets a step and whether the device runs CUDA, and returns True if the run has the property. `memory`: the property
    widens the band of memory. `faster` and `slower`: the shares by which a step may be faster or slower than predicted
    (0: the property does not widen the band of time)."""

    words: str
    applies: Callable[[TrainingStep, bool], bool]
    memory: bool = True
    faster: float = 0.0
    slower: float = 0.0


def _loops_over_experts(step: TrainingStep) -> bool:
    return step.arch.ffn.experts > 0 and step.work.experts != "grouped"


# A network's rate, and who else uses it, is known least of all; under ZeRO-3, BigScience's runs took up to four times
# as long as ours, MLPerf's as long. A blog's runs of 4 bits took five times as long as ours on MI300X, twice on MI250.
# A Python loop over experts took nine times as long as ours on two nodes (swift-015), and up to twice as long in
# threads that tell little of their runs (benchmarks/evidence/README.md).
_EVIDENCE = (
    EvidenceRow("runs on several nodes", lambda step, _: step.sharding.nodes > 1, True, 0.3, 1.0),
    EvidenceRow("ZeRO-3 between nodes", lambda step, _: step.sharding.nodes > 1 and step.strategy == ZERO_3,
                False, 0.2, 1.5),
    EvidenceRow("hierarchical sharding and quantized communication", lambda step, _: bool(
                step.sharding.replicated_across_nodes or step.sharding.second_copy_devices
                or step.sharding.weights_sent_in_8_bits or step.sharding.gradients_sent_in_4_bits), True, 0.3, 0.5),
    EvidenceRow("offload to the host", lambda step, _: step.sharding.offload_optimizer
                or step.sharding.offload_parameters, True, 0.4, 0.6),
    EvidenceRow("8-bit weights", lambda step, _: step.work.quant_bits == 8, False, 0.5, 1.2),
    EvidenceRow("quantized weights on other devices than NVIDIA's",
                lambda step, cuda: step.work.quant_bits > 0 and not cuda, False, 0.3, 4.0),
    EvidenceRow("GaLore's decompositions", lambda step, _: step.optimizer.products == "svd", False, 0.6, 0.6),
    EvidenceRow("orthogonal adapters", lambda step, _: step.work.method == "oft", True, 0.4, 0.4),
    EvidenceRow("runs under torch.compile", lambda step, _: step.work.compiled, True, 0.5, 0.5),
    EvidenceRow("this optimizer", lambda step, _: not step.optimizer.measured
                or step.work.optimizer.startswith("paged_")),
    EvidenceRow("the answers that PPO generates", lambda step, _: step.work.rollout is not None, False, 2.0, 1.0),
    EvidenceRow("preference and reward stages", lambda step, _: step.work.needs_full_logits != step.work.value_head,
                True, 0.2, 0.2),
    EvidenceRow("checkpoints on the host", lambda step, _: step.work.checkpointing == "offloaded", True, 0.2, 0.4),
    EvidenceRow(f"samples over {_LONGEST_MEASURED} tokens", lambda step, _: step.work.length > _LONGEST_MEASURED),
    EvidenceRow("models that no formula knows", lambda step, _: bool(step.arch.counted_layers), True, 0.4, 0.6),
    EvidenceRow("mixtures of experts", lambda step, _: step.arch.ffn.experts > 0, True, 0.4, 0.6),
    EvidenceRow("experts that run one after another", lambda step, _: _loops_over_experts(step), False, 0.3, 1.3),
    EvidenceRow("experts on other devices than NVIDIA's", lambda step, cuda: step.arch.ffn.experts > 0 and not cuda,
                False, 0.2, 0.8),
    EvidenceRow("models that see or hear", lambda step, _: bool(step.arch.towers)),
    EvidenceRow("latent attention", lambda step, _: step.arch.attn.kv_rank > 0),
)  # fmt: skip


def memory_gaps(step: TrainingStep, device_measured: bool = True) -> tuple[str, ...]:
    """Return the properties of this run for which few memory peaks are published, in words that follow "few
    measurements of". `device_measured`: memory peaks on this kind of device are well measured."""
    device = () if device_measured else ("this kind of device",)
    mixer = (step.arch.mixer.evidence.memory_gap,) if step.arch.mixer else ()
    return (*device, *(row.words for row in _EVIDENCE if row.memory and row.applies(step, True)), *mixer)


def memory_spread(gaps: tuple[str, ...], device_measured: bool) -> float:
    """Return half of the memory band's width, as a share of the live tensors' bytes. `gaps`: the result of
    `memory_gaps`; the share is larger if it is not empty. `device_measured`: memory peaks on this kind of device are
    well measured; if not, the share is largest."""
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
    TimeTerm.ROLLOUT: 0.5,
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
# Above this share of a step, towers and their data loading make its time uncertain by themselves; below it their terms'
# widths do.
_TOWER_SHARE = 0.1


def step_time_band(step: TrainingStep, device: DeviceRates, terms: Mapping[TimeTerm, float]) -> tuple[float, float]:
    """Return the low and the high end of a step's band, in seconds. The errors of the time terms are independent of
    each other; the error of the device's rate is common to all terms."""
    total, gaps = sum(terms.values()), tuple(_time_gaps(step, device, terms))
    widths = _TERM_WIDTHS if device.nvlink_switch else {**_TERM_WIDTHS, TimeTerm.COMMUNICATION: _SHARED_LINK_WIDTH}
    independent = sum((widths[term] * seconds / total) ** 2 for term, seconds in terms.items())
    variance = independent + _DEVICE_WIDTHS[device.evidence] ** 2
    faster = (variance + sum(gap.faster**2 for gap in gaps)) ** 0.5
    slower = (variance + sum(gap.slower**2 for gap in gaps)) ** 0.5
    return total / (1 + faster), total * (1 + slower)


def step_time_gaps(step: TrainingStep, device: DeviceRates, terms: Mapping[TimeTerm, float]) -> tuple[str, ...]:
    """Return the properties of this run for which few step times are published, in words that follow "few measurements
    of"."""
    kind = () if device.evidence == "good" else ("this kind of device",)
    return (*kind, *(gap.words for gap in _time_gaps(step, device, terms)))


def _time_gaps(step: TrainingStep, device: DeviceRates, terms: Mapping[TimeTerm, float]) -> Iterator[EvidenceGap]:
    for row in _EVIDENCE:
        if row.slower and row.applies(step, device.cuda):
            yield EvidenceGap(row.words, row.faster, row.slower)
    if step.arch.mixer:
        yield step.arch.mixer.evidence.time_gap
    if terms.get(TimeTerm.TOWERS, 0.0) + terms.get(TimeTerm.DATA_LOADING, 0.0) > _TOWER_SHARE * sum(terms.values()):
        yield EvidenceGap("models that see or hear", 0.3, 0.4)
