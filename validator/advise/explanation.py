"""What `explain` answers. The fields are the keys of its JSON, in their order; GiB are 2^30 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from validator.advise.change import Change
from validator.diagnostic import Diagnostic, Severity, Verdict
from validator.memory.terms import Shared, Term

if TYPE_CHECKING:
    from validator import speed
    from validator.job.price import Cost
from validator.trial.figures import Simulation

# The errors that are the verdict itself: device memory, host memory.
MEMORY = ("FIT001", "FIT003")


@dataclass(frozen=True)
class Target:
    """The machine. `device_gib` is what its name says, `usable_gib` what a process gets, `host_ram_gib` of a node."""

    nodes: int
    devices: int
    device: str
    device_gib: float | None
    usable_gib: float | None
    host_ram_gib: float | None


@dataclass(frozen=True)
class Size:
    """The model and its number of parameters, those of a vision tower included."""

    name: str
    parameters: int
    trainable_parameters: int


@dataclass(frozen=True)
class Band:
    """Memory of a node: low to high is the 90 % band around what is expected. The largest term comes first."""

    low: float
    expected: float
    high: float
    terms: dict[Term, float]


@dataclass(frozen=True)
class DeviceBand:
    """Memory of the worst device: `allocated`, the peak of live tensors, is the sum of the terms; what is expected also
    holds context and slack. `few_measurements_of` is what makes the band wide."""

    allocated: float
    low: float
    expected: float
    high: float
    terms: dict[Term, float]
    few_measurements_of: list[str]

    @property
    def shared(self) -> bool:
        """True if the host's memory is a term of it, because both share one."""
        return Shared.HOST in self.terms


@dataclass(frozen=True)
class Released:
    """Memory of the worst device with a transformers release that the recipe admits."""

    transformers: str
    low: float
    expected: float
    high: float
    verdict: Verdict


@dataclass(frozen=True)
class Disk:
    """GiB of one checkpoint, how many lie there at once, and the most GiB on disk, the model and data included."""

    checkpoint: float
    checkpoints: int
    total: float


@dataclass(frozen=True)
class Step:
    """Seconds of one optimizer step, with the 90 % band; the terms sum to what is expected, the largest first."""

    low: float
    expected: float
    high: float
    terms: dict[speed.Term, float]


@dataclass(frozen=True)
class Time:
    """How long the run takes. `tokens_per_second` are those of all devices, padding included; `hours` of the whole run,
    None where the number of samples is not known, `parts` what of those expected goes to what. `assumed` and
    `few_measurements_of` are what makes the band wide. `by_length`: hours by the mean length of samples, in tokens,
    where nothing tells how long they are. `correction`: measured over predicted on this machine; None
    where nothing was measured."""

    step_seconds: Step
    tokens_per_second: float
    hours: speed.Span | None
    device_hours: float | None
    bottleneck: speed.Term
    steps: int | None
    parts: dict[speed.Part, float]
    assumed: list[str]
    few_measurements_of: list[str]
    energy_kwh: speed.Span | None = None
    correction: float | None = None
    by_length: dict[int, speed.Span] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples:
    """What the recipe recommends, and the rows of its data sets; None where they are elsewhere or cannot be read.
    `sure`: who the recommended number is from; None for a number of the recipe's own."""

    recommended: int | None
    found: int | None
    sure: str | None = None


@dataclass(frozen=True)
class Explanation:
    """Where every GiB goes, the verdict on memory, the nearest changes, and the launch command of each node, unless an
    error stands against it. None: not known. `spare` is what memory to spare would buy. `diagnostics` is all that
    `check` finds; `left_out` are keys that it does not know or whose value it refuses: all figures are without them.
    `command_problem` says why there is no command though no error stands against one. `releases`, newest first:
    where the experts of a mixture are one tensor with some transformers releases that the recipe admits, and linear
    modules with others, what it needs with each; all other figures are of the first. `older`: that release,
    where the run fits with it alone. `enough_for_tokens`: the devices
    suffice while no sample is longer, and it is not known whether one is. `simulated`: device memory is not the
    formulas' but that of the `simulation`, which may also stand beside the formulas'."""

    path: str
    machine: Target | None
    model: Size | None
    verdict: Verdict
    device_gib: DeviceBand | None
    host_gib: Band | None
    disk_gib: Disk | None
    time: Time | None
    samples: Samples
    changes: Sequence[Change]
    command: Sequence[str]
    spare: Sequence[Change] = ()
    diagnostics: Sequence[Diagnostic] = ()
    left_out: Sequence[str] = ()
    command_problem: str | None = None
    releases: Sequence[Released] = ()
    enough_for_tokens: int | None = None
    older: Released | None = None
    simulated: bool = False
    simulation: Simulation | None = None
    cost: Cost | None = None

    @property
    def errors(self) -> int:
        """Number of errors but those of memory, which the verdict tells."""
        return sum(each.severity is Severity.ERROR and each.code not in MEMORY for each in self.diagnostics)

    def rounded(self) -> Explanation:
        """Sizes to 0.01 GiB, times and money to four digits, as JSON has them; text rounds once, from what is exact."""
        return replace(self, time=self.time and _rounded_time(self.time),
                       cost=self.cost and _rounded_span(self.cost),
                       device_gib=self.device_gib and _rounded(self.device_gib),
                       simulation=self.simulation and _rounded(self.simulation),
                       host_gib=self.host_gib and _rounded(self.host_gib),
                       disk_gib=self.disk_gib and _rounded(self.disk_gib),
                       changes=[*map(_rounded, self.changes)], spare=[*map(_rounded, self.spare)],
                       releases=[*map(_rounded, self.releases)],
                       older=self.older and _rounded(self.older))  # fmt: skip


def _rounded_time(time: Time) -> Time:
    step = time.step_seconds
    terms = {term: _digits(seconds) for term, seconds in step.terms.items()}
    return replace(time, step_seconds=Step(_digits(step.low), _digits(step.expected), _digits(step.high), terms),
                   tokens_per_second=_digits(time.tokens_per_second), hours=time.hours and _rounded_span(time.hours),
                   device_hours=time.device_hours and _digits(time.device_hours),
                   parts={part: _digits(hours) for part, hours in time.parts.items()},
                   by_length={tokens: _rounded_span(hours) for tokens, hours in time.by_length.items()},
                   energy_kwh=time.energy_kwh and _rounded_span(time.energy_kwh))  # fmt: skip


_Spans = TypeVar("_Spans", "speed.Span", "Cost")


def _rounded_span(span: _Spans) -> _Spans:
    return span._replace(low=_digits(span.low), expected=_digits(span.expected), high=_digits(span.high))


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


_Sizes = TypeVar("_Sizes", Band, DeviceBand, Disk, Change, Released, Simulation)


def _rounded(sizes: _Sizes) -> _Sizes:
    values: dict[str, Any] = {field.name: getattr(sizes, field.name) for field in fields(sizes)}
    for name, value in values.items():
        if name == "terms":
            values[name] = {term: round(size, 2) for term, size in value.items()}
        elif isinstance(value, float):
            values[name] = round(value, 2)
    return replace(sizes, **values)
