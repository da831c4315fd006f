"""The answer of `plan` as text: tables of plans, models or numbers of devices, with sentences below them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from validator import escaping
from validator.output.machines_text import machine_lines, notes_on_first_row
from validator.output.terminal import columns_left_out, format_table, wrap_to_terminal
from validator.plan.plan_json import AnswerRows, ChoiceRow, PlanRow, ScaleRow, TightRow, UpgradeRow
from validator.wording import format_duration, format_duration_range, term_in_words, two_digits

_PLAN_COLUMNS = ("method", "time", "GiB/device", "to spare", "GiB/host", "micro", "accum.", "length")
_CHOICE_COLUMNS = ("model", "recommended", "method", "time", "GiB/device", "to spare", "GiB/host")
_SCALE_COLUMNS = ("devices", "time", "device hours", "efficiency", "with", "micro")
_EFFICIENCY_NOTE = "efficiency: device hours of the fewest devices that train in the same way, over those of so many"
# What a narrow terminal does without.
_OPTIONAL_COLUMNS = ("GiB/host", "to spare", "recommended")
_BY_LENGTH_NOTE = (
    "first row by mean length of samples, all of which its time spans; yours: `lmf-recipes data FILE --model M`"
)
_NO_REMEDY = (
    "tried one by one, none is enough: another method, shorter samples, more host memory, more or larger devices"
)
_DOUBLINGS_NOTE = (
    "off by: doublings between your samples and the recommended number, and of a step's time by traffic and waiting"
)


def format_plan(rows: AnswerRows, following: Sequence[str] = ()) -> str:
    """Return the answer as lines of text, followed by commands that may come next."""
    lines = [*machine_lines(rows)] if rows.machines else []
    if not (rows.machines and rows.plans):
        lines += _answer_lines(rows)
    notes = notes_on_first_row(rows.notes) if rows.machines and rows.plans else rows.notes
    lines += [line for note in notes for line in wrap_to_terminal(f"note: {note}")]
    lines += [f"{word}: {command}" for word, command in zip(("next", "  or"), following, strict=False)]
    return escaping.escape_lines(lines)


def _answer_lines(rows: AnswerRows) -> Iterator[str]:
    """Yield the head and the plans or models for one machine; if there are none, the reasons and what would fit."""
    ram = f"{rows.machine.host_ram_gib:g} GiB of host memory" if rows.machine.host_ram_gib else "host memory not known"
    yield f"{rows.model or 'models'} on {rows.machine.name}, {ram}"
    if rows.plans:
        yield from (*_plan_lines(rows.plans), *_by_length_lines(rows.plans[0]), *_scale_lines(rows.scale))
    elif rows.choices:
        yield from _choice_lines(rows.choices, bool(rows.samples))
        yield from _by_length_lines(rows.choices[0])
    elif rows.reasons:
        yield "no such run passes `check`, whatever its memory:"
        yield from (line for each in rows.reasons for line in wrap_to_terminal(each, "  "))
        yield from _remedy_lines(rows.upgrades)
    else:
        yield from (*_nothing_fits_lines(rows.tight), *([*_remedy_lines(rows.upgrades)] or [_NO_REMEDY]))


def _plan_lines(rows: Iterable[PlanRow]) -> Iterator[str]:
    """Yield a table with one row for each plan, and the sentences about each plan below it."""
    rows = list(rows)
    titles, *figures = format_table(_PLAN_COLUMNS, map(_plan_cells, rows), _OPTIONAL_COLUMNS)
    yield titles
    for row, line in zip(rows, figures, strict=True):
        yield line
        for words in _plan_sentences(row):
            yield from wrap_to_terminal(words, "    ")
    yield from columns_left_out(_PLAN_COLUMNS, map(_plan_cells, rows), _OPTIONAL_COLUMNS)


def _plan_cells(row: PlanRow) -> tuple[object, ...]:
    return (row.method, _format_hours(row.hours), row.device_gib, row.headroom_gib, row.host_gib, row.micro_batch,
            row.accumulation, row.cutoff_len)  # fmt: skip


def _format_hours(hours: tuple[float, float, float] | None) -> str:
    """Return the low and the high end of a band of hours, such as `5-9 h`; `not known` for None. The expected value is
    left out, because in a table it would pretend to be exact."""
    return format_duration_range(3600 * hours[0], 3600 * hours[2]).replace(" to ", "-") if hours else "not known"


def _by_length_lines(row: PlanRow) -> Iterator[str]:
    """Yield a table of a plan's hours at a few mean sample lengths. Yield nothing if the sample lengths are known."""
    if row.by_length:
        yield from wrap_to_terminal(_BY_LENGTH_NOTE)
        titles = [f"{tokens:,} tokens" for tokens in row.by_length]
        yield from (f"  {line}" for line in format_table(titles, [[*map(_format_hours, row.by_length.values())]]))


def _scale_lines(rows: Sequence[ScaleRow]) -> Iterator[str]:
    """Yield a table of the first plan's method on each number of devices."""
    if not rows:
        return
    yield ""
    yield from format_table(_SCALE_COLUMNS, map(_scale_cells, rows))
    if any(row.hours for row in rows):
        yield from wrap_to_terminal(_EFFICIENCY_NOTE)
        others = (row for row in rows if row.device_hours and row.efficiency is None)
        yield from (f"{row.machine} trains in another way, with {row.optimizer or 'AdamW'}" for row in others)
        yield from _lines_on_superlinear_scale([row for row in rows if row.efficiency])


def _lines_on_superlinear_scale(rows: Sequence[ScaleRow]) -> Iterator[str]:
    """Yield why device hours bring more on more devices than on the fewest on which the run fits, if they do."""
    best = max(rows, key=lambda row: row.efficiency or 0.0)
    if round(best.efficiency or 0.0, 2) <= 1:
        return
    kept = best.gives_up.split(", ")
    only_there = [loss for loss in rows[0].gives_up.split(", ") if loss and loss not in kept]
    if (rows[0].micro_batch or 0) < (best.micro_batch or 0):
        only_there.append(f"micro batch {rows[0].micro_batch} instead of {best.micro_batch}")
    why = ", ".join(only_there) or "a larger share of the model on each"
    yield from wrap_to_terminal(
        f"above 100%: what {rows[0].machine} needs to hold the run slows each step there: {why}"
    )


def _scale_cells(row: ScaleRow) -> tuple[object, ...]:
    if row.micro_batch is None:
        return (row.machine, "too many devices" if row.too_many_devices else "does not fit", "", "", "", "")
    spent = (
        f"{two_digits(row.device_hours)}{f', {_format_money(row)}' if row.money else ''}" if row.device_hours else ""
    )
    share = f"{row.efficiency:.0%}" if row.efficiency else ""
    return (row.machine, _format_hours(row.hours), spent, share, row.zero or row.optimizer or "", row.micro_batch)


def _format_money(row: ScaleRow | PlanRow) -> str:
    return f"{two_digits(row.money.expected)} {row.money.currency}".rstrip() if row.money else ""


def _plan_sentences(row: PlanRow) -> Iterator[str]:
    yield f"{f'with {row.zero}, ' if row.zero else ''}gives up: {row.gives_up}"
    if row.hours:
        steps = f" in {row.steps:,} steps" if row.steps else ""
        samples = f" for {row.samples:,} samples{steps}" if row.samples else ""
        devices = f"{two_digits(row.device_hours)} device hours" if row.device_hours else ""
        spent = ", ".join(filter(None, (devices, _format_money(row))))
        time = format_duration(3600 * row.hours.expected)
        yield f"{time} expected{samples}, {spent}; bottleneck: {term_in_words(row.bottleneck or 'unknown')}"
    yield from (f"depends: {one.text}" for one in row.assumes)
    if row.nearest:
        yield f"nearest recipe: {row.nearest}"


def _choice_lines(rows: Sequence[ChoiceRow], asked_for_samples: bool) -> Iterator[str]:
    """Yield a table of models. How far they are off is shown only if the user gave a number of samples, because models
    are not ordered by it otherwise."""
    titles = (*_CHOICE_COLUMNS, "off by") if asked_for_samples else _CHOICE_COLUMNS
    cells = [_choice_cells(row)[: len(titles)] for row in rows]
    yield from format_table(titles, cells, _OPTIONAL_COLUMNS)
    yield from columns_left_out(titles, cells, _OPTIONAL_COLUMNS)
    if asked_for_samples:
        yield from wrap_to_terminal(_DOUBLINGS_NOTE)


def _choice_cells(row: ChoiceRow) -> tuple[object, ...]:
    return (row.model.rpartition("/")[2], row.recommended, row.method, _format_hours(row.hours), row.device_gib,
            row.headroom_gib, row.host_gib, row.cost)  # fmt: skip


def _nothing_fits_lines(tight: TightRow | None) -> list[str]:
    if tight is None:
        return ["nothing fits, even with every saving that is tried"]
    zero = f" with {tight.zero}" if tight.zero else ""
    expected = f"expected are {tight.device_gib} GiB a device and {tight.host_gib} a host"
    return wrap_to_terminal(f"nothing fits with a margin; tight is {tight.method}{zero}, micro batch 1, cutoff_len "
                    f"{tight.cutoff_len}: {expected}, and it may run out of memory")  # fmt: skip


def _remedy_lines(upgrades: Iterable[UpgradeRow]) -> Iterator[str]:
    for row in upgrades:
        ram = f" with {row.host_ram_gib:g} GiB of host memory" if row.host_ram_gib else ""
        yield from wrap_to_terminal(f"it would on {row.machine}{ram}: {row.method}; {row.note}")
