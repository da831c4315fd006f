"""Seconds of a whole run: start-up, tokenizing, steps, evaluations, checkpoints."""

from collections.abc import Mapping
from typing import NamedTuple

from validator.physics.architecture import Architecture
from validator.physics.estimate import Band, Described, TimeTerm
from validator.physics.micro_batch import micro_batch_costs
from validator.physics.rates import DeviceRates
from validator.physics.step_time import StepTime
from validator.physics.training_step import TrainingStep, training_step
from validator.physics.workload import ExpertsForm, Workload

# Interpreter and libraries on every device, its context, collectives, first kernels. Importing LLaMA-Factory alone took
# 5 to 8 s on two cores; that of a large run takes minutes where all nodes read the libraries over a network.
_STARTUP_SECONDS = (15.0, 40.0, 150.0)
# Tokens a second that one process makes of text. LLaMA-Factory's own processor took 400,000 with a small vocabulary
# (on one core); with 150,000 entries a third of it, and less where many processes share memory and disk.
_TOKENIZER_RATE = (3e5, 1e5, 3e4)
# Of a disk's published rate: all of it where files are in the page cache; a tenth over a busy network. Public logs read
# a 70B in shards at 0.4 (ms-swift issue 417) and at 4.5 GB/s (LLaMA-Factory issue 257).
_DISK_SHARE = (1.0, 0.4, 0.1)
# What is spent beside the training is worth telling in a run of so many seconds, where it is so large a share of it.
_LONG_RUN_SECONDS, _WASTE_SHARE = 1800.0, 0.1
# Traffic that gathers weights for the forward and for the backward pass, of which an evaluation makes one.
_GATHER_TERMS = (TimeTerm.COMMUNICATION, TimeTerm.NETWORK, TimeTerm.OFFLOAD_COPIES)


class RunPart(Described):
    """A part of a run that takes time, such as tokenizing or saving checkpoints."""

    STARTING = "starting", "processes start and read the model from disk"
    TOKENIZING = "tokenizing", "samples become tokens, before the first step"
    STEPS = "steps", "the training itself"
    EVALUATIONS = "evaluations", "passes over what was held back"
    SAVES = "saves", "checkpoints written to disk"


class RunCounts(NamedTuple):
    """Numbers of steps, evaluations and saves of a run. `checkpoint`: bytes of one checkpoint, added up over all
    nodes."""

    steps: float
    evaluations: float = 0.0  # how often what was held back is evaluated
    evaluation_batches: float = 0.0  # that each device passes through every time
    saves: float = 0.0
    checkpoint: float = 0.0
    tokenized: float = 0.0  # tokens to be made of text before the first step
    tokenizers: int = 1  # processes that make them


class RunTime(NamedTuple):
    """Predicted seconds of a run. `terms` sum to `expected`; `low` to `high` is the 90 % band."""

    low: float
    expected: float
    high: float
    terms: Mapping[RunPart, float]

    @property
    def is_long(self) -> bool:
        """True if the run takes half an hour or more; shorter runs get no advice about wasted time."""
        return self.expected >= _LONG_RUN_SECONDS

    def wasted_on(self, part: RunPart) -> float:
        """Share of the run's time that goes to `part`, from 0 to 1, if the share is worth advice: it is above a tenth,
        and the run takes half an hour or more. Otherwise 0."""
        share = self.terms.get(part, 0.0) / self.expected if self.is_long else 0.0
        return share if share > _WASTE_SHARE else 0.0


def estimate_run_time(
    step_time: StepTime, counts: RunCounts, architecture: Architecture, workload: Workload, device: DeviceRates
) -> RunTime:
    """Estimate the seconds of a run from the time of one step and the numbers of steps, evaluations and saves."""
    step, each = training_step(architecture, workload), Band(step_time.low, step_time.expected, step_time.high)
    evaluation = (
        _evaluation_batch_seconds(step, step_time, device) * counts.evaluation_batches / step_time.expected
        if step_time.expected
        else 0.0
    )
    parts = {
        RunPart.STARTING: _startup_time(step, device),
        RunPart.TOKENIZING: _time_band(counts.tokenized / counts.tokenizers, _TOKENIZER_RATE),
        RunPart.STEPS: each.times(counts.steps),
        RunPart.EVALUATIONS: each.times(counts.evaluations * evaluation),
        RunPart.SAVES: checkpoint_write_time(counts.checkpoint, workload, device).times(counts.saves),
    }
    low, expected, high = (sum(part[at] for part in parts.values()) for at in range(3))
    return RunTime(low, expected, high, {name: part.expected for name, part in parts.items() if part.expected})


def checkpoint_write_time(checkpoint: float, workload: Workload, device: DeviceRates) -> Band:
    """Seconds to write one checkpoint of `checkpoint` bytes (over all nodes), as a 90 % band. Nodes write in parallel
    if their devices hold different parts of the checkpoint."""
    nodes = workload.sharding.shard_nodes if workload.sharding.strategy.shards_optimizer_states else 1
    return _time_band(checkpoint / nodes / device.disk, _DISK_SHARE)


def _startup_time(step: TrainingStep, device: DeviceRates) -> Band:
    """Seconds from the start of the processes until the model is loaded, as a 90 % band. The base model is read once
    for all processes of a node."""
    loading = _time_band(step.work.base_bytes * step.parameters / device.disk, _DISK_SHARE)
    return Band(*(start + load for start, load in zip(_STARTUP_SECONDS, loading, strict=True)))


def _evaluation_batch_seconds(step: TrainingStep, step_time: StepTime, device: DeviceRates) -> float:
    """Seconds of one evaluation batch: a forward pass and, if weights are sharded or offloaded, the gathering of the
    weights for this pass. Experts in one tensor run together outside of training (transformers 4,
    GptOssExperts.forward)."""
    experts: ExpertsForm = "separate" if step.work.experts == "separate" else "grouped"
    work = step.work._replace(micro_batch=max(step.work.eval_batch, 1), experts=experts)
    batch = training_step(step.arch, work)
    gathers = step.strategy.shards_weights or step.sharding.offload_parameters
    traffic = sum(step_time.terms.get(term, 0.0) for term in _GATHER_TERMS) if gathers else 0.0
    return device.correction * micro_batch_costs(batch, device).forward + traffic / 2 / step.work.accumulation


def _time_band(amount: float, rates: tuple[float, float, float]) -> Band:
    return Band(*(amount / rate for rate in rates))
