"""Names and files of the recipes and DeepSpeed files that come with the package (the catalogue), and the file for which
the argument RECIPE of a command stands."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from validator.errors import RecipeError
from validator.escaping import shell_join, shell_quote
from validator.finding import Assumption, Diagnostic, Severity, Verdict
from validator.knowledge import devices, guidance, models, unknown_models
from validator.knowledge.devices import Machine
from validator.knowledge.file_kinds import DATA_SUFFIXES, require_recipe
from validator.knowledge.near_models import near_models
from validator.knowledge.path_keys import READ_KEYS
from validator.physics.estimate import GIB
from validator.recipe import recipe_file, safe_read
from validator.recipe.known_folders import catalogue_root
from validator.recipe.recipe_file import RECIPE_SUFFIXES, Document, load_recipe
from validator.recipe.suggestions import nearest_name
from validator.run.assumptions import verdict_assumptions
from validator.run.prediction import predict
from validator.run.recipe_arguments import finite_number
from validator.run.recipe_labels import catalogue_name, method_name
from validator.run.settings import RunSettings, resolve

# Folders of the catalogue.
RECIPES_FOLDER, DEEPSPEED_FOLDER = "recipes", "deepspeed"
NEW_RECIPE = "`lmf-recipes plan --model M --machine MACHINE --data FILE --write mine.yaml`"
_SETTING = re.compile(r"[\w.]+=")  # begins so: KEY=VALUE


class HoursRange(NamedTuple):
    """Lower and upper end of the band of a run's hours."""

    low: float
    high: float


@dataclass(frozen=True)
class CatalogueRow:
    """One recipe of the catalogue; the fields are the keys of `list --format json`. `device_gib`, `host_gib`: expected
    memory in GiB (2^30 bytes). `samples`: the recommended number. `hours`: the hours that the recipe's header block
    states for `rows`, the rows of the data sets that the recipe names, or else for `samples`. `enough_for_tokens`:
    device memory is expected to suffice if no sample is longer, and it is not known whether one is. `assumes`: what the
    verdict takes for granted. `made_for`: the machine that the recipe names. `machine`, for which it is judged, differs
    from it only if no recipe is made for the machine that was asked for."""

    name: str
    summary: str | None
    model: str
    machine: str | None
    method: str
    device_gib: float | None
    host_gib: float | None
    samples: int | None
    verdict: Verdict
    hours: HoursRange | None
    rows: int | None = None
    enough_for_tokens: int | None = None
    assumes: tuple[Assumption, ...] = ()
    made_for: str | None = None


def recipe_names() -> list[str]:
    """Return the names of all recipes of the catalogue, without suffix, sorted."""
    with os.scandir(catalogue_root() / RECIPES_FOLDER) as entries:
        return sorted(each.name.removesuffix(".yaml") for each in entries if each.name.endswith(".yaml"))


def find_recipe_name(word: str) -> str | None:
    """Return the name of the catalogue recipe that `NAME`, `NAME.yaml` or `recipes/NAME.yaml` means; None if it means
    none."""
    path = Path(word)
    name = _recipe_name(path)
    return name if str(path.parent) in (".", RECIPES_FOLDER) and name in recipe_names() else None


def _recipe_name(path: Path) -> str:
    return path.stem if path.suffix in RECIPE_SUFFIXES else path.name


def recipe_path(word: str) -> Path:
    """Return the file of the catalogue recipe that `NAME`, `NAME.yaml` or `recipes/NAME.yaml` means. Raises RecipeError
    with a suggestion if there is no such recipe."""
    name = find_recipe_name(word)
    if name is None:
        hint = hint_for_unknown_name(_recipe_name(Path(word)), deepspeed_file_names())
        if Path(word).suffix in (*DATA_SUFFIXES, ".json") and os.access(word, os.F_OK):
            hint = (
                f"; `lmf-recipes data {shell_quote(word)} --register NAME` writes a file of data into dataset_info.json"
            )
        raise RecipeError(f"no recipe `{word}` in the catalogue{hint}")
    return catalogue_root() / RECIPES_FOLDER / f"{name}.yaml"


def hint_for_unknown_name(name: str, other_names: Sequence[str] = ()) -> str:
    """Return a hint to append to the message for an unknown recipe name. If a recipe has exactly this name, the hint is
    that name. If a machine or a model has it, the hint is the command that lists its recipes. If the name begins with a
    model or a family of models, the most similar recipe is the hint only if it is for the machine in the name, because
    it may be for another vendor's devices; else the hint is the command that lists the model's recipes, or the models
    of the family. Of another name the most similar recipe or name of `other_names` is the hint."""
    if name in recipe_names():
        return f"; the catalogue's is `{name}`, without a folder"
    if devices.is_machine(name):
        return f"; it is a machine: see `lmf-recipes list --machine {name}`"
    if _is_model(name):
        return f"; it is a model: see `lmf-recipes list --model {name}`"
    similar, near = nearest_name(name, [*recipe_names(), *other_names]), near_models(name)
    further = [word for word in name.removeprefix(near.beginning).split("-") if word] if near else []
    machines = {*filter(devices.is_machine, further)}
    if similar and (near is None or (machines and machines <= {*similar.split("-")})):
        return f"; did you mean `{similar}`?"
    if near is None:
        return "; `lmf-recipes list` shows all"
    if not near.has_size:
        return f"; {unknown_models.near_models_hint(near)} `lmf-recipes list --model M` names the recipes of one"
    methods = [word for each in further if each in guidance.TUNING_METHODS for word in ("--method", each)][:2]
    return f"; see `{shell_join(['lmf-recipes', 'list', '--model', near.names[0], *methods])}`"


def _is_model(name: str) -> bool:
    try:
        return bool(models.find_model_by_any_name(name).id)
    except RecipeError:
        return False


def resolved_recipes(host_ram_gib: float | None = None) -> Iterator[RunSettings]:
    """Yield the run of every catalogue recipe on its own machine, in the order of the recipes' names. `host_ram_gib`:
    main memory per node; None means the machine's usual memory."""
    for each in recipe_names():
        yield resolve(load_recipe(str(catalogue_root() / RECIPES_FOLDER / f"{each}.yaml")), host_ram_gib=host_ram_gib)


def catalogue_rows(
    machine: str | None = None,
    model: str | None = None,
    method: str | None = None,
    host_ram_gib: float | None = None,
) -> list[CatalogueRow]:
    """Return one row for each catalogue recipe that passes the filters; a filter that is None passes all. `machine`:
    recipes for this device that need no more devices. `method`: a method such as qlora, or a variant such as dpo or
    offload. `host_ram_gib`: judge for this main memory per node. Raises RecipeError for an unknown machine or model."""
    target = devices.parse_machine(machine) if machine else None
    return [
        catalogue_row(each, _stated_hours(each))
        for each in filter(_filter_of(model, method), resolved_recipes(host_ram_gib))
        if target is None or _runs_on(each, target)
    ]


def recipes_on(target: Machine, model: str | None = None, method: str | None = None) -> Iterator[RunSettings]:
    """Yield the runs of the catalogue recipes for other devices on as many devices of the target, if it has so many.
    The filters are those of `catalogue_rows`. Whether the runs fit and are free of errors is not judged."""
    for own in filter(_filter_of(model, method), resolved_recipes()):
        machine = own.machine
        if (
            machine
            and machine.device.usable_gib
            and machine.nodes <= target.nodes
            and machine.devices <= target.devices
        ):
            document = load_recipe(own.workspace.recipe)
            header = {key: value for key, value in document.header.items() if key != "host_ram_gib"}
            there = str(target._replace(nodes=machine.nodes, devices=machine.devices))
            yield resolve(replace(document, header=header), there, target.host_ram_gib)


def _filter_of(model: str | None, method: str | None) -> Callable[[RunSettings], bool]:
    """Return a function that is true for the recipes that pass the filters. Raises RecipeError for an unknown model."""
    wanted_arch = models.find_model_by_any_name(model).arch.with_mixer_kernels() if model else None
    return lambda each: (
        (wanted_arch is None or (each.model is not None and each.model.arch.with_mixer_kernels() == wanted_arch))
        and (method is None or method == method_name(each) or method in _name_variants(each))
    )


def _name_variants(recipe: RunSettings) -> list[str]:
    """Return the words that follow the method in a recipe's name, such as dpo, fsdp, offload, 32k, an optimizer or
    tools."""
    stage = method_name(recipe).split("-")[1:]
    return stage + Path(recipe.workspace.recipe).stem.removeprefix(catalogue_name(recipe) or "").split("-")[1:]


def _runs_on(recipe: RunSettings, target: Machine) -> bool:
    """True if the recipe is for the target's device, and needs no more nodes and devices than the target has."""
    machine = recipe.machine
    return (
        machine is not None
        and machine.device.id == target.device.id
        and machine.nodes <= target.nodes
        and machine.devices <= target.devices
    )


def catalogue_row(recipe: RunSettings, hours: HoursRange | None) -> CatalogueRow:
    """Return the row of a catalogue recipe on the machine for which it is resolved, which takes so many hours."""
    prediction = predict(recipe)
    device, host = prediction.device_memory, prediction.host_memory
    return CatalogueRow(
        name=Path(recipe.workspace.recipe).stem,
        summary=recipe.header.get("summary"),
        model=recipe.model_name,
        machine=str(recipe.machine) if recipe.machine else None,
        method=method_name(recipe),
        device_gib=round(device.expected / GIB, 1) if device else None,
        host_gib=round(host.expected / GIB, 1) if host else None,
        samples=recipe.declared.samples,
        verdict=prediction.verdict,
        hours=hours,
        rows=recipe.declared.rows,
        made_for=recipe.header.get("machine"),
        enough_for_tokens=prediction.fitting_length,
        assumes=verdict_assumptions(recipe),
    )


def _stated_hours(recipe: RunSettings) -> HoursRange | None:
    stated = recipe.header.get("predicted")
    band = stated.get("hours") if isinstance(stated, dict) else None
    low, high, *_ = map(finite_number, [*band, None, None] if isinstance(band, list) else [None, None])
    return HoursRange(low, high) if low is not None and high is not None else None


def deepspeed_file_names() -> list[str]:
    """Return the names of all DeepSpeed files of the catalogue, sorted."""
    return sorted(path.name for path in (catalogue_root() / DEEPSPEED_FOLDER).glob("*.json"))


def find_deepspeed_file(name: str) -> str | None:
    """Return the name of the catalogue's DeepSpeed file that `ds_z2`, `ds_z2.json` or `deepspeed/ds_z2.json` means;
    None if the catalogue has no such file."""
    file_name = name.removeprefix(f"{DEEPSPEED_FOLDER}/").removesuffix(".json") + ".json"
    return file_name if file_name in deepspeed_file_names() else None


class LocatedRecipe(NamedTuple):
    """The file of a recipe, and the overrides for it. For a catalogue recipe the overrides begin with those that make
    its relative paths absolute; the user's overrides follow."""

    path: str
    overrides: tuple[str, ...]


def locate_recipe(recipe: str, overrides: Sequence[str] = ()) -> LocatedRecipe:
    """Return the recipe for which the argument RECIPE of a command stands, like `locate_file`. Raises RecipeError for a
    file that is known to be something else; the message says what it is."""
    located = locate_file(recipe, overrides)
    if located.path != "-":
        require_recipe(located.path)
    return located


def locate_file(recipe: str, overrides: Sequence[str] = ()) -> LocatedRecipe:
    """Return the file for which the argument RECIPE of a command stands, with the overrides to apply: an existing file,
    or else the catalogue recipe that it means (`find_recipe_name`). Any other path is returned unchanged; whoever reads
    it reports that it does not exist. Raises RecipeError with a hint if a word without suffix, or a name similar to a
    recipe's, is neither a file nor a catalogue recipe."""
    if recipe == "-" or os.access(recipe, os.F_OK):
        return LocatedRecipe(recipe, tuple(overrides))
    name = find_recipe_name(recipe)
    if name is None:
        path = Path(recipe)
        if _SETTING.match(recipe):
            found = f"`{recipe}` is no file; a setting comes behind the recipe, such as `mine.yaml {recipe}`"
            raise RecipeError(f"{found}; {NEW_RECIPE} makes a recipe")
        is_name = recipe == path.name and not re.match(r"\.[a-z]", path.suffix)  # .7-lora of glm4.7-lora is no suffix
        near_recipe = _recipe_name(path) in recipe_names() or nearest_name(_recipe_name(path), recipe_names())
        if is_name or near_recipe or (path.suffix not in RECIPE_SUFFIXES and _is_model(recipe)):
            near_file = safe_read.near_path(recipe)
            hint = f"; did you mean `{near_file}`?" if near_file else hint_for_unknown_name(_recipe_name(path))
            raise RecipeError(f"`{recipe}` is no file, and no recipe of the catalogue{hint}")
        return LocatedRecipe(recipe, tuple(overrides))
    file = recipe_path(name)
    if catalogue_root() == Path.cwd():
        return LocatedRecipe(str(file.relative_to(catalogue_root())), tuple(overrides))
    return LocatedRecipe(str(file), (*_absolute_path_overrides(file, overrides), *overrides))


def words_as_typed(words: Sequence[str]) -> list[str]:
    """Return a recipe file and overrides as a user would type them: a recipe of the catalogue that lies elsewhere by
    its name, without the overrides that make its own paths absolute."""
    recipe = Path(words[0])
    if not recipe.is_absolute() or recipe.parent != catalogue_root() / RECIPES_FOLDER:
        return [*words]
    own = {*_absolute_path_overrides(recipe, ())}
    return [recipe.stem, *(word for word in words[1:] if word not in own)]


def catalogue_note(word: str) -> str:
    """Return a sentence which says that a path, such as recipes/NAME.yaml, leads to no file and stands for the
    catalogue's recipe. The text is empty for a mere name, and for a file that exists."""
    name = None if word == Path(word).stem or os.access(word, os.F_OK) else find_recipe_name(word)
    return f"taken: the catalogue's recipe `{name}`, as there is no file `{word}` here" if name else ""


def open_recipe(recipe: str) -> Document:
    """Return the recipe for which a path of the command `check` stands. Never raises: `problems` of the document says
    what is wrong."""
    try:
        if _SETTING.match(recipe):
            raise RecipeError(f"`{recipe}` is no file; `check` takes no KEY=VALUE, `data`, `explain` and `train` do")
        path, overrides = locate_file(recipe)
    except RecipeError as err:
        return Document(recipe, problems=[Diagnostic("LOA001", Severity.ERROR, str(err))])
    return recipe_file.with_overrides(load_recipe(path), overrides)


def _absolute_path_overrides(file: Path, overrides: Sequence[str]) -> Iterator[str]:
    """Yield overrides that make the relative paths in a catalogue recipe absolute. Keys that the user overrides are
    left out, and `dataset_dir`, too, if the user overrides `dataset`."""
    values = load_recipe(str(file)).values
    overridden = {text.partition("=")[0] for text in overrides}
    if "dataset" in overridden and "dataset_dir" not in overridden:  # the user's data sets, and not the catalogue's
        overridden.add("dataset_dir")
        if os.access("data/dataset_info.json", os.F_OK):
            yield recipe_file.path_override("dataset_dir", str(safe_read.real_path("data")))
    for key in READ_KEYS:
        value = values.get(key.name, key.default)
        if key.name not in overridden and isinstance(value, str) and safe_read.path_kind(catalogue_root() / value):
            yield recipe_file.path_override(key.name, str(catalogue_root() / value))
