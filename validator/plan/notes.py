"""What to know beside the plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from validator.plan import choice
from validator.plan.answer import Answer
from validator.plan.draft import Draft
from validator.tables import guidance, models, releases
from validator.tables.machines import Machine
from validator.tables.models import Model

if TYPE_CHECKING:  # which few plans need
    from validator.trial.planned import Planned

# What simulations call a method -> what plans do.
_METHODS = {"qlora4": "qlora"}


def notes(answer: Answer) -> Iterator[str]:
    """Which device and model were meant, what is assumed or left out, and whether the samples suffice."""
    if answer.outdated:
        cured = (plan.draft.transformers for plan in answer.plans if plan.draft.transformers)
        older, newest = next(cured, releases.previous()[1]), releases.newest()[1]
        why = "; ".join(dict.fromkeys(reason for reasons in answer.outdated.values() for reason in reasons))
        methods = ", ".join(answer.outdated)
        yield f"{methods} for transformers {older}, as a written recipe says; not for {newest}: {why}"
    yield from _of_machine(answer.machine)
    if answer.best and answer.best.pace:
        yield from (f"times are for {each}" for each in answer.best.pace.assumed)
    if answer.planned:
        yield from _of_simulations(answer, answer.planned)
    if answer.unrated:
        yield f"{', '.join(answer.unrated)} is left out: no learning rate for it in stage {answer.stage} is published"
    if answer.model is None:
        yield from _of_any(answer)
        return
    yield from _of_base(answer.model)
    if answer.best:
        yield from _of_template(answer.best.draft)
        yield from _of_amount(answer.best.draft, answer.samples)


def _of_machine(machine: Machine) -> Iterator[str]:
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


def _of_simulations(answer: Answer, planned: Planned) -> Iterator[str]:
    """What the figures rest on, where no formula knows the model, and what is not among them."""
    yield f"memory is simulated, as no formula knows model type {planned.kind}; `check --simulate` judges the recipe"
    there = {plan.draft.method for plan in answer.plans}
    for why in dict.fromkeys(planned.failed.values()):
        methods = [_METHODS.get(method, method) for method, its in planned.failed.items() if its == why]
        if lacking := [method for method in methods if method not in there]:
            yield f"{', '.join(lacking)} is left out: it {why}"
    if planned.trials.spent:
        made = planned.trials.made
        yield (
            f"no more than {made} simulations are made at a time, and what was not simulated is taken not to fit; the "
            "same command goes on from there, --method or --cutoff-len need fewer"
        )


def _of_template(draft: Draft) -> Iterator[str]:
    """Where a model that is not in the catalogue was found, which template it gets, and how that was told."""
    if draft.model.cached:
        yield f"the shapes of {draft.model.name} are those of its config.json in the {draft.model.cached} cache"
    if draft.model.how and draft.stage != "pt":
        named = f"template {draft.template}" if draft.template else "no template, so it is derived from the tokenizer"
        yield f"{named}: {draft.model.how}"


def _of_base(model: Model) -> Iterator[str]:
    """A base model goes by nearly the same name as the one tuned for chat."""
    tuned = models.model(model.hub[0]) if model.base and model.hub else None
    if tuned and not tuned.base:
        yield f"{model.name} is the base model; the one tuned for chat is {tuned.name}"


def _of_any(answer: Answer) -> Iterator[str]:
    came = f"models of the last {choice.CURRENT} months that train within {choice.SOON} h come first"
    if answer.samples is None:
        yield f"{came}, the largest of each size; --samples N takes those that suit so many, --model NAME any other"
        return
    yield f"{came}; --model NAME takes any other"
    if answer.best:
        yield from _of_amount(answer.best.draft, answer.samples)


def _of_amount(draft: Draft, samples: int | None) -> Iterator[str]:
    """The samples there are against those of public runs; without any, what the plan is made for. Texts to be packed
    are no blocks, so these are not compared."""
    known = draft.guidance
    if known is None:
        return
    number, by = known.recommended
    if samples is None or known.unit != guidance.SAMPLE:
        seen = f", the least with an effect {known.effect.samples:,}" if known.effect else ""
        yield f"the header states {guidance.counted(number, known.unit)}, {by}; {known.usual}{seen}"
        return
    there = guidance.counted(samples, known.unit)
    if judged := known.few(samples) or known.many(samples):
        yield f"{there}: {judged}"
    elif samples < known.low:
        yield f"{there}: {known.usual}; fewer may do if each is checked"
    elif samples < number:
        yield f"{there} are as many as usual: {known.usual}; {number:,} is {by}"
