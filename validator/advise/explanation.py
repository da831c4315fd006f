"""The answer of `explain`, and how it is computed. The fields are the keys of its JSON, in their order. GiB are 2^30
bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from validator.advise import changes
from validator.advise.changes import Change, ReleaseMemory
from validator.errors import RecipeError
from validator.finding import Assumption, Diagnostic, Severity, Verdict
from validator.levers.faster_release import FasterRelease, faster_release
from validator.physics import Band, Estimate, trainable_parameter_count
from validator.physics.estimate import GIB, MemoryTerm, SharedTerm
from validator.rules.problems import is_free_of_errors
from validator.run import calibration, training_time
from validator.run.assumptions import verdict_assumptions
from validator.run.data_sources import RowSource
from validator.run.launch_command import Launch
from validator.run.named_paths import path_overrides
from validator.run.needed_packages import NEVER, needed_packages, pip_requirement
from validator.run.prediction import Prediction, predict
from validator.run.recipe_arguments import Cost
from validator.run.sample_counts import sample_counts, sequence_count
from validator.run.sample_lengths import estimate_sample_lengths
from validator.run.schedule import training_schedule
from validator.run.settings import RunSettings
from validator.run.simulated import SimulationFigures
from validator.wording import four_digits, map_floats, relative_to_cwd

if TYPE_CHECKING:
    from validator.physics import estimate, run_time


# The errors that are the verdict itself: device memory, host memory.
MEMORY_CODES = ("FIT001", "FIT003")


@dataclass(frozen=True)
class TargetMachine:
    """The machine for which the run is judged. `device_gib`: nominal memory of a device. `usable_gib`: the part of it
    that a process can use. `host_ram_gib`: main memory of a node."""

    nodes: int
    devices: int
    device: str
    device_gib: float | None
    usable_gib: float | None
    host_ram_gib: float | None


@dataclass(frozen=True)
class ModelSize:
    """The model and its number of parameters, including those of a vision tower."""

    name: str
    parameters: int
    trainable_parameters: int


@dataclass(frozen=True)
class MemoryBand:
    """Host memory of a node in GiB. `low` to `high` is the 90 % band. `terms`: the parts of the memory, the largest
    first."""

    low: float
    expected: float
    high: float
    terms: dict[MemoryTerm, float]


@dataclass(frozen=True)
class DeviceMemoryBand:
    """Memory, in GiB, of the device that needs most. `allocated`: the peak of live tensors, which is the sum of
    `terms`. `expected`: the same with the device's context and the allocator's slack. `few_measurements_of`: parts with
    few public measurements, which make the band wide. `peak`: the phase in which the peak is, for loading with the
    reason."""

    allocated: float
    low: float
    expected: float
    high: float
    terms: dict[MemoryTerm, float]
    few_measurements_of: list[str]
    peak: str = ""

    @property
    def shared(self) -> bool:
        """True if device and host share one memory, so that host memory is one of the terms."""
        return SharedTerm.HOST in self.terms


@dataclass(frozen=True)
class DiskUse:
    """Disk space: GiB of one checkpoint, the most checkpoints that are on disk at the same time, and the most GiB on
    disk in total, including model and data."""

    checkpoint: float
    checkpoints: int
    total: float


@dataclass(frozen=True)
class OptimizerStep:
    """Seconds of one optimizer step, with the 90 % band. `terms`: the parts of the expected seconds, the largest
    first."""

    low: float
    expected: float
    high: float
    terms: dict[estimate.TimeTerm, float]


@dataclass(frozen=True)
class TimedSamples:
    """The samples that the steps and hours of a run belong to. `train`: samples of an epoch. `held_back`: samples of an
    evaluation. `epochs`: passes over the data. `exact`: False if the number of samples is an estimate. `steps_exact`:
    False if the number of steps is one, as it is if samples are packed. `source`: where the number comes from: `files`,
    `header`, `recommended` or `published`. `files`: the files, or folders of files, that were counted."""

    train: int
    held_back: int
    epochs: float
    exact: bool
    steps_exact: bool
    source: RowSource
    files: list[str]


@dataclass(frozen=True)
class RunTime:
    """Predicted time of the run. `tokens_per_second`: over all devices, padding included. `hours`: of the whole run;
    None if the number of samples is not known. `samples`: the samples that `steps` and `hours` belong to. `parts`: the
    parts of the expected hours. `assumed`, `few_measurements_of`: what makes the band wide. `by_length`: hours by mean
    sample length in tokens; empty if the sample lengths are known. `correction`: measured time divided by predicted
    time on this machine; None if nothing was measured. `faster_release`: a transformers release that takes less time
    than one that the recipe allows."""

    step_seconds: OptimizerStep
    tokens_per_second: float
    hours: estimate.Band | None
    device_hours: float | None
    bottleneck: estimate.TimeTerm
    steps: int | None
    parts: dict[run_time.RunPart, float]
    assumed: list[str]
    few_measurements_of: list[str]
    energy_kwh: estimate.Band | None = None
    correction: float | None = None
    by_length: dict[int, estimate.Band] = field(default_factory=dict)
    faster_release: FasterRelease | None = None
    samples: TimedSamples | None = None


@dataclass(frozen=True)
class SampleNumbers:
    """Numbers of samples. `recommended`: the number that the recipe's header block states. `found`: rows of its local
    data sets; None if they are elsewhere or cannot be read. `found_exact`: False if that number is an estimate.
    `sure`: the source of the recommended number; None if the recipe has a number of its own."""

    recommended: int | None
    found: int | None
    sure: str | None = None
    found_exact: bool = True


class PackageToInstall(NamedTuple):
    """A package that the run needs beside LLaMA-Factory's own requirements. `requirement`: as pip takes it. `why`: the
    setting that asks for it. `dies`: when the run stops without it, or "never"."""

    requirement: str
    why: str
    dies: str


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`: where every GiB goes, the verdict on memory, the smallest changes that make the run fit,
    and the launch command of each node. A value that is not known is None. `command` is empty if an error stands
    against the run; `command_problem` says why there is no command although there is no error. `spare`: what free
    memory can be used for. `diagnostics`: all findings of `check`. `left_out`: keys that LLaMA-Factory does not know or
    whose value it refuses; all figures are computed without them.

    `releases`: memory with each transformers release that the recipe allows, newest first, if the releases store the
    experts of a mixture differently and so need different memory; all other figures are for the first of them. `older`:
    memory with the last transformers 4, if the run fits only with that release. `enough_for_tokens`: device memory
    suffices if no sample is longer, and it is not known whether one is. `assumes`: what the verdict takes for granted,
    and the value that would turn it. `simulated`: True if device memory comes from
    the simulation and not from the formulas. `simulation`: its figures, which may also be shown beside those of the
    formulas. `packages`: what the run needs beside LLaMA-Factory's own requirements, on the machine that trains."""

    path: str
    machine: TargetMachine | None
    model: ModelSize | None
    verdict: Verdict
    device_gib: DeviceMemoryBand | None
    host_gib: MemoryBand | None
    disk_gib: DiskUse | None
    time: RunTime | None
    samples: SampleNumbers
    changes: Sequence[Change]
    command: Sequence[str]
    spare: Sequence[Change] = ()
    diagnostics: Sequence[Diagnostic] = ()
    left_out: Sequence[str] = ()
    command_problem: str | None = None
    releases: Sequence[ReleaseMemory] = ()
    enough_for_tokens: int | None = None
    older: ReleaseMemory | None = None
    simulated: bool = False
    simulation: SimulationFigures | None = None
    cost: Cost | None = None
    packages: Sequence[PackageToInstall] = ()
    assumes: Sequence[Assumption] = ()

    @property
    def errors(self) -> int:
        """Number of errors, without those on memory, which the verdict states."""
        return sum(each.severity is Severity.ERROR and each.code not in MEMORY_CODES for each in self.diagnostics)

    def rounded(self) -> Explanation:
        """Return a copy for JSON, with sizes rounded to 0.01 GiB, and times and money to four digits. Text output
        rounds the exact numbers itself."""
        sizes = map_floats(self, lambda size: round(size, 2))
        time = self.time and replace(map_floats(self.time, four_digits), correction=self.time.correction)
        return replace(sizes, machine=self.machine, time=time, cost=map_floats(self.cost, four_digits))


# Of a board's power at most, what a step draws: idle between kernels, or all of it.
_POWER_SHARES = (0.6, 0.85, 1.0)


def predict_run_time(run: RunSettings, energy: bool = False) -> RunTime | None:
    """Return the predicted time of the run; None if model, machine or the machine's rates are not known. `energy`: also
    predict the energy that the devices' boards draw."""
    correction = calibration.time_correction(str(run.machine))
    prediction = training_time.predict_training_time(run, correction=correction)
    if prediction is None:
        return None
    step, hours = prediction.step, prediction.hours
    return RunTime(
        step_seconds=OptimizerStep(
            step.low, step.expected, step.high, dict(sorted(step.terms.items(), key=lambda p: -p[1]))
        ),
        tokens_per_second=prediction.tokens_per_second,
        hours=hours,
        device_hours=hours.expected * run.batch.world_size if hours else None,
        bottleneck=step.bottleneck,
        steps=prediction.steps,
        parts={part: seconds / 3600 for part, seconds in prediction.run.terms.items()} if prediction.run else {},
        assumed=list(prediction.assumed),
        few_measurements_of=list(step.gaps),
        by_length=training_time.hours_by_length(run, correction),
        energy_kwh=_energy_kwh(run, hours) if energy and hours else None,
        correction=correction,
        faster_release=faster_release(run, is_free_of_errors),
        samples=_timed_samples(run) if prediction.steps else None,
    )


def _timed_samples(run: RunSettings) -> TimedSamples | None:
    counts = sample_counts(run)
    if run.data.count is None or not counts.train:
        return None
    lengths = estimate_sample_lengths(run).lengths[1] if run.batch.packing else ()
    epochs = training_schedule(run, sequence_count(run, lengths) or 1).epochs
    steps_exact = run.args.number("max_steps") > 0 or (counts.exact and not run.batch.packing)
    source = run.data.count.source
    files = (
        [str(relative_to_cwd(Path(os.path.normpath(one.path)))) for one in run.data.datasets]
        if source == "files"
        else []
    )
    return TimedSamples(counts.train, counts.held_back, four_digits(epochs), counts.exact, steps_exact, source, files)


def run_cost(run: RunSettings, time: RunTime | None) -> Cost | None:
    """Return the cost of all device hours; None if the price or the number of samples is not known."""
    return run.price.of(run.batch.world_size, time.hours) if run.price and time and time.hours else None


def _energy_kwh(run: RunSettings, hours: Band) -> Band | None:
    watts = run.machine.device.watts if run.machine else None
    if not watts:
        return None
    drawn = hours.times(run.batch.world_size * watts / 1000)
    return Band(*(each * load for each, load in zip(drawn, _POWER_SHARES, strict=True)))


class LaunchCommands(NamedTuple):
    """The launch command of each node. `problem`: why there is no command; None if there is one."""

    commands: Sequence[str] = ()
    problem: str | None = None


def launch_commands(run: RunSettings, overrides: Sequence[str]) -> LaunchCommands:
    """Return the launch commands of the recipe, with the user's overrides and with overrides for input files that are
    not found from the working directory. No key is overridden twice. `problem` of the result says why there is no
    command."""
    if run.workspace.recipe == "-":
        return LaunchCommands(problem="llamafactory-cli reads a recipe from a file; save it first")
    displaced = path_overrides(run)
    keys = {text.partition("=")[0] for text in displaced}
    words = [*(text for text in overrides if text.partition("=")[0] not in keys), *displaced]
    launch = Launch(run)
    if problem := launch.split_problem(words):  # the recipe's own path is judged by PTH012
        return LaunchCommands(problem=f"{problem}; use a value without")
    return LaunchCommands(launch.printed_commands(run.workspace.recipe, words))


def explain(
    run: RunSettings,
    overrides: Sequence[str] = (),
    diagnostics: Sequence[Diagnostic] = (),
    simulation: SimulationFigures | None = None,
    energy: bool = False,
) -> Explanation:
    """Return where every GiB and every second of the run goes. `overrides`: the user's overrides, for the launch
    command. `diagnostics`: all findings about the run. `simulation`: its simulated memory. `energy`: also predict the
    energy that the devices' boards draw. Raises RecipeError if the model or the machine is not known."""
    prediction = predict(run)
    missing = None if run.model else "names no model; set `model_name_or_path`"
    if problem := run.model_problem or run.machine_problem or missing:
        raise RecipeError(f"{run.workspace.recipe}: {problem}")
    stopped = any(each.severity is Severity.ERROR for each in diagnostics)
    settled = prediction.is_simulated and prediction.verdict in (
        "fits",
        "unknown",
    )  # each change would take a simulation
    time = predict_run_time(run, energy)
    started = LaunchCommands() if stopped else launch_commands(run, overrides)
    return Explanation(
        path=run.workspace.recipe,
        machine=_target_machine(run),
        model=_model_size(run),
        verdict=prediction.verdict,
        enough_for_tokens=prediction.fitting_length,
        device_gib=_device_band(prediction),
        host_gib=_memory_band(prediction.host_memory) if prediction.host_memory else None,
        disk_gib=_disk_use(run),
        time=time,
        cost=run_cost(run, time),
        assumes=verdict_assumptions(run),
        samples=SampleNumbers(
            run.declared.samples,
            run.data.local_rows,
            run.guidance.whose(run.declared.samples) if run.guidance else None,
            run.data.count is None or run.data.count.exact,
        ),
        changes=[] if settled else changes.with_time_ratios(run, changes.nearest_changes(run)),
        spare=() if prediction.is_simulated else changes.uses_of_free_memory(run),
        command=started.commands,
        diagnostics=[each._replace(path=each.path or run.workspace.recipe) for each in diagnostics],
        left_out=_ignored_keys(run, diagnostics),
        command_problem=started.problem,
        releases=list(_memory_by_release(run)),
        older=changes.memory_on_older_release(run),
        simulated=prediction.is_simulated,
        simulation=simulation,
        packages=list(_packages_to_install(run)),
    )


def _packages_to_install(run: RunSettings) -> Iterator[PackageToInstall]:
    """Yield what the devices need of Python's packages beside torch, and what the settings ask for."""
    if run.machine and not run.on_cpu and run.machine.device.vendor == "ascend":
        yield PackageToInstall("torch-npu", f"the device {run.machine.device.id}", NEVER)
    yield from (PackageToInstall(pip_requirement(each, run), each.why, each.dies) for each in needed_packages(run))


def _ignored_keys(run: RunSettings, diagnostics: Sequence[Diagnostic]) -> list[str]:
    """Return the keys that LLaMA-Factory does not know, or whose value it refuses. The figures are computed without
    them."""
    refused = (each.key for each in diagnostics if each.severity is Severity.ERROR and each.code.startswith("SCH"))
    return list(dict.fromkeys(key for key in refused if key and not run.args.is_set(key)))


def _target_machine(run: RunSettings) -> TargetMachine | None:
    if run.machine is None:
        return None
    nodes, devices, device = run.machine.nodes, run.machine.devices, run.machine.device
    return TargetMachine(nodes, devices, device.id, device.memory_gib, device.usable_gib, run.machine.host_ram_gib)


def _model_size(run: RunSettings) -> ModelSize | None:
    prediction = predict(run)
    if run.model is None or prediction.workload is None:
        return None
    parameters = run.model.parameters
    return ModelSize(run.model_name, parameters, trainable_parameter_count(run.model.arch, prediction.workload))


def _device_band(prediction: Prediction) -> DeviceMemoryBand | None:
    estimate = prediction.device_memory
    if estimate is None:
        return None
    band = _memory_band(estimate)
    return DeviceMemoryBand(
        estimate.allocated / GIB,
        band.low,
        band.expected,
        band.high,
        band.terms,
        few_measurements_of=list(estimate.gaps),
        peak=prediction.peak,
    )


def _memory_band(estimate: Estimate) -> MemoryBand:
    terms = {term: size / GIB for term, size in sorted(estimate.terms.items(), key=lambda pair: -pair[1])}
    return MemoryBand(estimate.low / GIB, estimate.expected / GIB, estimate.high / GIB, terms)


def _memory_by_release(run: RunSettings) -> Iterator[ReleaseMemory]:
    """Yield the run's memory with each transformers release that the recipe's header block allows. Yield nothing if the
    memory differs by less than 1 % between these releases."""
    prediction = predict(run)
    needs = [each.expected for each in prediction.device_memories.values()]
    if not needs or max(needs) < 1.01 * min(needs):
        return
    for version, each in prediction.device_memories.items():
        yield changes.release_memory(version, each, prediction.device_verdicts[version])


def _disk_use(run: RunSettings) -> DiskUse | None:
    prediction = predict(run)
    if prediction.disk is None:
        return None
    total = sum(prediction.disk.values())
    return DiskUse(prediction.checkpoint_bytes / GIB, prediction.checkpoint_counts.at_once, total / GIB)
