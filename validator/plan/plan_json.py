"""The answer of `plan` as rows with notes. The fields of the rows are the keys of `plan --format json`, in their order.
GiB are 2^30 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from validator.finding import Assumption
from validator.knowledge import guidance, models, releases
from validator.knowledge.devices import Machine
from validator.knowledge.guidance import memory_savers
from validator.knowledge.models import Model
from validator.physics import Band, TimeTerm
from validator.plan import base_model
from validator.plan.answer import Answer, nearest_recipe
from validator.plan.new_recipe import NewRecipe
from validator.plan.other_machines import Upgrade, has_too_many_devices
from validator.plan.rented_machines import MachineOffer
from validator.plan.search import ABOUT_EQUAL_RATIO, USUAL_LENGTHS, Plan
from validator.run.assumptions import verdict_assumptions
from validator.run.recipe_arguments import Cost
from validator.run.simulated import PlanSimulations
from validator.wording import four_digits, map_floats

OFFLOAD_LEFT_OUT = "offload is left out, because the host's memory is not known; give --host-ram"
# What simulations call a method -> what plans do.
_METHODS_BY_SIMULATION = {"qlora4": "qlora"}


def answer_notes(answer: Answer) -> Iterator[str]:
    """Yield the notes on an answer: how device and model were understood, what is assumed, what is left out, and how
    the number of samples compares with public runs."""
    if answer.newest_release_findings:
        cured = (plan.draft.transformers for plan in answer.plans if plan.draft.transformers)
        older, newest = next(cured, releases.previous_major_pair()[1]), releases.newest_pair()[1]
        why = "; ".join(
            dict.fromkeys(reason for reasons in answer.newest_release_findings.values() for reason in reasons)
        )
        methods = ", ".join(answer.newest_release_findings)
        yield f"{methods} for transformers {older}, as a written recipe says; not for {newest}: {why}"
    yield from (*answer.device_count_notes(), *_machine_notes(answer.machine), *_precision_notes(answer))
    if answer.best and answer.best.pace:
        yield from (f"times are for {each}" for each in answer.best.pace.assumed)
    yield from _order_notes(answer.plans)
    yield from _batch_notes(answer.plans)
    if answer.planned:
        yield from _simulation_notes(answer, answer.planned)
    if answer.methods_without_rates:
        left_out = ", ".join(answer.methods_without_rates)
        yield f"{left_out} is left out: no learning rate for it in stage {answer.stage} is published"
    if answer.model is None:
        yield from _model_choice_notes(answer)
        return
    yield from _base_model_notes(answer.model)
    if not answer.plans:
        yield from _unpacked_model_notes(answer.model)
    if answer.plans and answer.model.quantized in ("gptq", "awq"):
        yield (
            f"the weights are quantized by {answer.model.quantized.upper()}, so that only adapters train (lora), and "
            "PEFT knows the layers of some of its kernels only: try a few steps with `lmf-recipes train --smoke`, "
            "or plan for the model that is not quantized with --method qlora"
        )
    if answer.best:
        yield from _template_notes(answer.best.draft)
        yield from _length_notes(answer.best.draft)
        if reason := answer.best.draft.why_not_evaluated:
            yield f"nothing is held back for evaluation: {reason}"
        yield from _sample_notes(answer.best.draft, answer.samples)


def _order_notes(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield why the first plan is not the soonest one of those for samples as long, if it is not."""
    alike = [plan for plan in plans[1:] if plan.draft.length == plans[0].draft.length]
    sooner = [plan for plan in alike if plan.hours and plan.expected_time < plans[0].expected_time]
    for plan in sooner:
        if plan.is_approximate and plan.draft.optimizer:
            saver = memory_savers()[plan.draft.optimizer]
            text = f"{plan.draft.method} by {saver.title} is sooner, and stands behind {plans[0].draft.method}"
            yield f"{text}, because it approximates AdamW: {saver.gives_up}"
    if methods := ", ".join(dict.fromkeys(plan.draft.method for plan in sooner if not plan.is_approximate)):
        error = f"less than {ABOUT_EQUAL_RATIO - 1:.0%}, which is within the error of the times"
        yield f"{plans[0].draft.method} stands first, as the usual method: {methods} is sooner by {error}"


def _batch_notes(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield how many samples an optimizer step takes in each plan, if the plans differ in it."""
    batches = dict.fromkeys((plan.draft.method, plan.draft.run.batch.effective_batch) for plan in plans)
    if len({batch for _, batch in batches}) > 1:
        listed = ", ".join(f"{method} {batch}" for method, batch in batches)
        yield f"samples of an optimizer step (micro x accum. x devices) differ: {listed}; more samples make fewer steps"


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
        yield OFFLOAD_LEFT_OUT


def _precision_notes(answer: Answer) -> Iterator[str]:
    """Yield the way out if a model cannot train in fp16, on a device that has no bf16."""
    if any("fp16" in reason for reason in answer.reasons) and not answer.machine.device.bf16:
        found = f"{answer.machine.device.id} has no bf16, and fp32 is not planned"
        yield f"{found}; take a machine that has bf16, or another model"


def _simulation_notes(answer: Answer, planned: PlanSimulations) -> Iterator[str]:
    """Yield notes on simulated memory: that the figures are simulated, which methods are missing and why."""
    yield f"memory is simulated, as no formula knows model type {planned.kind}; `check --simulate` judges the recipe"
    planned_methods = {plan.draft.method for plan in answer.plans}
    for why in dict.fromkeys(planned.failed.values()):
        methods = [
            _METHODS_BY_SIMULATION.get(method, method) for method, reason in planned.failed.items() if reason == why
        ]
        if missing_methods := [method for method in methods if method not in planned_methods]:
            yield f"{', '.join(missing_methods)} is left out: it {why}"
    if simulation_count := planned.used_up:
        yield (
            f"no more than {simulation_count} simulations are made at a time, and what was not simulated is taken not "
            "to fit; the same command goes on from there, --method or --cutoff-len need fewer"
        )


def _template_notes(draft: NewRecipe) -> Iterator[str]:
    """Yield notes on a model that is not in the tables: where its config.json was found, and which template it gets and
    why."""
    if draft.model.cached:
        yield f"the shapes of {draft.model.name} are those of its config.json in the {draft.model.cached} cache"
    if draft.model.identified_from and draft.stage != "pt":
        template_words = (
            f"template {draft.template}" if draft.template else "no template, so it is derived from the tokenizer"
        )
        yield f"{template_words}: {draft.model.identified_from}"


def _base_model_notes(model: Model) -> Iterator[str]:
    """Yield a note that names the chat-tuned model of the same family if the model is a base model, because their names
    are nearly the same."""
    tuned = models.find_model(model.hub[0]) if model.base and model.hub else None
    if tuned and not tuned.base:
        yield f"{model.name} is the base model; the one tuned for chat is {tuned.name}"


def _unpacked_model_notes(model: Model) -> Iterator[str]:
    """Yield a note that names a checkpoint of the same model without quantization if the model's own is unpacked by
    each process while it loads."""
    plain = (models.find_model(name) for name in model.hub if name != model.name)
    if model.quantized == "mxfp4" and (other := next((each for each in plain if each and not each.quantized), None)):
        yield (
            f"{model.name} holds 4-bit weights, which each process unpacks in main memory; {other.name} is the same "
            f"model unpacked: --model {other.name}"
        )


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


def _longest_sample(draft: NewRecipe) -> int | None:
    counted = draft.own_datasets.counted if draft.own_datasets else None
    return counted.longest if counted else None


def _length_notes(draft: NewRecipe) -> Iterator[str]:
    """Yield that a shorter `cutoff_len` than the usual one is taken because all samples are shorter, if it is."""
    longest = _longest_sample(draft)
    if longest and longest <= draft.length < USUAL_LENGTHS[0]:
        yield (
            f"cutoff_len {draft.length} cuts none of your samples, of which the longest has up to {longest:,} tokens; "
            "--cutoff-len leaves room for longer ones"
        )


def _sample_notes(draft: NewRecipe, samples: int | None) -> Iterator[str]:
    """Yield how the number of samples compares with public runs; without a number, the number for which the plan is
    made. Public numbers that count blocks of tokens are not compared, because the user's texts are not packed into
    blocks yet."""
    amounts = draft.guidance
    if amounts is None:
        return
    number, by = amounts.recommended
    if samples is None or amounts.unit != guidance.SAMPLE_UNIT:
        effect_words = f", the least with an effect {amounts.effect.samples:,}" if amounts.effect else ""
        yield f"the header states {guidance.count_in_words(number, amounts.unit)}, {by}; {amounts.usual}{effect_words}"
        return
    sample_count = guidance.count_in_words(samples, amounts.unit)
    if judgement := amounts.few(samples) or amounts.many(samples):
        yield f"{sample_count}: {judgement}"
    elif samples < amounts.low:
        yield f"{sample_count}: {amounts.usual}; fewer may do if each is checked"
    elif samples < number:
        yield f"{sample_count} are as many as usual: {amounts.usual}; {number:,} is {by}"


_LOSSES_BY_SPEED = {
    "medium": "weights gathered from the other devices",
    "slow": "optimizer updated in host memory",
    "slowest": "weights fetched from host memory",
}


@dataclass(frozen=True)
class MachineRow:
    """The machine to plan for. `host_ram_gib`: main memory of one node, in GiB. `usable_gib`: the memory of one device
    that a process can use, in GiB."""

    name: str
    host_ram_gib: float | None
    usable_gib: float | None


@dataclass(frozen=True)
class PlanRow:
    """A run that fits, and what it gives up. `zero`: its DeepSpeed file. `set`: the recipe's settings. `speed`: the
    speed class of the search. `samples`: rows of the user's own data, or else the number that is planned for. `hours`,
    `steps`: of all epochs over these samples; None if no rates are published for the device. `by_length`: hours by mean
    sample length in tokens; empty if the sample lengths are known. `assumes`: what the verdict on memory takes for
    granted."""

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
    steps: int | None
    assumes: tuple[Assumption, ...]


@dataclass(frozen=True)
class ScaleRow:
    """The same training on another number of devices. `optimizer`: the memory-saving optimizer; None for AdamW.
    `efficiency`: device hours on the smallest number of devices that suffices, divided by those on this number; None if
    no run fits, its time is not known, or its optimizer differs from that on the most devices; above 1 if the smallest
    gives up more or has a smaller micro batch. `too_many_devices`: not planned, because so many harm the model."""

    machine: str
    devices: int
    zero: str | None
    optimizer: str | None
    micro_batch: int | None
    hours: Band | None
    device_hours: float | None
    efficiency: float | None
    money: Cost | None
    gives_up: str
    too_many_devices: bool


@dataclass(frozen=True)
class _ChosenModel:
    model: str
    recommended: int | None
    cost: int


@dataclass(frozen=True)
class ChoiceRow(PlanRow, _ChosenModel):
    """A model that suits the machine and the samples, with its plan. The fields of `_ChosenModel` come first, because a
    dataclass takes the fields of its last base class first."""


@dataclass(frozen=True)
class UpgradeRow:
    """A changed machine or request with which a run fits. `zero` is the run's DeepSpeed file, and `note` says what was
    changed."""

    machine: str
    host_ram_gib: float | None
    method: str
    zero: str | None
    note: str


@dataclass(frozen=True)
class TightRow:
    """A run that is expected to fit, but without a margin. `zero` is its DeepSpeed file. `device_gib` and `host_gib`
    are the expected memory in GiB."""

    method: str
    zero: str | None
    device_gib: float
    host_gib: float
    cutoff_len: int


@dataclass(frozen=True)
class AnswerRows:
    """The complete answer. At most one of `plans`, `choices` and `reasons` has entries. `upgrades`: changes of machine
    or request that would help if nothing fits; if `reasons` has entries, another method or devices that have bf16.
    `tight`: a run that fits without margin, if no run fits with a margin. `scale`: the same training on other numbers
    of devices, if the user asked for it. `machines`: the machines that the user asked to compare, cheapest first; the
    other fields are about the first of them."""

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
    machines: Sequence[MachineOffer]


def answer_rows(answer: Answer, machines: Sequence[MachineOffer] = ()) -> AnswerRows:
    """Return the answer as rows to print, with GiB rounded to 0.1. `machines`: the compared machines, if the answer is
    about the first of several."""
    machine = answer.best.draft.machine if answer.best else answer.machine
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
        scale=[*_scale_rows(answer.scale, answer.best.draft)] if answer.best else [],
        machines=machines,
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
        samples=draft.run.data.rows or draft.planned_samples,
        set={**draft.run.args.values, "output_dir": draft.output},
        gives_up=", ".join(_what_is_given_up(plan)) or "nothing",
        nearest=nearest_recipe(draft),
        hours=hours,
        device_hours=four_digits(hours.expected * draft.machine.world) if hours else None,
        bottleneck=plan.pace.step.bottleneck if plan.pace else None,
        money=_rounded_cost(plan),
        by_length=map_floats(plan.by_length, four_digits),
        steps=plan.pace.steps if plan.pace else None,
        assumes=verdict_assumptions(draft.run),
    )


def _rounded_hours(plan: Plan) -> Band | None:
    return map_floats(plan.hours, four_digits)


def _rounded_cost(plan: Plan) -> Cost | None:
    price, hours = plan.draft.run.price, plan.hours
    return map_floats(price.of(plan.draft.machine.world, hours), four_digits) if price and hours else None


def _scale_rows(scale: Sequence[tuple[Machine, Plan | None]], best: NewRecipe) -> Iterator[ScaleRow]:
    """Yield a row for each machine, in the given order, which begins with the fewest devices."""
    usual = next((plan.draft.optimizer for _, plan in reversed(scale) if plan), None)
    fewest: float | None = None
    for machine, plan in scale:
        hours, optimizer = _rounded_hours(plan) if plan else None, plan.draft.optimizer if plan else None
        spent = hours.expected * machine.world if hours else None
        fewest = fewest or (spent if optimizer == usual else None)
        yield ScaleRow(
            machine=str(machine),
            devices=machine.world,
            zero=plan.draft.sharding if plan else None,
            optimizer=memory_savers()[optimizer].title if optimizer else None,
            micro_batch=plan.draft.micro_batch if plan else None,
            hours=hours,
            device_hours=spent and four_digits(spent),
            efficiency=fewest / spent if fewest and spent and optimizer == usual else None,
            money=_rounded_cost(plan) if plan else None,
            gives_up=", ".join(_what_is_given_up(plan)) if plan else "",
            too_many_devices=has_too_many_devices(machine, best),
        )


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
    if draft.no_evaluation:
        yield "evaluation"
    if draft.workers == 1:
        yield "samples loaded by one process a device"
    if draft.liger:
        yield "needs liger-kernel"
    yield from (f"needs {package}" for package in draft.packages)
    if draft.length < (_longest_sample(draft) or USUAL_LENGTHS[0]):
        yield f"samples cut at {draft.length} tokens"


def _tight_row(plan: Plan) -> TightRow:
    draft = plan.draft
    return TightRow(draft.method, draft.sharding, round(plan.device_gib, 1), round(plan.host_gib, 1), draft.length)


def _upgrade_row(upgrade: Upgrade) -> UpgradeRow:
    draft, saver = upgrade.draft, memory_savers().get(upgrade.draft.optimizer or "")
    note = f"{upgrade.note}, with {saver.title}: {saver.gives_up}" if saver else upgrade.note
    return UpgradeRow(str(draft.machine), draft.machine.host_ram_gib, draft.method, draft.sharding, note)
