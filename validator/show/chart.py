"""`explain` for a terminal: memory as bars of terms against the limit, time as bars of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from validator import printable
from validator.advise.change import Change
from validator.advise.explanation import Band, DeviceBand, Explanation, Released
from validator.diagnostic import decimals, plural
from validator.show import timing
from validator.show.bar import WIDTH, bar

_SPOKEN = {"fits": "fits", "tight": "tight: expected to fit, but the upper end does not", "exceeds": "does not fit",
           "unknown": "not judged"}  # fmt: skip


def text(explanation: Explanation) -> str:
    """The explanation as lines of text."""
    machine = explanation.machine
    usable, ram = (machine.usable_gib, machine.host_ram_gib) if machine else (None, None)
    shared = explanation.device_gib is not None and explanation.device_gib.shared
    title = "memory that device and host share" if shared else "device memory"
    lines = [*_head(explanation), *_memory(title, explanation.device_gib, usable, "usable"),
             *_simulated(explanation),
             *_memory("of it host memory" if shared else "host memory per node", explanation.host_gib, ram, "of RAM"),
             *_killed(explanation.host_gib, ram),
             *timing.lines(explanation), *_rest(explanation)]  # fmt: skip
    return printable.lines(lines)


def _head(explanation: Explanation) -> Iterator[str]:
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
    yield f"  verdict  {_verdict(explanation)}"
    for other in explanation.releases[1:]:
        band = f"{other.expected:.1f} GiB ({other.low:.1f} to {other.high:.1f}) per device: {other.verdict}"
        yield f"           with transformers {other.transformers}, whose experts are linear modules, {band}"


def _verdict(explanation: Explanation) -> str:
    memory, errors = _SPOKEN[explanation.verdict], explanation.errors
    if len({each.verdict for each in explanation.releases}) > 1:
        memory = f"depends on the release of transformers: {explanation.releases[0].verdict} with the newest"
    if enough := explanation.enough_for_tokens:
        memory = f"tight: fits while no sample is longer than {enough:,} tokens, as far as devices go"
    if not errors:
        return memory
    without = f", without {', '.join(explanation.left_out)}" if explanation.left_out else ""
    return f"will not run: {errors} {plural(errors, 'error')} above; memory alone{without}: {memory}"


def _memory(title: str, band: Band | DeviceBand | None, limit: float | None, what: str) -> Iterator[str]:
    if band is None:
        return
    digits = decimals(band.expected, limit)
    against = f", {limit:.{digits}f} GiB {what}" if limit else ""
    yield ""
    yield f"{title}: {band.expected:.{digits}f} GiB expected, {band.low:.1f} to {band.high:.1f} (90 % band){against}"
    rows: list[tuple[str, float]] = [*band.terms.items()]
    if isinstance(band, DeviceBand):
        rows.append(("context and slack", band.expected - band.allocated))
        if band.few_measurements_of:
            yield f"  the band is wide: few measurements of {', '.join(band.few_measurements_of)} are public"
    scale = max(band.high, limit or 0.0) or 1.0
    for name, size in rows:
        yield f"  {name:<18}{size:>8.2f}  {bar(size, scale)}".rstrip()
    yield f"  {'expected':<18}{band.expected:>8.2f}  {_ruler(band, limit, scale)}"
    if band.terms:
        yield _largest(band)


def _simulated(explanation: Explanation) -> Iterator[str]:
    """What was simulated, beside what the formulas say where they know the model."""
    if not (there := explanation.simulation):
        return
    yield ""
    device = explanation.device_gib
    if explanation.simulated or not device:
        yield f"  simulated: no formula knows the model; {there.allocated:.2f} GiB of live tensors in its real class"
    else:
        gap = there.allocated / device.allocated - 1
        by_formula = f"{device.allocated:.2f} by the formulas ({gap:+.2%})"
        yield f"  simulated: {there.allocated:.2f} GiB of live tensors, {by_formula}"
    yield f"  with {', '.join(f'{name} {release}' for name, release in there.releases.items())}"


def _killed(band: Band | None, ram: float | None) -> Iterator[str]:
    """What too little main memory does, and how much would do."""
    if band and ram and band.expected > ram:
        enough = f"{band.expected:,.0f} GiB would do, {band.high:,.0f} with a margin"
        yield f"  too little: the kernel would kill a process (exit code -9); {enough}"


def _largest(band: Band | DeviceBand) -> str:
    """The largest term in words."""
    term, size = max(band.terms.items(), key=lambda pair: pair[1])
    share = size / (sum(band.terms.values()) or 1.0)
    return f"  largest: {term}, {share:.0%} ({term.meaning})"


def _ruler(band: Band | DeviceBand, limit: float | None, scale: float) -> str:
    """A filled bar up to the expected value, shaded to the high end, with the limit as a mark."""

    def cell(value: float) -> int:
        return min(round(value / scale * WIDTH), WIDTH)

    cells = ["█"] * cell(band.expected) + ["░"] * (cell(band.high) - cell(band.expected))
    cells += [" "] * (WIDTH + 1 - len(cells))
    if limit:
        cells[cell(limit)] = "|"
    return "".join(cells).rstrip()


def _release(older: Released | None) -> Iterator[str]:
    if older:
        yield f"fits with `# transformers: {older.transformers}` in the header block, and that release installed:"
        yield f"      {older.expected:.1f} GiB per device"


def _title(explanation: Explanation) -> str:
    """What the changes are to a job: the best of them comes first."""
    best = explanation.changes[0].verdict if explanation.changes else "unknown"
    if explanation.verdict == "unknown" or best == "fits":
        return "nearest changes:"
    if explanation.older:
        return "nearest changes without that, none with a margin:"
    return "nothing fits with a margin; nearest changes:" if best == "tight" else "nothing fits; nearest changes:"


def _changes(title: str, changes: Sequence[Change], usable: float | None) -> Iterator[str]:
    if changes:
        yield title
    for change in changes:
        digits = decimals(change.device_gib, usable)
        needs = f"{change.device_gib:.{digits}f} GiB{f' of {usable:.{digits}f}' if digits > 1 else ''}"
        yield from _wrapped(", ".join(change.settings()), 2)
        then = f"{change.verdict}{timing.changed(change.time_ratio)}"
        yield f"      {needs} per device, {change.host_gib:.1f} of host memory: {then}"
        for line in (change.note, *change.steps()):
            yield from _wrapped(line, 6)


def _wrapped(text: str, indent: int) -> list[str]:
    return wrap(text, 100, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2), break_long_words=False,
                break_on_hyphens=False)  # fmt: skip


def _rest(explanation: Explanation) -> Iterator[str]:
    yield ""
    if disk := explanation.disk_gib:
        saved = f", with {disk.checkpoints} {plural(disk.checkpoints, 'checkpoint')} of {disk.checkpoint:.1f} at once"
        yield f"disk: {disk.total:.1f} GiB at most{saved if disk.checkpoints else ''}"
    samples = explanation.samples
    if samples.recommended:
        found = f", {samples.found:,} found" if samples.found else ""
        if samples.sure:
            yield f"samples: {samples.recommended:,}, {samples.sure}{found}"
        else:
            yield f"samples: made for {samples.recommended:,}{found}"
    usable = explanation.machine.usable_gib if explanation.machine else None
    if explanation.verdict == "fits":
        yield from _changes("memory to spare, which would buy one of:", explanation.spare, usable)
    else:
        yield from _release(explanation.older)
        yield from _changes(_title(explanation), explanation.changes, usable)
    if explanation.command_problem:
        yield f"run: {explanation.command_problem}"
    if explanation.command:
        yield "run:"
    for line in explanation.command:
        yield f"  {line}"
