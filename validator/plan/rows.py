"""An answer as rows: the fields are the keys of `plan --format json`, in their order. GiB are 2^30 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from validator.job.price import Cost
from validator.plan.answer import Answer
from validator.plan.choice import Choice
from validator.plan.nearest import nearest
from validator.plan.notes import notes
from validator.plan.search import LENGTHS, Plan
from validator.plan.upgrade import Upgrade
from validator.speed import Span, Term
from validator.tables.machines import Machine
from validator.tables.savers import savers

_SLOWER = {
    "medium": "weights gathered from the other devices",
    "slow": "optimizer updated in host memory",
    "slowest": "weights fetched from host memory",
}


@dataclass(frozen=True)
class MachineRow:
    """The target; `usable_gib` of one device."""

    name: str
    host_ram_gib: float | None
    usable_gib: float | None


@dataclass(frozen=True)
class PlanRow:
    """A run that fits, and what it gives up. `zero` is the DeepSpeed file, `set` the recipe's settings; `hours` are
    those of the samples, None where no rates of the device are published; `speed` is the class of the search.
    `by_length`: hours by the mean length of samples, in tokens, where nothing tells how long they are."""

    method: str
    speed: str
    device_gib: float
    headroom_gib: float
    host_gib: float
    zero: str | None
    micro_batch: int
    accumulation: int
    effective_batch: int
    learning_rate: float
    epochs: float
    cutoff_len: int
    samples: int | None
    set: dict[str, object]
    gives_up: str
    nearest: str | None
    hours: Span | None
    device_hours: float | None
    bottleneck: Term | None
    money: Cost | None
    by_length: Mapping[int, Span]


@dataclass(frozen=True)
class ScaleRow:
    """The same training on so many devices. `efficiency`: device hours of the fewest on which it fits, over those here;
    None where no run fits or no time is known."""

    machine: str
    devices: int
    zero: str | None
    micro_batch: int | None
    hours: Span | None
    device_hours: float | None
    efficiency: float | None
    money: Cost | None


@dataclass(frozen=True)
class _Chosen:
    model: str
    recommended: int | None
    cost: int


@dataclass(frozen=True)
class ChoiceRow(PlanRow, _Chosen):
    """A model for the machine and the samples, and its plan. A dataclass takes the fields of its last base first."""


@dataclass(frozen=True)
class UpgradeRow:
    """A machine on which something fits."""

    machine: str
    host_ram_gib: float | None
    method: str
    zero: str | None
    note: str


@dataclass(frozen=True)
class TightRow:
    """A run that is expected to fit, but not with a margin; GiB are those expected."""

    method: str
    zero: str | None
    device_gib: float
    host_gib: float
    cutoff_len: int


@dataclass(frozen=True)
class Rows:
    """The whole answer; of plans, choices and reasons no more than one holds anything. `upgrades`: where nothing fits;
    beside reasons another method alone. `tight`: where nothing fits with a margin. `scale`: where it is asked for."""

    model: str | None
    machine: MachineRow
    samples: int | None
    plans: Sequence[PlanRow]
    choices: Sequence[ChoiceRow]
    reasons: Sequence[str]
    upgrades: Sequence[UpgradeRow]
    tight: TightRow | None
    notes: Sequence[str]
    scale: Sequence[ScaleRow]


def rows(answer: Answer) -> Rows:
    """The answer for printers, GiB rounded to 0.1."""
    machine = answer.machine
    return Rows(
        model=answer.model.name if answer.model else None,
        machine=MachineRow(str(machine), machine.host_ram_gib, machine.device.usable_gib),
        samples=answer.samples,
        plans=[_plan(each) for each in answer.plans],
        choices=[_choice(each) for each in answer.choices],
        reasons=answer.reasons,
        upgrades=[_upgrade(each) for each in answer.upgrades],
        tight=_tight(answer.tight) if answer.tight else None,
        notes=[*notes(answer)],
        scale=[*_scale(answer.scale)],
    )


def _plan(plan: Plan) -> PlanRow:
    draft, hours = plan.draft, _hours(plan)
    return PlanRow(
        method=draft.method,
        speed=plan.speed,
        device_gib=round(plan.device_gib, 1),
        headroom_gib=round(plan.headroom_gib, 1),
        host_gib=round(plan.host_gib, 1),
        zero=draft.engine,
        micro_batch=draft.micro,
        accumulation=draft.accumulation,
        effective_batch=draft.job.effective_batch,
        learning_rate=draft.rates["learning_rate"]["default"],
        epochs=draft.rates["epochs"]["default"],
        cutoff_len=draft.length,
        samples=draft.amount,
        set={**draft.job.values, "output_dir": draft.output},
        gives_up=", ".join(_losses(plan)) or "nothing",
        nearest=nearest(draft),
        hours=hours,
        device_hours=_digits(hours.expected * draft.machine.world) if hours else None,
        bottleneck=plan.pace.step.bottleneck if plan.pace else None,
        money=_money(plan),
        by_length={tokens: _rounded(hours) for tokens, hours in plan.by_length.items()},
    )


def _hours(plan: Plan) -> Span | None:
    hours = plan.pace.hours if plan.pace else None
    return _rounded(hours) if hours else None


def _rounded(hours: Span) -> Span:
    return Span(*map(_digits, hours))


def _money(plan: Plan) -> Cost | None:
    price, hours = plan.draft.job.price, plan.pace.hours if plan.pace else None
    if not (price and hours):
        return None
    low, expected, high, currency = price.of(plan.draft.machine.world, hours)
    return Cost(_digits(low), _digits(expected), _digits(high), currency)


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _scale(scale: Sequence[tuple[Machine, Plan | None]]) -> Iterator[ScaleRow]:
    """The fewest devices come first."""
    fewest: float | None = None
    for machine, plan in scale:
        hours = _hours(plan) if plan else None
        spent = hours.expected * machine.world if hours else None
        fewest = fewest or spent
        yield ScaleRow(str(machine), machine.world, plan.draft.engine if plan else None,
                       plan.draft.micro if plan else None, hours, spent and _digits(spent),
                       fewest / spent if fewest and spent else None, _money(plan) if plan else None)  # fmt: skip


def _losses(plan: Plan) -> Iterator[str]:
    draft = plan.draft
    if draft.method == "qlora":
        yield "base weights in 4 bit"
    if draft.saver:
        yield savers()[draft.saver].gives_up
    if draft.recompute:
        yield "activations computed twice"
    if plan.speed in _SLOWER:
        yield _SLOWER[plan.speed]
    if draft.workers == 1:
        yield "samples loaded by one process a device"
    if draft.liger:
        yield "needs liger-kernel"
    yield from (f"needs {package}" for package in draft.packages)
    if draft.length < LENGTHS[0]:
        yield f"samples cut at {draft.length} tokens"


def _choice(choice: Choice) -> ChoiceRow:
    model = choice.plan.draft.model.name
    return ChoiceRow(model=model, recommended=choice.recommended, cost=choice.cost, **vars(_plan(choice.plan)))


def _tight(plan: Plan) -> TightRow:
    draft = plan.draft
    return TightRow(draft.method, draft.engine, round(plan.device_gib, 1), round(plan.host_gib, 1), draft.length)


def _upgrade(upgrade: Upgrade) -> UpgradeRow:
    draft, machine = upgrade.draft, upgrade.draft.machine
    return UpgradeRow(str(machine), machine.host_ram_gib, draft.method, draft.engine, upgrade.note)
