"""An answer of `plan` as rows, with its notes: the fields are the keys of `plan --format json`, in their order. GiB
are 2^30 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from validator.knowledge import guidance, models, releases
from validator.knowledge.devices import Machine
from validator.knowledge.guidance import memory_savers
from validator.knowledge.models import Model
from validator.physics import Band, TimeTerm
from validator.plan import base_model
from validator.plan.answer import Answer, nearest_recipe
from validator.plan.new_recipe import NewRecipe
from validator.plan.other_machines import Upgrade
from validator.plan.search import USUAL_LENGTHS, Plan
from validator.run.recipe_arguments import Cost
from validator.run.simulated import PlanSimulations
from validator.wording import four_digits, map_floats

# What simulations call a method -> what plans do.
_METHODS_BY_SIMULATION = {"qlora4": "qlora"}


def answer_notes(answer: Answer) -> Iterator[str]:
    """Yield notes on the device and model that were meant, on assumptions, on what is left out, and on the number of
    samples."""
    if answer.newest_release_findings:
        cured = (plan.draft.transformers for plan in answer.plans if plan.draft.transformers)
        older, newest = next(cured, releases.previous_major_pair()[1]), releases.newest_pair()[1]
        why = "; ".join(
            dict.fromkeys(reason for reasons in answer.newest_release_findings.values() for reason in reasons)
        )
        methods = ", ".join(answer.newest_release_findings)
        yield f"{methods} for transformers {older}, as a written recipe says; not for {newest}: {why}"
    yield from _machine_notes(answer.machine)
    if answer.best and answer.best.pace:
        yield from (f"times are for {each}" for each in answer.best.pace.assumed)
    if answer.planned:
        yield from _simulation_notes(answer, answer.planned)
    if answer.methods_without_rates:
        left_out = ", ".join(answer.methods_without_rates)
        yield f"{left_out} is left out: no learning rate for it in stage {answer.stage} is published"
    if answer.model is None:
        yield from _model_choice_notes(answer)
        return
    yield from _base_model_notes(answer.model)
    if answer.best:
        yield from _template_notes(answer.best.draft)
        yield from _sample_notes(answer.best.draft, answer.samples)


def _machine_notes(machine: Machine) -> Iterator[str]:
    if machine.note:
        yield machine.note
    if machine.device.vendor == "unknown":
        assumed = "bf16, FlashAttention-2, bitsandbytes and liger-kernel"
        yield f"only the memory of {machine.device.id} is known: {assumed} are assumed"
    if machine.device.shared_memory:
        shared = "device and host share one memory: GiB/device counts both, and offload would gain nothing"
        yield f"{shared}; a machine that runs out of it may hang"
    if machine.host_ram_gib is None:
        yield "offload is left out, because the host's memory is not known; give --host-ram"


def _simulation_notes(answer: Answer, planned: PlanSimulations) -> Iterator[str]:
    """Yield notes on simulated figures: that they are simulated, and which methods are missing."""
    yield f"memory is simulated, as no formula knows model type {planned.kind}; `check --simulate` judges the recipe"
    there = {plan.draft.method for plan in answer.plans}
    for why in dict.fromkeys(planned.failed.values()):
        methods = [_METHODS_BY_SIMULATION.get(method, method) for method, its in planned.failed.items() if its == why]
        if lacking := [method for method in methods if method not in there]:
            yield f"{', '.join(lacking)} is left out: it {why}"
    if made := planned.used_up:
        yield (
            f"no more than {made} simulations are made at a time, and what was not simulated is taken not to fit; the "
            "same command goes on from there, --method or --cutoff-len need fewer"
        )


def _template_notes(draft: NewRecipe) -> Iterator[str]:
    """Yield notes on a model that is not in the catalogue: where its config was found, and which template it gets and
    why."""
    if draft.model.cached:
        yield f"the shapes of {draft.model.name} are those of its config.json in the {draft.model.cached} cache"
    if draft.model.identified_from and draft.stage != "pt":
        named = f"template {draft.template}" if draft.template else "no template, so it is derived from the tokenizer"
        yield f"{named}: {draft.model.identified_from}"


def _base_model_notes(model: Model) -> Iterator[str]:
    """Yield the chat-tuned sister of a base model, because their names are nearly the same."""
    tuned = models.find_model(model.hub[0]) if model.base and model.hub else None
    if tuned and not tuned.base:
        yield f"{model.name} is the base model; the one tuned for chat is {tuned.name}"


def _model_choice_notes(answer: Answer) -> Iterator[str]:
    came = (
        f"models of the last {base_model.CURRENT_MONTHS} months that train within {base_model.SOON_HOURS} h come first"
    )
    if answer.samples is None:
        yield f"{came}, the largest of each size; --samples N takes those that suit so many, --model NAME any other"
        return
    yield f"{came}; --model NAME takes any other"
    if answer.best:
        yield from _sample_notes(answer.best.draft, answer.samples)


def _sample_notes(draft: NewRecipe, samples: int | None) -> Iterator[str]:
    """Yield how the number of samples compares with public runs; without a number, the one that the plan is made for.
    Public numbers in blocks are not compared with texts that are still to be packed."""
    known = draft.guidance
    if known is None:
        return
    number, by = known.recommended
    if samples is None or known.unit != guidance.SAMPLE_UNIT:
        seen = f", the least with an effect {known.effect.samples:,}" if known.effect else ""
        yield f"the header states {guidance.count_in_words(number, known.unit)}, {by}; {known.usual}{seen}"
        return
    there = guidance.count_in_words(samples, known.unit)
    if judged := known.few(samples) or known.many(samples):
        yield f"{there}: {judged}"
    elif samples < known.low:
        yield f"{there}: {known.usual}; fewer may do if each is checked"
    elif samples < number:
        yield f"{there} are as many as usual: {known.usual}; {number:,} is {by}"


_LOSSES_BY_SPEED = {
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
    """A run that fits, and what it gives up. `zero` is the DeepSpeed file, `set` the recipe's settings, `speed` the
    class of the search. `hours` is the time for the samples, None if no rates of the device are published. `by_length`:
    hours by the mean length of samples in tokens, if their length is not known."""

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
    hours: Band | None
    device_hours: float | None
    bottleneck: TimeTerm | None
    money: Cost | None
    by_length: Mapping[int, Band]


@dataclass(frozen=True)
class ScaleRow:
    """The same training on another number of devices. `efficiency`: device hours on the fewest devices on which it
    fits, over device hours here; None if no run fits or no time is known."""

    machine: str
    devices: int
    zero: str | None
    micro_batch: int | None
    hours: Band | None
    device_hours: float | None
    efficiency: float | None
    money: Cost | None


@dataclass(frozen=True)
class _ChosenModel:
    model: str
    recommended: int | None
    cost: int


@dataclass(frozen=True)
class ChoiceRow(PlanRow, _ChosenModel):
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
    """A run that is expected to fit, but not with a margin; sizes are expected GiB."""

    method: str
    zero: str | None
    device_gib: float
    host_gib: float
    cutoff_len: int


@dataclass(frozen=True)
class AnswerRows:
    """The whole answer. At most one of plans, choices and reasons is not empty. `upgrades`: what would help if nothing
    fits; beside reasons only another method. `tight`: a run without margin, if none fits with one. `scale`: other
    numbers of devices, if asked for."""

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


def answer_rows(answer: Answer) -> AnswerRows:
    """Return the answer as rows to print, GiB rounded to 0.1."""
    machine = answer.machine
    return AnswerRows(
        model=answer.model.name if answer.model else None,
        machine=MachineRow(str(machine), machine.host_ram_gib, machine.device.usable_gib),
        samples=answer.samples,
        plans=[_plan_row(each) for each in answer.plans],
        choices=[
            ChoiceRow(each.plan.draft.model.name, each.recommended, each.cost, **vars(_plan_row(each.plan)))
            for each in answer.choices
        ],
        reasons=answer.reasons,
        upgrades=[_upgrade_row(each) for each in answer.upgrades],
        tight=_tight_row(answer.tight) if answer.tight else None,
        notes=[*answer_notes(answer)],
        scale=[*_scale_rows(answer.scale)],
    )


def _plan_row(plan: Plan) -> PlanRow:
    draft, hours = plan.draft, _rounded_hours(plan)
    return PlanRow(
        method=draft.method,
        speed=plan.speed,
        device_gib=round(plan.device_gib, 1),
        headroom_gib=round(plan.headroom_gib, 1),
        host_gib=round(plan.host_gib, 1),
        zero=draft.sharding,
        micro_batch=draft.micro_batch,
        accumulation=draft.accumulation,
        effective_batch=draft.run.batch.effective_batch,
        learning_rate=draft.rates["learning_rate"]["default"],
        epochs=draft.rates["epochs"]["default"],
        cutoff_len=draft.length,
        samples=draft.planned_samples,
        set={**draft.run.args.values, "output_dir": draft.output},
        gives_up=", ".join(_what_is_given_up(plan)) or "nothing",
        nearest=nearest_recipe(draft),
        hours=hours,
        device_hours=four_digits(hours.expected * draft.machine.world) if hours else None,
        bottleneck=plan.pace.step.bottleneck if plan.pace else None,
        money=_rounded_cost(plan),
        by_length=map_floats(plan.by_length, four_digits),
    )


def _rounded_hours(plan: Plan) -> Band | None:
    return map_floats(plan.hours, four_digits)


def _rounded_cost(plan: Plan) -> Cost | None:
    price, hours = plan.draft.run.price, plan.hours
    return map_floats(price.of(plan.draft.machine.world, hours), four_digits) if price and hours else None


def _scale_rows(scale: Sequence[tuple[Machine, Plan | None]]) -> Iterator[ScaleRow]:
    """Yield a row for each machine, in the given order: fewest devices first."""
    fewest: float | None = None
    for machine, plan in scale:
        hours = _rounded_hours(plan) if plan else None
        spent = hours.expected * machine.world if hours else None
        fewest = fewest or spent
        yield ScaleRow(str(machine), machine.world, plan.draft.sharding if plan else None,
                       plan.draft.micro_batch if plan else None, hours, spent and four_digits(spent),
                       fewest / spent if fewest and spent else None, _rounded_cost(plan) if plan else None)  # fmt: skip


def _what_is_given_up(plan: Plan) -> Iterator[str]:
    draft = plan.draft
    if draft.method == "qlora":
        yield "base weights in 4 bit"
    if draft.optimizer:
        yield memory_savers()[draft.optimizer].gives_up
    if draft.recompute:
        yield "activations computed twice"
    if plan.speed in _LOSSES_BY_SPEED:
        yield _LOSSES_BY_SPEED[plan.speed]
    if draft.workers == 1:
        yield "samples loaded by one process a device"
    if draft.liger:
        yield "needs liger-kernel"
    yield from (f"needs {package}" for package in draft.packages)
    if draft.length < USUAL_LENGTHS[0]:
        yield f"samples cut at {draft.length} tokens"


def _tight_row(plan: Plan) -> TightRow:
    draft = plan.draft
    return TightRow(draft.method, draft.sharding, round(plan.device_gib, 1), round(plan.host_gib, 1), draft.length)


def _upgrade_row(upgrade: Upgrade) -> UpgradeRow:
    draft, machine = upgrade.draft, upgrade.draft.machine
    return UpgradeRow(str(machine), machine.host_ram_gib, draft.method, draft.sharding, upgrade.note)
