"""The two questions that `plan` answers: how to train this model on this machine, and which model to take."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from validator.catalogue import bundled_recipes
from validator.catalogue.recipe_copy import InstalledRecipe, install_recipe
from validator.errors import RecipeError
from validator.knowledge import devices, guidance, models, releases
from validator.knowledge.devices import Machine
from validator.knowledge.models import Model
from validator.plan import base_model, other_machines, recipe_text
from validator.plan.base_model import ModelChoice
from validator.plan.new_recipe import NewRecipe, can_wrap_layers
from validator.plan.other_machines import Upgrade
from validator.plan.search import (
    ADAPTER_METHODS,
    METHODS_BY_STAGE,
    PLANNED_METHODS,
    USUAL_LENGTHS,
    Plan,
    blocking_findings,
    find_plans,
    find_tight_plan,
    first_to_simulate,
    lengths_to_try,
    newest_release_findings,
    on_older_transformers,
)
from validator.recipe.recipe_file import load_recipe
from validator.rows.entry_inference import ROW_KINDS, TRAINABLE_STAGES
from validator.run import recipe_labels
from validator.run.dataset_registry import CountedSamples, Registry
from validator.run.settings import RunSettings
from validator.run.simulated import FindSimulations, PlanSimulations

if TYPE_CHECKING:
    from validator.run.user_data import UserData


@dataclass(frozen=True)
class Answer:
    """The answer of `plan`, best first: plans for one model (`plans`), or models for the machine (`choices`). If
    nothing fits: `reasons` that more memory does not remove, or `upgrades`, machines on which something fits, and
    `tight`, a run that fits without margin.

    `newest_release_findings` maps a fine-tuning method to the reasons why `check` refuses it with the newest
    transformers; such a method is planned for an earlier release. `methods_without_rates`: methods left out because no
    learning rate is published for them. `scale`: the best plan's method on other numbers of devices, if the user asked
    for it. The plans are for a part of `machine` if all of its devices would harm the model: `why_fewer_devices`, empty
    if they would not. `planned`: simulations of a model type that the formulas do not know."""

    model: Model | None
    machine: Machine
    samples: int | None
    plans: Sequence[Plan] = ()
    choices: Sequence[ModelChoice] = ()
    reasons: Sequence[str] = ()
    upgrades: Sequence[Upgrade] = ()
    tight: Plan | None = None
    stage: str = "sft"
    methods_without_rates: Sequence[str] = ()
    newest_release_findings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scale: Sequence[tuple[Machine, Plan | None]] = ()
    why_fewer_devices: str = ""
    planned: PlanSimulations | None = None

    @property
    def method(self) -> str:
        """Method of the best plan; `lora` if there is none."""
        return self.best.draft.method if self.best else "lora"

    @property
    def best(self) -> Plan | None:
        """The best plan; None if nothing fits."""
        if self.plans:
            return self.plans[0]
        return self.choices[0].plan if self.choices else None

    def device_count_notes(self) -> Iterator[str]:
        """Yield why the plan takes only a part of the machine, or why its steps are few, if more devices would harm the
        model."""
        draft, why = self.best.draft if self.best else None, self.why_fewer_devices
        if draft is None:
            return
        harm = "more devices would make the run shorter only by harming the model"
        if why and draft.machine.world > draft.most_devices:
            yield f"{draft.machine} has too many devices, but the run needs their memory: {why}; add samples"
        elif why:
            yield f"planned for {draft.machine}, a part of {self.machine}: {why}; {harm}"
        elif any(other_machines.has_too_many_devices(machine, draft) for machine, _ in self.scale):
            yield f"too many devices: {draft.why_no_more_devices}; {harm}"


def find_answer(
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
    simulations: FindSimulations | None = None,
    installed: Mapping[str, str] | None = None,
) -> Answer:
    """Return plans for the model or, if `model` is None, models for the machine. `samples` is the number of samples
    (None: the recommended number). If `length` or `method` is None, the search chooses it. `fsdp`: shard with FSDP in
    place of DeepSpeed. `own`: the user's own data. `network`: the network between nodes. `price`: the price of one
    device per hour. `simulations`: finds simulations for a model type that the formulas do not know. `installed`:
    releases of packages on the machine, as fields of a header block. Raises RecipeError for an unknown name, or if
    `length` would cut the images of the user's data."""
    target = read_machine(machine, host_ram_gib)._replace(
        network=network, price=price, installed=tuple((installed or {}).items())
    )
    if model is None:
        chosen = base_model.choose_models(target, samples, length, [method] if method else ADAPTER_METHODS, stage, own)
        first = chosen[0].plan.draft if chosen else None
        why = first.why_no_more_devices if first and first.most_devices < target.world else ""
        return Answer(None, target, samples, choices=chosen, stage=stage, why_fewer_devices=why)
    found_model, planned = _find_model(model, simulations)
    methods = _methods_to_plan(method, stage)
    if fsdp:
        _require_fsdp_support(found_model, target, methods)
    start, lengths = _first_recipe(found_model, target, methods[0], length, samples, stage, own, fsdp)
    if planned:
        planned.count(first_to_simulate(replace(start, method=each)).run for each in methods)
        start = replace(start, model=planned.model, planned=planned)
    left_out = () if method else [each for each in PLANNED_METHODS if each not in methods]
    unanswered = Answer(start.model, target, samples, stage=stage, methods_without_rates=left_out, planned=planned)
    return _answer_for_model(unanswered, start, methods, lengths)


def plans_on_machine(
    model: Model,
    machine: Machine,
    samples: int | None,
    length: int | None,
    method: str | None,
    stage: str,
    own: Registry | None,
) -> list[Plan]:
    """Return the plans that `find_answer` finds for this model and machine, without the reasons if there are none."""
    methods = _methods_to_plan(method, stage)
    start, lengths = _first_recipe(model, machine, methods[0], length, samples, stage, own)
    return _plans_on_useful_devices(start, methods, lengths)


def _plans_on_useful_devices(start: NewRecipe, methods: Sequence[str], lengths: Sequence[int]) -> list[Plan]:
    """Return the plans for the machine, or for the first part of it (`machines_to_try`) for which there are any."""
    tried = (find_plans(replace(start, machine=each), methods, lengths) for each in start.machines_to_try())
    return next(filter(None, tried), [])


def _methods_to_plan(method: str | None, stage: str) -> Sequence[str]:
    return [method] if method else guidance.methods_with_rates(METHODS_BY_STAGE.get(stage, PLANNED_METHODS), stage)


def _first_recipe(
    model: Model,
    target: Machine,
    method: str,
    length: int | None,
    samples: int | None,
    stage: str,
    own: Registry | None,
    fsdp: bool = False,
) -> tuple[NewRecipe, Sequence[int]]:
    """Return the recipe with which the search begins, and the sample lengths to try. Raises RecipeError if `length`
    would cut the images of the user's data."""
    start = NewRecipe(
        model,
        target,
        method,
        "fsdp" if fsdp else None,
        length=length or USUAL_LENGTHS[0],
        samples=samples,
        stage=stage,
        own_datasets=own,
    )
    if own and length and start.image_tokens > start.length:
        image_message = (
            f"the pictures of one row are up to {start.image_tokens:,} tokens, and one that is cut ends the run"
        )
        raise RecipeError(f"{image_message}; give --cutoff-len {start.length_with_images}, or leave it out")
    lengths = [length] if length else lengths_to_try(start)
    return replace(start, length=lengths[0]), lengths


def _find_model(name: str, simulations: FindSimulations | None) -> tuple[Model, PlanSimulations | None]:
    """Return the model with this name, and None. If the formulas do not know the type of the model, return the model
    and its simulations. Raises RecipeError if the model is not known and cannot be simulated."""
    try:
        return models.find_model_by_any_name(name), None
    except RecipeError:
        if simulations is None or (found_simulations := simulations(name)) is None:
            raise
        return found_simulations.model, found_simulations


def _answer_for_model(unanswered: Answer, start: NewRecipe, methods: Sequence[str], lengths: Sequence[int]) -> Answer:
    """Return the answer for one model: its plans; if nothing fits, the reasons that rule out all methods, or else the
    changes that would make something fit."""
    if plans := _plans_on_useful_devices(start, methods, lengths):
        aged = dict.fromkeys(plan.draft.method for plan in plans if plan.draft.transformers)
        why = start.why_no_more_devices if start.most_devices < start.machine.world else ""
        findings = _findings_by_method(replace(start, machine=plans[0].draft.machine), aged)
        return replace(unanswered, plans=plans, why_fewer_devices=why, newest_release_findings=findings)
    cures = {each: older for each in methods if (older := on_older_transformers(replace(start, method=each)))}
    if not cures and (reasons := _blocking_reasons(start, methods)):
        previous = releases.previous_major_pair()[1]
        lasting = _blocking_reasons(replace(start, transformers=previous), methods)
        return replace(
            unanswered,
            reasons=lasting or reasons,
            upgrades=other_machines.other_fitting_way(start, methods, previous),
        )
    if cures:
        start = replace(start, transformers=next(iter(cures.values())).transformers)
    helpful, near = other_machines.nearest_upgrades(start, methods), find_tight_plan(start, methods)
    return replace(unanswered, upgrades=helpful, tight=near, newest_release_findings=_findings_by_method(start, cures))


def _findings_by_method(start: NewRecipe, methods: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return for each fine-tuning method the reasons against a recipe with the newest transformers: findings of
    `check`, or too little host memory. The list of a method is empty if nothing is against it."""
    newest = replace(start, transformers=None)
    return {method: newest_release_findings(replace(newest, method=method)) for method in methods}


def _blocking_reasons(start: NewRecipe, methods: Sequence[str]) -> list[str]:
    """Return the findings that rule out all fine-tuning methods: the findings that every method has, or else the
    different findings of all methods. The list is empty if a method has no findings."""
    against = [blocking_findings(replace(start, method=each)) for each in methods]
    if not all(against):
        return []
    alike = [message for message in against[0] if all(message in each for each in against)]
    return alike or [*dict.fromkeys(message for each in against for message in each)]


def _require_fsdp_support(model: Model, target: Machine, methods: Sequence[str]) -> None:
    why = None
    if target.world == 1:
        why = f"FSDP shards over several devices, and {target} has one"
    elif not can_wrap_layers(model):
        why = f"FSDP wraps a model by its layer class, which is not known for {model.kind}"
    elif [*methods] == ["qlora"]:
        why = "4-bit weights are not planned with FSDP"
    if why:
        raise RecipeError(f"{why}; leave out --fsdp")


def with_counted_samples(
    own: Registry, model: str, stage: str, count: Callable[[RunSettings], CountedSamples | None]
) -> Registry:
    """Return the user's own data with their samples counted, by the tokenizer and the template of the model. `count`:
    counts the samples of a run. Text that is packed into blocks
    (stage pt), data for a model that is not known, and so few that none are held back, which tell little of those to
    come, are returned as they are."""
    with suppress(RecipeError):
        if stage != "pt":
            known, machine = models.find_model_by_any_name(model), devices.parse_machine("1xcpu")
            draft = NewRecipe(known, machine, "lora", stage=stage, own_datasets=own)
            if draft.evaluates:
                workspace = draft.run.workspace
                here = replace(workspace, folders=(Path.cwd(), *workspace.folders))  # the model may be a folder
                return own._replace(counted=count(replace(draft.run, workspace=here)))
    return own


def stage_and_samples(stage: str | None, samples: int | None, own: UserData | None) -> tuple[str, int | None]:
    """Return the stage and the number of samples to plan for: the user's options or, where they are None, those that
    suit the user's own data. Raises RecipeError if the stage cannot train on rows like the user's."""
    if own is None:
        return stage or "sft", samples
    stages = TRAINABLE_STAGES[own.form.stage]
    if stage and stage not in stages:
        raise RecipeError(
            f"`{own}` holds {ROW_KINDS[own.form.stage]}, which stage {stage} does not train; {stages[0]} does"
        )
    return stage or stages[0], samples or own.rows


def write_best_plan(best: Plan | None, path: Path, own: UserData | None = None) -> InstalledRecipe:
    """Write the best plan as a recipe file, with the files that it reads. `own`: the user's own data. Raises
    RecipeError if there is no plan, or if the file exists."""
    if best is None:
        raise RecipeError(f"nothing fits, so `{path}` is not written")
    draft = replace(best.draft, stem=path.stem)
    if own:  # the header recommends; the samples that there are stand in the data
        draft = replace(draft, samples=None if draft.recommended else own.rows)
    return install_recipe(path, recipe_text.render_recipe(draft), draft.run.args.values, own)


def read_machine(text: str, host_ram_gib: float | None) -> Machine:
    """Return the machine that a text describes, with the host memory of a usual server if `host_ram_gib` is None.
    Raises RecipeError if no machine is described, or if nothing is known of its device's memory."""
    target = devices.parse_machine(text, host_ram_gib)
    if target.device.usable_gib is None:
        raise RecipeError(
            f"machine `{text}`: no device memory is known for {target.device.id}, so nothing can be planned; "
            "`lmf-recipes copy tiny-cpu-lora .` tries the way on a CPU"
        )
    if host_ram_gib:
        return target
    return target._replace(host_ram_gib=other_machines.usual_host_ram(target), has_usual_ram=True)


# What follows the method in a file name where the stage is not sft.
_STAGE_PATTERN = "pt|rm|ppo|dpo|kto"


@cache
def _device_label_pattern() -> str:
    """Return a regular expression for the device labels in the catalogue's file names."""
    return "|".join(re.escape(recipe_labels.device_label(device)) for device in devices.device_ids())


def nearest_recipe(draft: NewRecipe) -> str | None:
    """Return the name of the catalogue recipe for the same model, method and stage that is most similar to the new
    recipe: the same device counts most, then the number of devices, then the variant. None if there is no such recipe:
    a recipe for another method, or for another checkpoint with the same short name, would mislead."""
    method = re.escape(recipe_labels.method_name(draft.run))
    form = re.compile(
        rf"{re.escape(str(draft.model.short))}-({_device_label_pattern()})(x\d+)?-{method}(?!-(?:{_STAGE_PATTERN}))(-.+)?"
    )
    wanted = form.fullmatch(draft.name)
    own = wanted.groups() if wanted else ()  # a device known by its memory alone is no label of a recipe
    alike = (match for name in bundled_recipes.recipe_names() if (match := form.fullmatch(name)))
    closest = sorted(alike, key=lambda match: [*map(operator.eq, own, match.groups())], reverse=True)
    names = (match.group() for match in closest)
    return next((name for name in names if _read_settings(name).get("model_name_or_path") == draft.model.name), None)


def matching_recipe(draft: NewRecipe) -> str | None:
    """Return the name of the catalogue recipe that does what the new recipe does, with the same machine, model, method
    and sample length; None if there is no such recipe."""
    name = nearest_recipe(draft)
    return name if name == draft.name and _read_settings(name).get("cutoff_len") == draft.length else None


@cache
def _read_settings(name: str) -> Mapping[str, object]:
    return load_recipe(str(bundled_recipes.recipe_path(name))).values
