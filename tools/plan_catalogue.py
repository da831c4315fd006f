"""Plan and write the recipes that tools/wanted_recipes.yaml asks for. Run `make tables` afterwards.

python tools/plan_catalogue.py          write what is missing, and remove what nobody wishes
python tools/plan_catalogue.py --new    write what is missing, in seconds: what has a recipe is not planned again
python tools/plan_catalogue.py --all    write every recipe of the table again, after the memory model has changed

How a recipe is chosen: the soonest to finish of the planner's runs that fit and recompute activations (copies are given
longer samples than their origin), at the longest length of its use. The recipes that wanted_recipes.yaml keeps were
written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from validator.knowledge import devices, models
from validator.knowledge.devices import Machine
from validator.knowledge.guidance import memory_savers
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.plan import other_machines, recipe_text
from validator.plan import search as plan
from validator.plan.new_recipe import NewRecipe
from validator.recipe.recipe_file import load_recipe
from validator.recipe.safe_read import read_yaml
from validator.run import needed_packages
from validator.run.sample_lengths import published_tokens

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "recipes"
FIELDS = {"machine", "host_ram", "use", "method", "models", "why"}
# Devices from which public data are trained on whole, unless that takes longer than so many hours.
SERVER, DAY = 8, 8.0
# Liger is worth its package where less than this share of the memory is left, or that share of the time is taken.
MARGIN, FASTER = 0.03, 0.8
# The longest of all samples may be so much longer than the longest that was counted.
SPARE = 1.1
# Starts of licences that the hub asks to be accepted before it gives the weights.
GATED = ("llama", "gemma")


@dataclass(frozen=True)
class Wish:
    """One recipe that is asked for: a model, a machine, a use of recipe_uses.yaml, a method with its variant, such as
    lora or full-8bit, and why somebody would start it."""

    model: Model
    machine: Machine
    use: str
    method: str
    why: str

    @property
    def uses(self) -> Mapping[str, Any]:
        """The use's row of recipe_uses.yaml."""
        row: Mapping[str, Any] = uses()[self.use]
        return row

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of LLaMA-Factory to choose from."""
        first = self.method.partition("-")[0]
        return plan.ADAPTER_METHODS if first == "adapter" else (first,)

    def start(self, method: str, length: int, small: bool) -> NewRecipe:
        """The draft with all that is asked for and nothing else decided; `small`: on the public data of fewer rows."""
        row, variants = self.uses, self.method.split("-")[1:]
        extra = row.get("extra", {})
        if small and "small" in row:
            extra = {**extra, "dataset": {**extra["dataset"], "dataset": row["small"]}}
        return NewRecipe(
            self.model,
            self.machine,
            method,
            "fsdp" if "fsdp" in variants else None,
            length=length,
            stage=row["stage"],
            optimizer=next((word for word in variants if word in memory_savers()), None),
            public=True,
            extra=extra,
            drop=tuple(row.get("drop", ())),
            use=row.get("word", ""),
            transformers=row.get("transformers"),
        )


@cache
def uses() -> Mapping[str, Mapping[str, Any]]:
    """What recipes are for, by the word that wishes take."""
    found: Mapping[str, Mapping[str, Any]] = read_yaml(str(ROOT / "tools" / "recipe_uses.yaml"))
    return found


@cache
def rows() -> list[Mapping[str, Any]]:
    """The rows of wanted_recipes.yaml: `keep` names recipes that were written by hand, the others ask for recipes."""
    found: list[Mapping[str, Any]] = read_yaml(str(ROOT / "tools" / "wanted_recipes.yaml"))
    return found


def wishes() -> Iterator[Wish]:
    """Every wish of the table."""
    for row in rows():
        if "keep" in row:
            continue
        assert row.keys() <= FIELDS, f"is there a comma outside of quotes? {row}"
        found = devices.parse_machine(row["machine"], row.get("host_ram"))
        machine = found if found.host_ram_gib else found._replace(host_ram_gib=other_machines.usual_host_ram(found))
        for name in row["models"]:
            model = models.find_model(name)
            if uses()[row["use"]]["stage"] == "pt":
                model = next((base for hub in model.hub if (base := models.find_model(hub)).base), model)
            yield Wish(model, machine, row["use"], row["method"], row["why"])


def fulfil(wish: Wish) -> NewRecipe | None:
    """The run that the recipe describes, on fewer rows where it would not end the same day; None where nothing fits."""
    found = chosen(wish, wish.machine.world < SERVER)
    timed = plan.Plan(found, "fast").pace if found else None
    late = timed is not None and timed.hours is not None and timed.hours.expected > DAY
    return chosen(wish, True) if late else found


def chosen(wish: Wish, small: bool) -> NewRecipe | None:
    """The run at the longest length at which part of the data can be held back, else at the longest that fits. A
    shorter one where it is clearly sooner and no sample reaches it, of which the longest was counted in a part."""
    if wish.uses.get("flash") and not wish.machine.device.flash_attention:
        return None
    runs = [run for length in wish.uses["lengths"] if (run := at_length(wish, length, small))]
    found = next((run for run in runs if run.evaluates), next(iter(runs), None))
    for run in runs:
        known = published_tokens(run.run)
        whole = known is not None and SPARE * known[1] < run.length
        if not (found and whole and run.evaluates >= found.evaluates):
            continue
        if plan.Plan(run, "fast").is_clearly_sooner(plan.Plan(found, "fast")):
            found = run
    return found


def at_length(wish: Wish, length: int, small: bool) -> NewRecipe | None:
    """The soonest run at a length that starts plainly, if possible with the release that the use names; None where
    nothing fits."""
    starts = [wish.start(method, length, small) for method in wish.methods]
    starts += [older for start in starts if (older := plan.on_older_transformers(start))]
    found = [
        best for start in starts if (best := plan.first_plan(start, (start.method,))) and starts_plainly(best.draft)
    ]
    if not found:
        return None
    best = min(found, key=lambda each: (each.draft.transformers != wish.uses.get("transformers"), each.duration))
    return continued(wish, with_liger(best.draft))


def with_liger(draft: NewRecipe) -> NewRecipe:
    """The run with liger's kernels where they save a fifth of the time, as more samples then fit at once, or where
    the memory left at the upper end of the 90 % band is small."""
    fused = replace(draft, liger=True)
    if draft.liger or not draft.liger_helps or not fused.fits or plan.blocking_findings(fused):
        return draft
    before, after = (
        plan.Plan(draft, "fast"),
        plan.with_rarer_checkpoints(plan.Plan(plan.with_best_micro_batch(fused), "fast")),
    )
    short = before.headroom_gib < MARGIN * (draft.machine.device.usable_gib or 0.0)
    return after.draft if short or after.duration < FASTER * before.duration else draft


def starts_plainly(draft: NewRecipe) -> bool:
    """True if `llamafactory-cli train` is enough: on one device DeepSpeed wants torchrun."""
    return draft.machine.world > 1 or draft.run.deepspeed is None


def continued(wish: Wish, found: NewRecipe) -> NewRecipe | None:
    """The run with the adapter that it starts from, where the use asks for that. LLaMA-Factory merges it into the
    model, which is then the reference, too; None where it cannot, as weights are quantized or sharded by ZeRO-3."""
    before = wish.uses.get("after")
    if before is None:
        return found
    first = fulfil(replace(wish, use=before))
    if first is None or {first.method, found.method} != {"lora"} or found.run.zero_stage == 3:
        return None
    extra = {**found.extra, "model": {"adapter_name_or_path": f"saves/{first.name}", "create_new_adapter": True}}
    return replace(found, extra=extra)


def head(wish: Wish, found: NewRecipe, following: str | None = None) -> list[str]:
    """The lines at the head of the recipe, the last of which says what it needs."""
    lines = description(wish.uses, found, f"{wish.why}; {published(found)}", following)
    if wanted := needs(found):
        lines.append(f"Needs: {'; '.join(wanted)}.")
    return lines


def description(use: Mapping[str, Any], draft: NewRecipe, why: str, following: str | None = None) -> list[str]:
    """What a recipe is for, why these values, what to change first, and when to take another recipe."""
    whole = any(tower.fixed_tokens for tower in draft.model.arch.towers)
    finer = (
        "crop_to_patches: true where small print matters" if whole else "image_max_pixels, up where small print matters"
    )
    other = f"{use['other']}; {following} goes on from this adapter" if following else use["other"]
    epochs = "; epochs if eval_loss rises" if draft.evaluates else ""
    first = use["first"].format(finer=finer, epochs=epochs)
    return [f"For: {use['for']}.", f"Why: {why}.", f"Change first: {first}.", f"Another: {other}."]


def needs(draft: NewRecipe) -> list[str]:
    """What a run needs beside LLaMA-Factory and what its extras bring: an adapter, packages, a release."""
    first = draft.extra.get("model", {}).get("adapter_name_or_path")
    adapter = [f"the adapter of {Path(first).name}, trained first"] if first else []
    release = [f"transformers=={draft.transformers.split()[-1]}"] if draft.transformers else []
    if draft.transformers and (experts := plan.loaded_experts(replace(draft, transformers=None))):
        release = [f"{release[0]}, as newer ones load {experts:,.0f} GiB of experts into main memory"]
    needed = needed_packages.needed_packages(draft.run)
    wanted = list(dict.fromkeys(needed_packages.pip_requirement(each, draft.run) for each in needed))
    capability = draft.machine.device.capability
    if capability is not None and capability < without_kernels():
        wanted.append(
            "torch from the CUDA 12.6 wheels, or 2.8 to 2.10 from those of CUDA 12.8, as others leave Volta out"
        )
    licence = yaml_table("models")[draft.model.id or ""]["licence"]
    accepted = ["its licence accepted on the hub"] if licence.startswith(GATED) else []
    shared = ["output_dir on storage that all nodes see"] if draft.machine.nodes > 1 else []
    software = [_SOFTWARE[vendor]] if (vendor := draft.machine.device.vendor) in _SOFTWARE else []
    return [*adapter, *software, *release, *wanted, *accepted, *shared]


# What devices need beside a driver and the torch that pip brings.
_SOFTWARE = {
    "ascend": "torch_npu with its CANN (docs/howto/install.md)",
    "amd": "a torch for ROCm (docs/howto/install.md)",
}


def without_kernels() -> float:
    """Compute capability below which newer builds of torch have no kernels."""
    return max(entry["below"] for entry in yaml_table("together")["kernels"]["lacking"] if "below" in entry)


def published(draft: NewRecipe) -> str:
    """Whose the values are that the planner does not compute, as a clause."""
    who = yaml_table("rates")["sources"][draft.rates["source"][0]]["who"]
    return f"learning rate as in {who}"


@cache
def written_for(path: Path) -> tuple[object, object, object]:
    """Return the model, machine and stage of a recipe."""
    recipe = load_recipe(str(path))
    return recipe.values["model_name_or_path"], recipe.header["machine"], recipe.values["stage"]


def recipe_of(wish: Wish) -> Path | None:
    """Return the recipe for the model and machine of a wish whose name has the words of its method and its use."""
    words = {*wish.method.split("-")[1:], *wish.uses.get("word", "").split()}
    asked = (wish.model.name, str(wish.machine), wish.uses["stage"])
    named = (path for path in sorted(RECIPES.glob("*.yaml")) if words <= set(path.stem.split("-")))
    found = (path for path in named if set(wish.methods) & set(path.stem.split("-")))
    return next((path for path in found if written_for(path) == asked), None)


def main() -> None:
    again, new = sys.argv[1:] == ["--all"], sys.argv[1:] == ["--new"]
    made: dict[str, tuple[Wish, NewRecipe]] = {}
    for wish in wishes():
        if new and recipe_of(wish):
            continue
        found = fulfil(wish)
        if found is None:
            print(f"does not fit: {wish.model.short} {wish.use} {wish.method} on {wish.machine}")
            continue
        if found.name in made:
            print(f"wished twice: {found.name}")
        made[found.name] = wish, found
    before = {Path(draft.extra["model"]["adapter_name_or_path"]).name: name for name, (_, draft) in made.items()
              if "adapter_name_or_path" in draft.extra.get("model", {})}  # fmt: skip
    for name, (wish, draft) in made.items():
        path = RECIPES / f"{name}.yaml"
        if again or not path.exists():
            path.write_text(
                recipe_text.render_recipe(draft, planned=False, head=head(wish, draft, before.get(name))), "utf-8"
            )
            print(f"{path.name}: {draft.sharding}, micro {draft.micro_batch}, {draft.length}, liger {draft.liger}")
    for path in RECIPES.glob("*.yaml"):
        if not new and path.stem not in {*made, *kept()}:
            path.unlink()


def kept() -> set[str]:
    """Names of the recipes that were written by hand."""
    return {name for row in rows() for name in row.get("keep", ())}


if __name__ == "__main__":
    main()
