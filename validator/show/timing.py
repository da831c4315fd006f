"""How long a run takes, as lines of text: the run, a step as bars of terms, what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from validator.advise.explanation import Explanation, Step, Time
from validator.quoting import quote
from validator.show.bar import bar
from validator.show.clock import between, lasting, number

_HOUR = 3600.0
_UNKNOWN = "hours follow from the number of samples (`samples:` in the header block)"


def lines(explanation: Explanation) -> Iterator[str]:
    """The answer about time; nothing where no machine is named, or nobody knows what is trained."""
    if not (time := explanation.time):
        if explanation.machine and explanation.device_gib:
            unknown = f"time: no rates of {explanation.machine.device} are published"
            yield from ("", f"{unknown}; there, `lmf-recipes calibrate {quote(explanation.path)}` measures them")
        return
    yield ""
    yield _headline(time)
    if time.correction is not None:
        yield f"  measured here: {number(time.correction)} times what is predicted, which is corrected by it"
    yield from (f"  assumed: {each}" for each in time.assumed)
    if time.by_length:
        runs = (
            f"{tokens:,} tokens {between(run.low * _HOUR, run.high * _HOUR)}" for tokens, run in time.by_length.items()
        )
        yield f"  by mean length: {'; '.join(runs)}"
    if time.few_measurements_of:
        yield f"  the band is wide: few times of {', '.join(time.few_measurements_of)} are public"
    whole = time.step_seconds.expected
    for name, seconds in time.step_seconds.terms.items():
        yield f"  {name:<18}{seconds:>8.{2 if whole >= 1 else 4}f}  {bar(seconds, whole)}".rstrip()
    yield _largest(time.step_seconds, time)
    beside = [f"{part} {lasting(hours * _HOUR)}" for part, hours in time.parts.items() if part != "steps"]
    if beside:
        yield f"  beside the steps: {', '.join(beside)}"
    if sums := [*_sums(explanation, time)]:
        yield f"  {'; '.join(sums)}"


def _headline(time: Time) -> str:
    step, rate = time.step_seconds, f"{float(f'{time.tokens_per_second:.2g}'):,.0f} tokens/s"
    each = f"{lasting(step.expected)} ({between(step.low, step.high)}), {rate}"
    if time.hours is None:
        return f"time: a step takes {each}; {_UNKNOWN}"
    hours = time.hours
    band = between(hours.low * _HOUR, hours.high * _HOUR)
    return f"time: {band}, {lasting(hours.expected * _HOUR)} expected: {time.steps:,} steps of {each}"


def _largest(step: Step, time: Time) -> str:
    """The bottleneck in words."""
    share = step.terms[time.bottleneck] / (sum(step.terms.values()) or 1.0)
    return f"  largest: {time.bottleneck}, {share:.0%} of a step ({time.bottleneck.meaning})"


def _sums(explanation: Explanation, time: Time) -> Iterator[str]:
    """Device hours, money, energy."""
    if time.device_hours is not None:
        yield f"{number(time.device_hours)} device hours"
    if cost := explanation.cost:
        yield _told(*cost)
    if time.energy_kwh:
        yield _told(*time.energy_kwh, "kWh")


def _told(low: float, expected: float, high: float, unit: str) -> str:
    return f"{number(expected)} {unit} ({number(low)} to {number(high)})".replace("  ", " ")


def changed(ratio: float | None) -> str:
    """What a change makes of the time, to be put behind a verdict; empty where that is not known."""
    if ratio is None:
        return ""
    if ratio >= 2:
        return f", {number(ratio)} times as long"
    return f", {ratio - 1:+.0%} time" if abs(ratio - 1) >= 0.02 else ", no slower"
