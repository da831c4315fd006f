"""The two questions that `plan` answers: how to train this model on this machine, and which model to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from validator.diagnostic import RecipeError
from validator.job.datasets import Registry
from validator.plan import choice, upgrade, writing
from validator.plan.choice import Choice
from validator.plan.draft import Draft, can_wrap
from validator.plan.search import (
    ADAPTERS,
    LENGTHS,
    METHODS,
    ORDER,
    Plan,
    begun,
    cured,
    obstacles,
    outdating,
    search,
    tight,
    usual,
)
from validator.plan.upgrade import Upgrade
from validator.recipes.place import Placed, place
from validator.samples.kinds import KINDS, STAGES
from validator.tables import guidance, machines, models, releases
from validator.tables.machines import Machine
from validator.tables.models import Model

if TYPE_CHECKING:
    from validator.study.own import Own
    from validator.trial.planned import Planned
    from validator.trial.trials import Trials


@dataclass(frozen=True)
class Answer:
    """What fits, best first: plans for the model, or choices of a model. Where nothing does: the reasons that memory
    cannot cure, or machines on which it would, and a run that is tight. `outdated`: by method that is planned for an
    earlier transformers, what `check` has against it with the newest. `scale`: the best plan's method on other numbers
    of devices, where that is asked for. `planned`: what simulated a model that no formula knows."""

    model: Model | None
    machine: Machine
    samples: int | None
    plans: Sequence[Plan] = ()
    choices: Sequence[Choice] = ()
    reasons: Sequence[str] = ()
    upgrades: Sequence[Upgrade] = ()
    tight: Plan | None = None
    stage: str = "sft"
    unrated: Sequence[str] = ()
    outdated: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scale: Sequence[tuple[Machine, Plan | None]] = ()
    planned: Planned | None = None

    @property
    def method(self) -> str:
        """The method of the best plan, `lora` where there is none."""
        return self.best.draft.method if self.best else "lora"

    @property
    def best(self) -> Plan | None:
        """The first plan; None where nothing fits."""
        if self.plans:
            return self.plans[0]
        return self.choices[0].plan if self.choices else None


def answer(
    model: str | None,
    machine: str,
    samples: int | None = None,
    host_ram_gib: float | None = None,
    length: int | None = None,
    method: str | None = None,
    stage: str = "sft",
    fsdp: bool = False,
    own: Registry | None = None,
    network: str | None = None,
    price: str | None = None,
    trials: Trials | None = None,
) -> Answer:
    """Plans for the model, or models for the machine; `own` holds the user's data, `network` joins nodes, `price` is
    that of a device and hour, `trials` simulates a model that no formula knows. Raises RecipeError for what is not
    known, and for a length that cuts the pictures of the data."""
    target = _machine(machine, host_ram_gib)._replace(network=network, price=price)
    if model is None:
        chosen = choice.choose(target, samples, length, [method] if method else ADAPTERS, stage, own)
        return Answer(None, target, samples, choices=chosen, stage=stage)
    wanted, planned = _wanted(model, trials)
    methods = [method] if method else guidance.rated(ORDER.get(stage, METHODS), stage)
    if fsdp:
        _require_sharding(wanted, target, methods)
    engine = "fsdp" if fsdp else None
    start = Draft(
        wanted, target, methods[0], engine, length=length or LENGTHS[0], samples=samples, stage=stage, own=own
    )
    if own and length:
        _require_length(start)
    lengths = [length] if length else usual(start)
    start = replace(start, length=lengths[0])
    if planned:
        planned.count(begun(replace(start, method=each)).job for each in methods)
        start = replace(start, model=planned.model, planned=planned)
    left_out = () if method else [each for each in METHODS if each not in methods]
    unanswered = Answer(start.model, target, samples, stage=stage, unrated=left_out, planned=planned)
    return _planned(unanswered, start, methods, lengths)


def _wanted(name: str, trials: Trials | None) -> tuple[Model, Planned | None]:
    """The model by that name; one that no formula knows with what will simulate it, before it is counted."""
    try:
        return models.model_by_any_name(name), None
    except RecipeError:
        if trials is None:
            raise
        from validator.trial.planned import planned  # which no model that is known waits for

        if (there := planned(name, trials)) is None:
            raise
        return there.model, there


def _planned(unanswered: Answer, start: Draft, methods: Sequence[str], lengths: Sequence[int]) -> Answer:
    """The answer about one model: plans, what forbids any, or what would help."""
    if plans := search(start, methods, lengths):
        aged = dict.fromkeys(plan.draft.method for plan in plans if plan.draft.transformers)
        return replace(unanswered, plans=plans, outdated=_outdated(start, aged))
    cures = {each: older for each in methods if (older := cured(replace(start, method=each)))}
    if not cures and (reasons := _obstacles(start, methods)):
        previous = releases.previous()[1]
        lasting = _obstacles(replace(start, transformers=previous), methods)
        return replace(unanswered, reasons=lasting or reasons, upgrades=upgrade.other_method(start, methods, previous))
    if cures:
        start = replace(start, transformers=next(iter(cures.values())).transformers)
    helpful, near = upgrade.nearest(start, methods), tight(start, methods)
    return replace(unanswered, upgrades=helpful, tight=near, outdated=_outdated(start, cures))


def _outdated(start: Draft, methods: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """By method that is planned for an earlier transformers, what stands against the newest."""
    newest = replace(start, transformers=None)
    return {method: outdating(replace(newest, method=method)) for method in methods}


def _obstacles(start: Draft, methods: Sequence[str]) -> list[str]:
    return _reasons([obstacles(replace(start, method=each)) for each in methods])


def _reasons(against: Sequence[Sequence[str]]) -> list[str]:
    """What stands against all methods alike; else what stands against each; nothing where one has no obstacle."""
    if not all(against):
        return []
    alike = [message for message in against[0] if all(message in each for each in against)]
    return alike or [*dict.fromkeys(message for each in against for message in each)]


def _require_length(start: Draft) -> None:
    if start.pictures > start.length:
        said = f"the pictures of one row are up to {start.pictures:,} tokens, and one that is cut ends the run"
        raise RecipeError(f"{said}; give --cutoff-len {start.holding}, or leave it out")


def _require_sharding(model: Model, target: Machine, methods: Sequence[str]) -> None:
    why = None
    if target.world == 1:
        why = f"FSDP shards over several devices, and {target} has one"
    elif not can_wrap(model):
        why = f"FSDP wraps a model by its layer class, which is not known for {model.kind}"
    elif [*methods] == ["qlora"]:
        why = "4-bit weights are not planned with FSDP"
    if why:
        raise RecipeError(f"{why}; leave out --fsdp")


def meant(stage: str | None, samples: int | None, own: Own | None) -> tuple[str, int | None]:
    """The stage and the number of samples: those asked for, else those of the user's own data. Raises RecipeError where
    that stage does not train such rows."""
    if own is None:
        return stage or "sft", samples
    known = STAGES[own.form.stage]
    if stage and stage not in known:
        raise RecipeError(f"`{own}` holds {KINDS[own.form.stage]}, which stage {stage} does not train; {known[0]} does")
    return stage or known[0], samples or own.rows


def write(best: Plan | None, path: Path, own: Own | None = None) -> Placed:
    """The best plan as a recipe file, with what it reads; `own` is the user's own data. Raises RecipeError where there
    is none or the file exists."""
    if best is None:
        raise RecipeError(f"nothing fits, so `{path}` is not written")
    draft = replace(best.draft, stem=path.stem)
    if own:  # the header recommends; the samples that there are stand in the data
        draft = replace(draft, samples=None if draft.recommended else own.rows)
    return place(path, writing.text(draft), draft.job.values, own)


def _machine(text: str, host_ram_gib: float | None) -> Machine:
    target = machines.machine(text, host_ram_gib)
    if target.device.usable_gib is None:
        raise RecipeError(
            f"machine `{text}`: no device memory is known for {target.device.id}, so nothing can be planned; "
            "`lmf-recipes copy tiny-cpu-lora .` tries the way on a CPU"
        )
    return target if host_ram_gib else target._replace(host_ram_gib=upgrade.usual_ram(target))
