"""The whole answer of `explain` as text: memory and step time as bars of their terms, then changes that would fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from validator import escaping
from validator.advise.changes import Change, ReleaseMemory
from validator.advise.explanation import (
    DeviceMemoryBand,
    Explanation,
    MemoryBand,
    OptimizerStep,
    RunTime,
    TimedSamples,
)
from validator.escaping import shell_quote
from validator.output.terminal import bar_width, draw_bar
from validator.wording import (
    distinguishing_decimals,
    format_duration,
    format_duration_band,
    format_duration_range,
    plural,
    term_in_words,
    two_digits,
)
from validator.wrapping import terminal_width, wrap_lines

_VERDICTS = {"fits": "fits", "tight": "tight: expected to fit, but the upper end does not", "exceeds": "does not fit",
           "unknown": "not judged"}  # fmt: skip
_SLACK_MEANING = "the driver's context, and what the allocator holds beside live tensors"


def format_explanation(explanation: Explanation) -> str:
    """Return the explanation as lines of text: all terms of memory and time, all changes, the launch commands."""
    machine = explanation.machine
    usable, ram = (machine.usable_gib, machine.host_ram_gib) if machine else (None, None)
    shared = explanation.device_gib is not None and explanation.device_gib.shared
    title = "memory that device and host share" if shared else "device memory"
    lines = [*_memory(title, explanation.device_gib, usable, "usable"),
             *_simulation_lines(explanation),
             *_memory("of it host memory" if shared else "host memory per node", explanation.host_gib, ram, "of RAM"),
             *_host_oom_warning(explanation.host_gib, ram),
             *time_lines(explanation), *_disk_samples_changes(explanation)]  # fmt: skip
    head, below = wrap_lines(head_lines(explanation), terminal_width(), HANGING), wrap_lines(lines, terminal_width())
    return escaping.escape_lines([*head, *below, *_command_lines(explanation)])


HANGING = len("verdict  ")  # columns by which a line of the head goes on further right than it began


def head_lines(explanation: Explanation, need: str = "") -> Iterator[str]:
    """Yield lines on the run: its file, model and machine, the verdict and what that depends on. `need`: the memory
    that the run needs and has, to be put after the verdict."""
    yield explanation.path
    if model := explanation.model:
        trained = model.trainable_parameters
        share = trained / model.parameters
        yield f"  model    {model.name}, {model.parameters:,} parameters, {trained:,} trained ({share:.2%})"
    if machine := explanation.machine:
        nodes = f"{machine.nodes} nodes of " if machine.nodes > 1 else ""
        each = " each" if machine.nodes > 1 else ""
        ram = f", {machine.host_ram_gib:g} GiB of RAM{each}" if machine.host_ram_gib else ""
        yield f"  machine  {nodes}{machine.devices} x {machine.device}{ram}"
    yield f"  verdict  {_verdict_text(explanation)}{need}"
    for other in explanation.releases[1:]:
        band = f"{other.expected:.1f} GiB ({other.low:.1f} to {other.high:.1f}) per device: {other.verdict}"
        yield f"           with transformers {other.transformers}, which runs experts one by one, {band}"
    yield from (f"  depends  {one.text}" for one in explanation.assumes)


def _verdict_text(explanation: Explanation) -> str:
    memory, errors = _VERDICTS[explanation.verdict], explanation.errors
    if explanation.machine is None:
        memory = "not judged, as no machine is named"
    if len({each.verdict for each in explanation.releases}) > 1:
        memory = f"depends on the release of transformers: {explanation.releases[0].verdict} with the newest"
    if explanation.enough_for_tokens:
        memory = "tight: whether it fits depends on the longest sample"
    if not errors:
        return memory
    without = f", without {', '.join(explanation.left_out)}" if explanation.left_out else ""
    return f"will not run: {errors} {plural(errors, 'error')} above; memory alone{without}: {memory}"


def _memory(title: str, band: MemoryBand | DeviceMemoryBand | None, limit: float | None, what: str) -> Iterator[str]:
    if band is None:
        return
    digits = distinguishing_decimals(limit, band.expected, band.high)
    against = f", {limit:.{digits}f} GiB {what}" if limit else ""
    yield ""
    span = f"{band.low:.{digits}f} to {band.high:.{digits}f} (90 % band)"
    yield f"{title}: {band.expected:.{digits}f} GiB expected, {span}{against}"
    if isinstance(band, DeviceMemoryBand) and band.few_measurements_of:
        yield f"  the band is wide: few measurements of {', '.join(band.few_measurements_of)} are public"
    scale = max(band.high, limit or 0.0) or 1.0
    parts = memory_parts(band)
    for name, size, _ in parts:
        if round(size, 2):
            yield f"  {name:<24}{size:>8.2f}  {draw_bar(size, scale)}".rstrip()
    yield f"  {'expected':<24}{band.expected:>8.2f}  {_bar_with_limit(band, limit, scale)}"
    if parts and band.expected:
        yield f"  largest: {largest_memory_part(band)}"
    if isinstance(band, DeviceMemoryBand) and band.peak:
        yield f"  memory peaks in the phase {band.peak}"


def _simulation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the simulated memory of live tensors and, if the formulas know the model, by how much they differ from it.
    Yield nothing if no simulation was made."""
    if not (figures := explanation.simulation):
        return
    yield ""
    device = explanation.device_gib
    if explanation.simulated or not device:
        yield f"  simulated: no formula knows the model; {figures.allocated:.2f} GiB of live tensors in its real class"
    else:
        gap = figures.allocated / device.allocated - 1
        by_formula = f"{device.allocated:.2f} by the formulas ({gap:+.2%})"
        yield f"  simulated: {figures.allocated:.2f} GiB of live tensors, {by_formula}"
    yield f"  with {', '.join(f'{name} {release}' for name, release in figures.releases.items())}"


def _host_oom_warning(band: MemoryBand | None, ram: float | None) -> Iterator[str]:
    """Yield a warning if the expected host memory exceeds the main memory `ram` (GiB); the warning states the size that
    would suffice."""
    if band and ram and band.expected > ram:
        sizes = f"{band.expected:,.0f} GiB would do, {band.high:,.0f} with a margin"
        yield f"  too little: the kernel would kill a process (exit code -9); {sizes}"


class MemoryPart(NamedTuple):
    """One part of the expected memory: its name in words, its GiB, and what it grows with or consists of."""

    name: str
    gib: float
    meaning: str


def memory_parts(band: MemoryBand | DeviceMemoryBand) -> list[MemoryPart]:
    """Return all parts of the expected memory, the largest first. A device's context and slack is one of them, so that
    the parts sum to the expected memory."""
    parts = [MemoryPart(term_in_words(term), size, term.meaning) for term, size in band.terms.items()]
    if isinstance(band, DeviceMemoryBand):
        parts.append(MemoryPart("context and slack", band.expected - band.allocated, _SLACK_MEANING))
    return sorted(parts, key=lambda part: -part.gib)


def largest_memory_part(band: MemoryBand | DeviceMemoryBand) -> str:
    """Return the name of the largest part of the expected memory, with its share of it and its meaning."""
    name, size, meaning = memory_parts(band)[0]
    return f"{name}, {size / band.expected:.0%} ({meaning})"


def _bar_with_limit(band: MemoryBand | DeviceMemoryBand, limit: float | None, scale: float) -> str:
    """Return a bar that is full up to the expected value and shaded up to the high end of the band, with `limit` as a
    mark. A bar of the value `scale` fills the whole width."""
    width = bar_width()

    def cell(value: float) -> int:
        return min(round(value / scale * width), width)

    cells = ["█"] * cell(band.expected) + ["░"] * (cell(band.high) - cell(band.expected))
    cells += [" "] * (width + 1 - len(cells))
    if limit:
        cells[cell(limit)] = "|"
    return "".join(cells).rstrip()


def _older_release_lines(older: ReleaseMemory | None) -> Iterator[str]:
    if older:
        yield f"fits with `# transformers: {older.transformers}` in the header block, and that release installed:"
        yield f"      {older.expected:.1f} GiB per device"


def _changes_title(explanation: Explanation) -> str:
    """Return the heading of the list of changes. The heading says whether the first change, which is the best, makes
    the run fit."""
    best = explanation.changes[0].verdict if explanation.changes else "unknown"
    if explanation.verdict == "unknown" or best == "fits":
        return "nearest changes:"
    if explanation.older:
        return "nearest changes without that, none with a margin:"
    return "nothing fits with a margin; nearest changes:" if best == "tight" else "nothing fits; nearest changes:"


def _change_lines(title: str, changes: Sequence[Change], explanation: Explanation) -> Iterator[str]:
    usable = explanation.machine.usable_gib if explanation.machine else None
    if changes:
        yield title
    for change in changes:
        digits = distinguishing_decimals(usable, change.device_gib)
        needs = f"{change.device_gib:.{digits}f} GiB{f' of {usable:.{digits}f}' if digits > 1 else ''}"
        yield f"  {', '.join(change.settings())}"
        then = f"{change.verdict}{format_time_change(change.time_ratio, explanation.time)}"
        yield f"      {needs} per device, {change.host_gib:.1f} of host memory: {then}"
        yield from (f"      {line}" for line in (change.note, *change.steps()) if line)


def _disk_samples_changes(explanation: Explanation) -> Iterator[str]:
    yield ""
    if disk := explanation.disk_gib:
        saved = f", with {disk.checkpoints} {plural(disk.checkpoints, 'checkpoint')} of {disk.checkpoint:.1f} at once"
        yield f"disk: {disk.total:.1f} GiB at most{saved if disk.checkpoints else ''}"
    samples = explanation.samples
    if samples.recommended:
        about = "" if samples.found_exact else "about "
        found = f", {about}{samples.found:,} found" if samples.found else ""
        if samples.sure:
            yield f"samples: {samples.recommended:,}, {samples.sure}{found}"
        else:
            yield f"samples: made for {samples.recommended:,}{found}"
    if explanation.verdict == "fits":
        yield from _change_lines("memory to spare, which would buy one of:", explanation.spare, explanation)
    else:
        yield from _older_release_lines(explanation.older)
        yield from _change_lines(_changes_title(explanation), explanation.changes, explanation)
    if explanation.packages:
        yield f"needs {needed_packages_phrase(explanation)}"


def needed_packages_phrase(explanation: Explanation) -> str:
    """Return which packages the run needs, as the end of a line that begins with `needs`."""
    names = ", ".join(dict.fromkeys(each.requirement for each in explanation.packages))
    return f"{names} beside LLaMA-Factory; `lmf-recipes doctor` looks for it"


def _command_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the launch command of each node, on a line each, which is copied as a whole."""
    if explanation.command_problem:
        yield f"run: {explanation.command_problem}"
    if explanation.command:
        yield "run:"
    for line in explanation.command:
        yield f"  {line}"


SECONDS_PER_HOUR = 3600.0
_HOURS_UNKNOWN = "hours follow from the number of rows (`rows:` in the header block)"


def time_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines on the time of a step and of the run. If the device has no published rates, the lines say that
    `calibrate` can measure its time. Yield nothing if no machine is named or the model is not known."""
    if not (time := explanation.time):
        if unknown := no_time_phrase(explanation):
            yield from ("", f"time: {unknown}")
        return
    yield ""
    yield f"time: {time_headline(time, _banded_step(time))}"
    if time.samples:
        yield f"  {timed_samples_phrase(time.samples)}"
    if time.correction is not None:
        yield f"  measured here: {two_digits(time.correction)} times what is predicted, which is corrected by it"
    yield from (f"  assumed: {each}" for each in time.assumed)
    if time.by_length:
        runs = (
            f"{tokens:,} tokens {format_duration_range(run.low * SECONDS_PER_HOUR, run.high * SECONDS_PER_HOUR)}"
            for tokens, run in time.by_length.items()
        )
        yield f"  by mean length: {'; '.join(runs)}"
    if time.few_measurements_of:
        yield f"  the band is wide: few times of {', '.join(time.few_measurements_of)} are public"
    yield from _step_term_lines(time)
    if faster := time.faster_release:
        slow, fast = two_digits(faster.older_seconds), two_digits(faster.newer_seconds)
        newer = f"{fast} with {faster.newer}, which runs experts together"
        yield f"  a step takes {slow} s with transformers {faster.older}, {newer}"
    parts = [
        f"{part} {format_duration(hours * SECONDS_PER_HOUR)}" for part, hours in time.parts.items() if part != "steps"
    ]
    if parts:
        yield f"  beside the steps: {', '.join(parts)}"
    if sums := [*total_amounts(explanation, time)]:
        yield f"  {'; '.join(sums)}"


def no_time_phrase(explanation: Explanation) -> str:
    """Return words that say why there is no time although machine and model are known, and how to get one; an empty
    text if one of them is not known."""
    if not explanation.machine or not explanation.device_gib:
        return ""
    measured = f"there, `lmf-recipes calibrate {shell_quote(explanation.path)}` measures them"
    return f"no rates of {explanation.machine.device} are published; {measured}"


def _step_term_lines(time: RunTime) -> Iterator[str]:
    """Yield a line for each part of a step that takes time, and a line on the largest."""
    step_seconds = time.step_seconds.expected
    digits = 2 if step_seconds >= 1 else 4
    for name, seconds in time.step_seconds.terms.items():
        if round(seconds, digits):
            bar = draw_bar(seconds, step_seconds)
            yield f"  {term_in_words(name):<24}{seconds:>8.{digits}f}  {bar}".rstrip()
    yield f"  largest: {largest_time_term(time.step_seconds, time)}"


def _banded_step(time: RunTime) -> str:
    step, rate = time.step_seconds, f"{float(f'{time.tokens_per_second:.2g}'):,.0f} tokens/s"
    return f"{format_duration_band(step.low, step.expected, step.high)}, {rate}"


def time_headline(time: RunTime, step: str) -> str:
    """Return the time of the run and its number of steps. `step`: the time of a step, as text."""
    if time.hours is None:
        return f"a step takes {step}; {_HOURS_UNKNOWN}"
    low, expected, high = (SECONDS_PER_HOUR * hours for hours in time.hours)
    about = "about " if time.samples and not time.samples.steps_exact else ""
    band = format_duration_range(low, high)
    return f"{band}, {format_duration(expected)} expected: {about}{time.steps:,} steps of {step}"


_FILES_NAMED = 2
_SAMPLE_SOURCES = {
    "header": "`rows` in the header block",
    "recommended": "the number that the header block recommends",
    "published": "as published of the data sets",
}


def timed_samples_phrase(samples: TimedSamples) -> str:
    """Return words that say for which samples the steps and the time are, and where their number comes from."""
    about = "" if samples.exact else "about "
    more = f" and {len(samples.files) - _FILES_NAMED} more" if len(samples.files) > _FILES_NAMED else ""
    named = f"{', '.join(samples.files[:_FILES_NAMED])}{more}"
    counted = f"counted in {named}" if samples.exact else f"estimated from {named}"
    source = _SAMPLE_SOURCES.get(samples.source, counted)
    held_back = f" and {samples.held_back:,} for evaluation" if samples.held_back else ""
    epochs = f"{samples.epochs:.3g} {'epoch' if samples.epochs == 1 else 'epochs'}"
    return f"for {about}{samples.train:,} samples{held_back} ({source}), {epochs}"


def largest_time_term(step: OptimizerStep, time: RunTime) -> str:
    """Return the name of the part (term) that takes most time of a step, with its share and its meaning."""
    share = step.terms[time.bottleneck] / (step.expected or 1.0)
    return f"{term_in_words(time.bottleneck)}, {share:.0%} of a step ({time.bottleneck.meaning})"


def total_amounts(explanation: Explanation, time: RunTime) -> Iterator[str]:
    """Yield device hours, cost and energy of the run, as far as they are known."""
    if time.device_hours is not None:
        yield f"{two_digits(time.device_hours)} device hours"
    if cost := explanation.cost:
        yield _format_amount(*cost)
    if time.energy_kwh:
        yield _format_amount(*time.energy_kwh, "kWh")


def _format_amount(low: float, expected: float, high: float, unit: str) -> str:
    return f"{two_digits(expected)} {unit} ({two_digits(low)} to {two_digits(high)})".replace("  ", " ")


def format_time_change(ratio: float | None, time: RunTime | None) -> str:
    """Return by how much a change alters the time, to be put after a verdict. `ratio` is the time after the change
    divided by the time before; the text is empty if it is None. `time`: the time of the run as it is; without its
    hours, the ratio is that of a step."""
    if ratio is None:
        return ""
    of_step = " for a step" if time is None or time.hours is None else ""
    if ratio >= 2:
        return f", {two_digits(ratio)} times as long{of_step}"
    return f", {ratio - 1:+.0%} time{of_step}" if abs(ratio - 1) >= 0.02 else ", no slower"
