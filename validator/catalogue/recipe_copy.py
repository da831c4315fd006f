"""The command `copy`: writes a catalogue recipe into the user's folder, together with the DeepSpeed file, data files
and dataset_info.json entries that it needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from validator import __version__
from validator.errors import RecipeError
from validator.escaping import shell_join, shell_quote
from validator.recipe import atomic_write, safe_read
from validator.recipe.known_folders import catalogue_root
from validator.recipe.recipe_file import RECIPE_SUFFIXES, load_recipe, parse_recipe
from validator.recipe.safe_read import expand_home, read_json
from validator.recipe.yaml_writer import format_scalar
from validator.rows import registry_edits
from validator.rows.dataset_attr import Entry
from validator.rows.entry_inference import ROW_KINDS, TRAINABLE_STAGES
from validator.run.dataset_registry import REGISTRY_FILE
from validator.run.launch_command import Launch
from validator.run.recipe_labels import ROWS_REMARK, SAMPLES_REMARK, prediction_line, stated_prediction
from validator.run.settings import RunSettings, resolve
from validator.wording import plural

from . import bundled_recipes
from .bundled_recipes import DEEPSPEED_FOLDER, RECIPES_FOLDER

if TYPE_CHECKING:
    from validator.run.user_data import UserData


# The launch command in a recipe's comment.
_LAUNCH_COMMAND = re.compile(r"(?m)^(# +.*(?:llamafactory-cli train|llamafactory\.launcher) )recipes/\S+$")


@dataclass(frozen=True)
class InstalledRecipe:
    """A recipe that was written. `files`: files that were written or extended for it. `folder`: the folder from which
    to start the run. `start`: the recipe's path relative to that folder. `notes`: sentences that the user should
    read."""

    recipe: Path
    files: tuple[Path, ...]
    folder: Path
    start: Path
    notes: tuple[str, ...] = ()


def install_recipe(
    target: Path, text: str, values: Mapping[str, object], own: UserData | None = None
) -> InstalledRecipe:
    """Write a recipe and the catalogue files that it names: DeepSpeed file, accelerate file and data sets. These files
    are written into the folder from which the run is started. `text` and `values` are the recipe's text and settings.
    `own`: the user's data, which replace the recipe's data sets. Existing files with the same content are left as they
    are. Raises RecipeError before anything is written if the target exists, if its path contains characters or spaces
    that a command line cannot hold, or if an existing file has other content."""
    atomic_write.require_new_file(target)
    header = parse_recipe(str(target), text).header
    folder, dependencies = run_folder(target), find_dependencies({**values, "dataset": ""} if own else values, header)
    if own:
        dataset_dir = (folder / dependencies.registry).parent
        dependencies = replace(dependencies, entries={own.name: own.entry(dataset_dir)})
        text = _with_media_dir(text, own, folder, dataset_dir)
    start = _path_from_folder(target, folder)
    _require_no_space(start, text)
    registry = folder / dependencies.registry
    if entries := registry_edits.undefined_entries(registry, dependencies.entries):
        _require_inside_folder(folder, registry)
    missing = [name for name, data in dependencies.files.items() if is_missing(folder, name, data)]
    written = [name for name in missing if write_if_missing(folder, name, dependencies.files[name])]
    if entries and registry_edits.add_entries(registry, entries):
        written.append(dependencies.registry)
    # Last: a recipe that is there has all that it reads.
    atomic_write.create_file(target, _LAUNCH_COMMAND.sub(lambda command: command[1] + shell_quote(str(start)), text))
    return InstalledRecipe(target, tuple(folder / name for name in written), folder, start, own.notes if own else ())


def _with_media_dir(text: str, own: UserData, folder: Path, dataset_dir: Path) -> str:
    """Return the recipe's text with the `media_dir` that the user's images, videos or sound need, if they are not found
    without it. `folder`: the folder from which the run is started. `dataset_dir`: where they are looked for without."""
    media_dir = own.media_dir
    if media_dir is None or media_dir == safe_read.real_path(dataset_dir):
        return text
    written = media_dir.relative_to(folder) if media_dir.is_relative_to(folder) else media_dir
    line = f"media_dir: {format_scalar(str(written))}"
    text = re.sub(r"(?m)^media_dir: .*\n", "", text)
    return _DATASET_LINE.sub(lambda found: f"{found[0]}\n{line}", text)


def run_folder(target: Path) -> Path:
    """Return the folder from which to start a run of this recipe, to which the recipe's relative paths refer. This is
    the working directory if it contains the recipe and already holds a dataset_info.json or DeepSpeed files. Otherwise
    it is the recipe's own folder, or the folder around it if that is called recipes/, as in the catalogue."""
    recipe_folder, cwd = safe_read.real_path(target.parent), Path.cwd()
    if _is_project(cwd) and recipe_folder.is_relative_to(cwd):
        return cwd
    below = recipe_folder.name == RECIPES_FOLDER and recipe_folder != cwd and not _is_project(recipe_folder)
    return recipe_folder.parent if below else recipe_folder


def _is_project(folder: Path) -> bool:
    return (folder / "data" / REGISTRY_FILE).exists() or (folder / DEEPSPEED_FOLDER).is_dir()


def _require_no_space(start: Path, text: str) -> None:
    """Raise RecipeError if torchrun starts this recipe and a space in its path would split the path on torchrun's
    command line (rule PTH012)."""
    if problem := Launch(resolve(parse_recipe(str(start), text))).split_problem([str(start)]):
        raise RecipeError(f"{problem}; choose another name")


def _path_from_folder(target: Path, folder: Path) -> Path:
    """Return the recipe's path relative to the folder. Raises RecipeError if the path contains characters that cannot
    be printed in a command."""
    path = safe_read.real_path(target.parent).relative_to(folder) / target.name
    if not str(path).isprintable():
        raise RecipeError(f"`{target}` holds characters that a command cannot show; choose another name")
    return path


_DEMO_MODEL = "demo/tiny-qwen3"  # the one that is trained to try it out


@dataclass(frozen=True)
class RecipeDependencies:
    """The catalogue's files and dataset_info.json entries that a recipe reads. `files` maps paths to contents,
    `registry` is the path of dataset_info.json, and `entries` are its entries by name. All paths are relative to the
    folder from which the run is started."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    registry: str = f"data/{REGISTRY_FILE}"
    entries: Mapping[str, Entry] = field(default_factory=dict)


def find_dependencies(values: Mapping[str, object], header: Mapping[str, object]) -> RecipeDependencies:
    """Return the catalogue's files and dataset_info.json entries that a recipe names by a relative path, in its keys or
    its header block."""
    files: dict[str, bytes] = {}
    if values.get("model_name_or_path") == _DEMO_MODEL:
        files |= {
            f"{_DEMO_MODEL}/{path.name}": path.read_bytes()
            for path in sorted((catalogue_root() / _DEMO_MODEL).iterdir())
        }
    for engine in (values.get("deepspeed"), header.get("accelerate")):
        if isinstance(engine, str) and (catalogue_root() / engine).is_file():
            files[engine] = (catalogue_root() / engine).read_bytes()
    folder = str(values.get("dataset_dir") or "data")
    if not (catalogue_root() / folder / REGISTRY_FILE).is_file():
        return RecipeDependencies(files)
    registry = read_json(str(catalogue_root() / folder / REGISTRY_FILE))
    names = [name.strip() for name in str(values.get("dataset") or "").split(",")]
    entries = {name: registry[name] for name in names if name in registry}
    for name in (f"{folder}/{entry['file_name']}" for entry in entries.values() if "file_name" in entry):
        files[name] = (catalogue_root() / name).read_bytes()
    return RecipeDependencies(files, f"{folder}/{REGISTRY_FILE}", entries)


def is_missing(folder: Path, name: str, content: bytes) -> bool:
    """True if the file `name` does not exist in the folder; False if it exists with this content. Raises RecipeError if
    a file of that name with other content exists."""
    path = folder / name
    if safe_read.path_kind(path) is None:
        _require_inside_folder(folder, path)
        return True
    if not _same_content(path, content):
        raise RecipeError(
            f"`{path}` is there and differs from the catalogue's; rename yours, or choose a folder that has none"
        )
    return False


def write_if_missing(folder: Path, name: str, content: bytes) -> bool:
    """Write the file `name` if it does not exist, and return True if it was written. Raises RecipeError if a file of
    that name with other content exists, or if the file cannot be written."""
    written = []

    def new(_: bytes | None) -> bytes | None:
        written.append(is_missing(folder, name, content))
        return content if written[-1] else None

    atomic_write.make_folder((folder / name).parent)
    atomic_write.edit_file(folder / name, new)
    return written[-1]


def _same_content(path: Path, content: bytes) -> bool:
    """True if the file has this content. JSON files are compared by value, so their formatting may differ."""
    if path.suffix == ".json":
        return bool(read_json(str(path)) == json.loads(content))
    try:
        with safe_read.open_file(path) as file:
            return file.read(len(content) + 1) == content
    except (OSError, ValueError):
        return False


def _require_inside_folder(folder: Path, path: Path) -> None:
    """Raise RecipeError if the path leads out of the folder through a symbolic link, so that nothing is written
    elsewhere."""
    if not safe_read.real_path(path).is_relative_to(safe_read.real_path(folder)):
        raise RecipeError(
            f"a link leads from `{path}` out of `{folder}`; nothing is written there, choose another folder"
        )


_HEADER_END = "# ///"
_DATASET_LINE = re.compile(r"(?m)^dataset:.*$")
_OUTPUT_DIR_LINE = re.compile(r"(?m)^output_dir:.*$")
# Lines that speak of the data that the recipe names, in the header block and below it.
_DATA_DESCRIPTION_LINES = re.compile(r"(?m)^# (?:lengths|For): .*\n")
_PREDICTED_LINE = re.compile(r"(?m)^# predicted: .*\n")
_SAMPLES_LINE = re.compile(r"(?m)^# samples: \d+$")
_ROWS_LINE = re.compile(r"(?m)^# rows: .*$")
# Public text is streamed for so many steps; a file is read whole, once.
_STREAMING_REPLACEMENTS = {
    r"(?m)^streaming: .*$": "preprocessing_num_workers: 16",
    r"(?m)^max_steps: .*$": "num_train_epochs: 1.0",
    r"(?m)^val_size: 200\b": "val_size: 0.01",
}


def copy_recipe(name: str, dest: str, own: UserData | None = None) -> InstalledRecipe:
    """Write a catalogue recipe and the files that it reads. If the recipe starts from an adapter that another catalogue
    recipe trains, write that recipe, too. `dest`: a file or a folder. `own`: the user's data, which replace the
    recipe's data sets. A copy under another name gets an `output_dir` of that name. Raises RecipeError if a file with
    other content is in the way, if `name` is the user's own file, or if the recipe's stage or template cannot train on
    the user's rows."""
    source = bundled_recipes.recipe_path(name)
    if name != source.stem and safe_read.path_kind(name) and safe_read.real_path(name) != safe_read.real_path(source):
        raise RecipeError(
            f"`{name}` is a file of yours, and `copy` takes recipes of the catalogue: give `{source.stem}`, or use cp"
        )
    target = _target_path(dest, source.name)
    document = load_recipe(str(source))
    text = with_origin(document.text, source.stem)
    if target.stem != source.stem:
        output_dir = f"output_dir: {format_scalar(f'saves/{target.stem}')}"
        text = _OUTPUT_DIR_LINE.sub(lambda _: output_dir, text)
    if own is None:
        return _with_adapter_recipe(install_recipe(target, text, document.values), document.values)
    run = resolve(document)
    _require_trained_stage(own, source.stem, run)
    own.require_media(run)
    placed = install_recipe(target, _text_for_user_data(text, target, own), document.values, own)
    return _with_adapter_recipe(replace(placed, notes=(*_row_count_notes(own, run), *placed.notes)), document.values)


def _text_for_user_data(text: str, target: Path, data: UserData) -> str:
    """Return the recipe's text for the user's data: with their name, their number of rows, and the memory and time
    predicted for them."""
    dataset = f"dataset: {format_scalar(data.name)}"
    text = _DATASET_LINE.sub(lambda _: dataset, _DATA_DESCRIPTION_LINES.sub("", text))
    text = _ROWS_LINE.sub(f"# rows: {data.rows}{ROWS_REMARK}", text)
    text = _SAMPLES_LINE.sub(rf"\g<0>{SAMPLES_REMARK}", text)
    for written, instead in _STREAMING_REPLACEMENTS.items():
        text = re.sub(written, instead, text)
    run = resolve(parse_recipe(str(target), text))
    # No registry on the disk has them yet.
    run = replace(run, workspace=replace(run.workspace, registry=data.registry))
    prediction = stated_prediction(run)
    return _PREDICTED_LINE.sub(f"# predicted: {prediction_line(prediction)}\n", text) if prediction else text


def _with_adapter_recipe(placed: InstalledRecipe, values: Mapping[str, object]) -> InstalledRecipe:
    """Write the recipe that trains the adapter from which the recipe `placed` starts, if the catalogue has such a
    recipe and it is not written yet. Return `placed` with the further files, and with a note on which recipe to run
    first. `values` are the settings of the recipe `placed`."""
    first = Path(str(values.get("adapter_name_or_path"))).name
    adapter_recipe = placed.recipe.with_name(f"{first}.yaml")
    if first not in bundled_recipes.recipe_names() or safe_read.path_kind(adapter_recipe):
        return placed
    document = load_recipe(str(bundled_recipes.recipe_path(first)))
    brought = install_recipe(adapter_recipe, with_origin(document.text, first), document.values)
    note = f"train `{adapter_recipe.name}` first: this recipe starts from the adapter that it saves"
    return replace(
        placed, files=(*dict.fromkeys((*placed.files, adapter_recipe, *brought.files)),), notes=(note, *placed.notes)
    )


def _require_trained_stage(data: UserData, name: str, run: RunSettings) -> None:
    """Raise RecipeError if the recipe's stage cannot train on rows of the user's kind. The message names a recipe that
    can, or the `plan` command that makes one."""
    stage = data.form.stage
    if run.task.stage in TRAINABLE_STAGES[stage]:
        return
    other_recipe = name.removesuffix(f"-{run.task.stage}") + ("" if stage == "sft" else f"-{stage}")
    way = f"copy `{other_recipe}`"
    if other_recipe not in bundled_recipes.recipe_names():
        options = ["--model", run.model_name, "--machine", run.header.get("machine"), "--data", data.path]
        way = f"`{shell_join(['lmf-recipes', 'plan', *map(str, options), '--write', 'FILE.yaml'])}`"
    raise RecipeError(
        f"`{data.path}` holds {ROW_KINDS[stage]}, which stage {run.task.stage} of `{name}` does not train; {way}"
    )


def _row_count_notes(data: UserData, run: RunSettings) -> Iterator[str]:
    """Yield a note if the user has fewer rows than the number of samples in the recipe's header block. The note names
    the source of that number."""
    if run.declared.samples and data.rows < run.declared.samples:
        rows = f"{data.counted} {plural(data.rows, 'row')}"
        whose = run.guidance.whose(run.declared.samples) if run.guidance else None
        yield f"`{data}` holds {rows}, the recipe is made for {run.declared.samples:,}{f', {whose}' if whose else ''}"


def with_origin(text: str, name: str) -> str:
    """Return the recipe's text with a line in its header block that names the catalogue recipe and the package's
    version."""
    lines = [line for line in text.splitlines() if not line.startswith("# origin:")]
    lines.insert(lines.index(_HEADER_END), f"# origin: {name} of llamafactory-recipes {__version__}")
    return "\n".join(lines) + "\n"


def _target_path(dest: str, name: str) -> Path:
    path = expand_home(dest)
    if safe_read.path_kind(path) == "folder":
        return path / name
    if path.suffix == ".json":
        raise RecipeError(f"`{dest}`: a copy is written as YAML, which LLaMA-Factory reads; end its name with .yaml")
    return path if path.suffix in RECIPE_SUFFIXES else path / name


@dataclass(frozen=True)
class CopiedFile:
    """A DeepSpeed file in the user's folder. `written`: False if the same file existed before. `folder`: the folder
    from which runs are started. `name`: the value with which recipes in that folder name the file."""

    path: Path
    written: bool
    folder: Path
    name: str


def copy_deepspeed_file(name: str, dest: str) -> CopiedFile:
    """Write a DeepSpeed file of the catalogue into the subfolder deepspeed/ of the folder `dest`, unless the same file
    exists there. Raises RecipeError if another file of that name exists, or if `dest` ends with .json."""
    folder = expand_home(dest)
    if folder.suffix == ".json":
        raise RecipeError(
            f"`{dest}`: give the folder that recipes are started from; the file goes to its {DEEPSPEED_FOLDER}/"
        )
    if folder.name == DEEPSPEED_FOLDER:
        folder = folder.parent
    value = f"{DEEPSPEED_FOLDER}/{name}"
    content = (catalogue_root() / value).read_bytes()
    missing = is_missing(folder, value, content) and write_if_missing(folder, value, content)
    return CopiedFile(folder / value, missing, folder, value)
