"""The short answer of `explain` as text: the verdict, what it depends on, time, cost, and what to change."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from validator import escaping
from validator.advise.explanation import Explanation
from validator.catalogue.bundled_recipes import words_as_typed
from validator.escaping import shell_join
from validator.output.explain_text import (
    HANGING,
    format_time_change,
    head_lines,
    largest_memory_part,
    largest_time_term,
    needed_packages_phrase,
    no_time_phrase,
    time_headline,
    timed_samples_phrase,
    total_amounts,
)
from validator.wording import distinguishing_decimals, format_duration
from validator.wrapping import terminal_width, wrap_lines

# Of the nearest changes so many are shown, and one for a run that fits, if it takes less than so much of the time.
_MAX_CHANGES, _FASTER = 2, 0.98
_MORE = "every term, all changes and the launch commands: the same with --full"
# Main memory of which the run may need more than this share is told.
_LARGE_SHARE_OF_HOST = 0.5
# A change names main memory if it takes so many times that of the run as it is.
_OFFLOADING = 1.5


def format_summary(explanation: Explanation, machine_words: Sequence[str] = ()) -> str:
    """Return the explanation in a dozen lines of text; `explain_text.format_explanation` has all of it.
    `machine_words`: the options by which the user named the machine, which the command that follows keeps."""
    rows = [*_memory_rows(explanation), *_time_rows(explanation), *_change_rows(explanation)]
    lines = [*head_lines(explanation, _device_need(explanation)), *(f"  {name:<7}  {text}" for name, text in rows)]
    if explanation.packages:
        lines.append(f"  needs    {needed_packages_phrase(explanation)}")
    more = [_MORE, *([f"run: {explanation.command_problem}"] if explanation.command_problem else [])]
    wrapped = [*wrap_lines(lines, terminal_width(), HANGING), *wrap_lines(more, terminal_width())]
    return escaping.escape_lines([*wrapped, *_start_lines(explanation, machine_words)])


def _start_lines(explanation: Explanation, machine_words: Sequence[str]) -> Iterator[str]:
    """Yield the command that starts the run, which is copied as a whole, if no error stands against it and it is the
    same on all machines."""
    for command in explanation.command if len(explanation.command) == 1 else ():
        if words := command.partition("llamafactory-cli train ")[2]:
            yield f"run: lmf-recipes train {shell_join([*words_as_typed(shlex.split(words)), *machine_words])}"


def _device_need(explanation: Explanation) -> str:
    """Return, as the end of the verdict, the memory that a device needs and has."""
    band, usable = explanation.device_gib, explanation.machine.usable_gib if explanation.machine else None
    if band is None:
        return ""
    digits = distinguishing_decimals(usable, band.expected, band.high)
    of = f" of {usable:.{digits}f} usable" if usable else ""
    span = f"{band.low:.{digits}f} to {band.high:.{digits}f} (90 % band)"
    return f"; {band.expected:.{digits}f} GiB{of} per device, {span}"


def _memory_rows(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield what takes most of a device's memory, and the need of main memory, where it is a large part of what the
    machine has or that is not known."""
    device, band = explanation.device_gib, explanation.host_gib
    if device and device.expected:
        how = "; simulated in the model's own class, as no formula knows it" if explanation.simulated else ""
        loads = f"; memory peaks in the phase {device.peak}" if device.peak.startswith("loading") else ""
        yield "memory", f"mostly {largest_memory_part(device)}{loads}{how}"
    ram = explanation.machine.host_ram_gib if explanation.machine else None
    if band is None or (device and device.shared) or (ram and band.high < _LARGE_SHARE_OF_HOST * ram):
        return
    of = f" of {ram:g}" if ram else ""
    short = "; too little, the kernel would kill a process" if ram and band.expected > ram else ""
    yield "host", f"{band.expected:.1f} GiB{of} of main memory per node, {band.low:.1f} to {band.high:.1f}{short}"


def _time_rows(explanation: Explanation) -> Iterator[tuple[str, str]]:
    time = explanation.time
    if time is None:
        if unknown := no_time_phrase(explanation):
            yield "time", unknown
        return
    headline = time_headline(time, format_duration(time.step_seconds.expected))
    headline += f", {timed_samples_phrase(time.samples)}" if time.hours and time.samples else ""
    yield "time", "; ".join([headline, *(f"assumed: {each}" for each in time.assumed)])
    yield "step", f"mostly {largest_time_term(time.step_seconds, time)}"
    if sums := [*total_amounts(explanation, time)]:
        yield "cost", "; ".join(sums)


def _change_rows(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the nearest changes that would fit, or for a run that fits the one that would make it faster."""
    if older := explanation.older if explanation.verdict != "fits" else None:
        yield "change", f"`# transformers: {older.transformers}`, and install it: {older.expected:.1f} GiB, fits"
    faster = [each for each in explanation.spare if (each.time_ratio or 1.0) < _FASTER]
    changes = faster[:1] if explanation.verdict == "fits" else explanation.changes[:_MAX_CHANGES]
    for change in changes if explanation.verdict != "unknown" else ():
        written = ", ".join(f"`{setting}`" for setting in change.settings())
        moved = explanation.host_gib is not None and change.host_gib > _OFFLOADING * explanation.host_gib.expected
        host = f", {change.host_gib:.0f} GiB of main memory per node" if moved else ""
        longer = format_time_change(change.time_ratio, explanation.time)
        then = f"{change.device_gib:.1f} GiB per device{host}, {change.verdict}{longer}"
        name = "faster" if explanation.verdict == "fits" else "change"
        yield name, "; ".join([f"{written}: {then}", *change.steps()])
