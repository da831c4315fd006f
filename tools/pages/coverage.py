"""The map of models, machines and methods: a recipe, a plan that fits, or why nothing does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from validator.catalogue import bundled_recipes
from validator.check import checking
from validator.knowledge import devices, models
from validator.knowledge.devices import Machine
from validator.knowledge.guidance import memory_savers
from validator.knowledge.models import Model
from validator.physics.estimate import GIB
from validator.plan import other_machines, recipe_text
from validator.plan import search as plan
from validator.plan.new_recipe import NewRecipe
from validator.recipe.known_folders import catalogue_root
from validator.recipe.recipe_file import parse_recipe
from validator.run.prediction import predict
from validator.run.recipe_labels import method_name
from validator.run.settings import RunSettings

METHODS = ("qlora", "lora", "full")
# Machines of the map, from small to large, and the host memory of those whose usual server is not known, GiB.
MACHINES = {
    "1xt4-16g": None, "1xrtx-4090": 64, "2xrtx-4090": 128, "1xrtx-5090": 96, "1xa6000-48g": 128, "1xa100-80g": None,
    "4xa100-80g": None, "8xrtx-4090": 512, "8xv100-32g": None, "8xa100-80g": None, "8xh100-80g": None,
    "8xh200-141g": None, "8xascend-910b-32g": None, "8xascend-910b-64g": None, "2x8xa100-80g": None,
    "4x8xh100-80g": None,
}  # fmt: skip
TITLES = {"qlora": "4-bit adapters (QLoRA)", "lora": "Adapters (LoRA)", "full": "All parameters (full)"}
# Recipes for another card of the same size stand for it, too.
ALIKE = {"rtx-3090": "rtx-4090", "a10-24g": "rtx-4090", "l4-24g": "rtx-4090", "l40s-48g": "a6000-48g"}


def columns() -> Iterator[Machine]:
    for name, ram in MACHINES.items():
        machine = devices.parse_machine(name, ram)
        yield machine if ram else machine._replace(host_ram_gib=other_machines.usual_host_ram(machine))


def known() -> list[Model]:
    return [models.find_model(key) for key in models.offered_models()]


def page() -> str:
    """The three tables and the reasons behind their gaps."""
    recipes = list(bundled_recipes.resolved_recipes())
    return (
        "\n".join(part for method in METHODS for part in _table(method, recipes)) + "\n" + "\n".join(_reasons()) + "\n"
    )


def _table(method: str, recipes: Sequence[RunSettings]) -> Iterator[str]:
    targets = list(columns())
    yield f"## {TITLES[method]}\n"
    yield "| model | " + " | ".join(str(target) for target in targets) + " |"
    yield "| --- |" + " --- |" * len(targets)
    for model in known():
        cells = (_cell(model, target, method, recipes) for target in targets)
        yield f"| {model.short} | " + " | ".join(cells) + " |"
    yield ""


def _cell(model: Model, target: Machine, method: str, recipes: Sequence[RunSettings]) -> str:
    for job in recipes:
        if _same(job, model, target) and method_name(job) == method:
            return f"[recipe](../../recipes/{Path(job.workspace.recipe).name})"
    return _excluded(model, target, method) or verdict(model, target, method)


def _same(job: RunSettings, model: Model, target: Machine) -> bool:
    if job.model is None or job.machine is None or job.model.short != model.short:
        return False
    device = ALIKE.get(job.machine.device.id, job.machine.device.id)
    return (job.machine.nodes, job.machine.devices, device) == (target.nodes, target.devices, target.device.id)


def _excluded(model: Model, target: Machine, method: str) -> str | None:
    if _refused(model):
        return "code"
    if method == "qlora" and 4 not in target.device.bitsandbytes:
        return "4 bit"
    return "kept" if method == "qlora" and model.quantized else None


@cache
def _refused(model: Model) -> str | None:
    """What `check` says against the model itself, whatever the machine."""
    made = NewRecipe(model, devices.parse_machine("8xh200-141g", 4096.0), "lora")
    found = checking.check_document(
        parse_recipe(str(catalogue_root() / "plan.yaml"), recipe_text.render_recipe(made))
    ).diagnostics
    return next((each.message for each in found if each.code.startswith("TRA9")), None)


def verdict(model: Model, target: Machine, method: str) -> str:
    """`fits` where any way that the planner knows does; else what is missing in the most frugal one."""
    start = NewRecipe(model, target, method)
    names = (None, *memory_savers()) if method == "full" and target.world == 1 else (None,)
    predictions = []
    for saver in names:
        for made in plan.most_frugal_runs(replace(start, optimizer=saver)):
            prediction = predict(made.draft.run)
            if prediction.verdict == "fits":
                return "fits"
            predictions.append(prediction)
    away = [each.host_memory.high for each in predictions if each.host_memory and each.device_verdict == "fits"]
    if away:
        return f"host {min(away) / GIB:,.0f}"
    least = min((each.device_memory.high for each in predictions if each.device_memory), default=None)
    return f"{least / GIB:,.0f}" if least else "-"


def _reasons() -> Iterator[str]:
    yield "## Why not\n"
    yield "- **a number**: GiB that one device needs at least, with every saving the planner knows, at 2048 tokens and"
    yield "  the upper end of the 90 % band. `lmf-recipes plan` names the smallest change of machine that helps."
    yield "- **host** and a number: the devices would do with weights or optimizer offloaded, which takes so many GiB"
    yield "  of the node's main memory."
    yield "- **4 bit**: no released bitsandbytes for the device."
    yield "- **kept**: the checkpoint is quantized already."
    for model in known():
        if found := _refused(model):
            yield f"- **code**, {model.short}: {found}."
