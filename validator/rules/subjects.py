"""Subjects that a rule can be about besides the run itself (the DeepSpeed file, a data set, the device and others), and
places in the files and settings that a recipe names.

Each generator yields tuples, which a rule gets as its arguments after the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from validator.finding import Place
from validator.knowledge.devices import Device, Machine
from validator.knowledge.models import Model
from validator.physics import Workload
from validator.recipe import safe_read
from validator.recipe.recipe_file import HEADER_FIELD_MARK
from validator.run import checkpoints
from validator.run.checkpoints import TrainerCheckpoint
from validator.run.dataset_registry import REGISTRY_FILE, Dataset
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.fsdp import AccelerateFile
from validator.run.prediction import predict
from validator.run.settings import RunSettings

PlaceIn = Callable[..., Place]  # gives the place of a route in the file or the entry that the rule is about


def header_field(field: str) -> Place:
    """Return the place of a field of the header block, even if the recipe has a key of the same name."""
    return Place((f"{HEADER_FIELD_MARK}{field}",), key=field)


def model(run: RunSettings) -> Iterator[tuple[Model]]:
    """Yield the run's model, if its architecture is known."""
    if run.model:
        yield (run.model,)


def multimodal_model(run: RunSettings) -> Iterator[tuple[Model, Workload]]:
    """Yield the run's model and the run's training step as input of the memory formulas, if the model has a vision or
    audio tower whose modules are known by name."""
    prediction = predict(run)
    if run.model and run.model.modules and prediction.workload:
        yield run.model, prediction.workload


def machine(run: RunSettings) -> Iterator[tuple[Machine]]:
    """Yield the machine for which the run is judged, if one is named."""
    if run.machine:
        yield (run.machine,)


def device(run: RunSettings) -> Iterator[tuple[Device]]:
    """Yield the machine's device, unless its capabilities are unknown, which DEV017 reports."""
    if run.machine and run.machine.device.vendor != "unknown":
        yield (run.machine.device,)


def deepspeed(run: RunSettings) -> Iterator[tuple[DeepSpeedConfig]]:
    """Yield the DeepSpeed configuration of the run, if it uses DeepSpeed."""
    if run.deepspeed:
        yield (run.deepspeed,)


def deepspeed_file(run: RunSettings) -> Iterator[tuple[PlaceIn, DeepSpeedConfig]]:
    """Yield the DeepSpeed configuration of the run, if it uses DeepSpeed. The configuration comes after a function that
    returns the place of a setting in it, as in `at("fp16.enabled")`."""
    if run.deepspeed:
        yield partial(in_deepspeed_file, run), run.deepspeed


def accelerate_file(run: RunSettings) -> Iterator[tuple[AccelerateFile]]:
    """Yield the accelerate file that the recipe's header block names, if it names one."""
    if run.accelerate:
        yield (run.accelerate,)


def datasets(run: RunSettings) -> Iterator[tuple[PlaceIn, Dataset]]:
    """Yield each data set that the recipe names and dataset_info.json defines. The data set comes after a function that
    returns the place of a value in its entry, as in `at("columns", "prompt")`. Yields nothing if the data are
    tokenized."""
    if run.data.is_tokenized:
        return
    for key, sets in (("dataset", run.data.datasets), ("eval_dataset", run.data.evaluation_datasets)):
        yield from ((partial(in_registry_entry, run, key, dataset), dataset) for dataset in sets)


def checkpoint(run: RunSettings) -> Iterator[tuple[TrainerCheckpoint]]:
    """Yield the checkpoint from which the run resumes, if there is one."""
    if saved := checkpoints.resume_checkpoint(run):
        yield (saved,)


def in_deepspeed_file(
    run: RunSettings, path: str = "", *keys: str, at_key: bool = False, conflicts_with: tuple[str, ...] = ()
) -> Place:
    """Return the place of a setting in the DeepSpeed configuration, which is a JSON file or stands in the recipe.
    `path`: dotted path of the setting; `keys`: further keys below it, which may contain dots. `at_key`: the fault is
    the key, not the value. `conflicts_with`: the recipe's keys that contradict the value."""
    route = (*path.split("."), *keys) if path else keys
    return in_json_setting(run, "deepspeed", *route, at_key=at_key, conflicts_with=conflicts_with)


def in_accelerate_file(
    run: RunSettings, *route: str | int, at_key: bool = False, conflicts_with: tuple[str, ...] = ()
) -> Place:
    """Return the place of a value in the accelerate config file that the header block names. `route`: the keys and list
    indices that lead to the value. If the file does not exist, return the place of the header field `accelerate`."""
    file = run.accelerate
    if file is None or safe_read.path_kind(Path(file.path)) != "file":
        return Place(("accelerate",), key="accelerate")
    return Place(route, file.path, "accelerate", at_key, conflicts_with)


def in_fsdp_config(run: RunSettings, name: str) -> Place:
    """Return the place of an FSDP setting in the accelerate config file. `name`: the setting's full name, with `fsdp_`;
    the file may leave the prefix out. If `name` is a top-level key of the file, return the place of this key."""
    file = run.accelerate
    if file is None or name in file.config:
        return in_accelerate_file(run, name)
    return in_accelerate_file(run, "fsdp_config", file.written.get(name, name))


def in_json_setting(
    run: RunSettings, key: str, *route: str | int, at_key: bool = False, conflicts_with: tuple[str, ...] = ()
) -> Place:
    """Return the place of a value in the mapping that a recipe's key such as `fsdp_config` holds, or in the JSON file
    that the key names. `route`: the keys and list indices that lead to the value. If the file does not exist, return
    the place of the key."""
    value = run.args.get(key)
    if not isinstance(value, str):
        return Place((key, *route), None, key, at_key, conflicts_with)
    location = None if value.startswith("{") else run.workspace.find(value)
    if location is None or safe_read.path_kind(location[0]) != "file":
        return Place((key,), key=key, conflicts_with=conflicts_with)
    return Place(route, str(location[0]), key, at_key, conflicts_with)


def at_checkpoint_key(run: RunSettings, key: str) -> Place:
    """Return the place of a recipe's key that names a checkpoint. The place also names the first JSON file in the
    checkpoints that must not be quoted, so that `check` replaces the message, which may quote that file."""
    saved = checkpoints.resume_candidates(run)
    files = (file for each in saved for file in safe_read.glob_folder(each.path, "*.json"))
    hidden = (str(file) for file in files if not run.workspace.may_quote(file))
    return Place((key,), key=key, quotes_file=next(hidden, None))


def at_list_item(run: RunSettings, key: str, name: str) -> Place:
    """Return the place of `name` in the list that a key holds; the place of the key if the value is not a list."""
    value = run.args.get(key)
    names = [str(word) for word in value] if isinstance(value, list) else []
    return Place((key, names.index(name)) if name in names else (key,), key=key)


def in_registry_entry(
    run: RunSettings,
    key: str,
    dataset: Dataset,
    *route: str | int,
    at_key: bool = False,
    conflicts_with: tuple[str, ...] = (),
) -> Place:
    """Return the place of a value in a data set's dataset_info.json entry. `key`: the recipe's key that names the data
    set. `route`: the keys that lead to the value. The place also names the first data file that must not be quoted, so
    that `check` replaces the message, which may quote rows."""
    rows = next((str(file) for file in dataset.files if not run.workspace.may_quote(file)), None)
    if isinstance(run.args.get("dataset_dir"), Mapping):
        return Place(("dataset_dir", dataset.name, *route), None, key, at_key, conflicts_with, rows)
    return Place((dataset.name, *route), str(dataset.folder / REGISTRY_FILE), key, at_key, conflicts_with, rows)
