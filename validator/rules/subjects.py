"""Subjects that a rule can be about beside the run itself (the DeepSpeed file, a data set, the device and the like),
and places in the files and settings that a recipe names.

A subject is a tuple of the arguments that the rule takes after the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from validator.finding import Place
from validator.knowledge.devices import Device, Machine
from validator.knowledge.models import Model
from validator.physics import Workload
from validator.recipe import safe_read
from validator.run import checkpoints
from validator.run.checkpoints import TrainerCheckpoint
from validator.run.dataset_registry import REGISTRY_FILE, Dataset
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.fsdp import AccelerateFile
from validator.run.prediction import predict
from validator.run.settings import RunSettings

PlaceIn = Callable[..., Place]  # gives the place of a route in the file or the entry that the rule is about


def model(run: RunSettings) -> Iterator[tuple[Model]]:
    """Yield the model, if its shapes are known."""
    if run.model:
        yield (run.model,)


def multimodal_model(run: RunSettings) -> Iterator[tuple[Model, Workload]]:
    """Yield a model that sees or hears, whose parts are known by name, and what a step computes of it."""
    prediction = predict(run)
    if run.model and run.model.modules and prediction.workload:
        yield run.model, prediction.workload


def machine(run: RunSettings) -> Iterator[tuple[Machine]]:
    """Yield the machine that the run is judged for."""
    if run.machine:
        yield (run.machine,)


def device(run: RunSettings) -> Iterator[tuple[Device]]:
    """Yield the machine's device, if it is known what that can do (else DEV017 tells)."""
    if run.machine and run.machine.device.vendor != "unknown":
        yield (run.machine.device,)


def deepspeed(run: RunSettings) -> Iterator[tuple[DeepSpeedConfig]]:
    """Yield the DeepSpeed configuration, written in the recipe or in a file."""
    if run.deepspeed:
        yield (run.deepspeed,)


def deepspeed_file(run: RunSettings) -> Iterator[tuple[PlaceIn, DeepSpeedConfig]]:
    """Yield the DeepSpeed configuration with the function that gives places in it: `at("fp16.enabled")`."""
    if run.deepspeed:
        yield partial(in_deepspeed_file, run), run.deepspeed


def accelerate_file(run: RunSettings) -> Iterator[tuple[AccelerateFile]]:
    """Yield the accelerate file that the header block names."""
    if run.accelerate:
        yield (run.accelerate,)


def datasets(run: RunSettings) -> Iterator[tuple[PlaceIn, Dataset]]:
    """Yield each data set that is named and defined, with the function that gives places in its entry: `at("columns",
    "prompt")`."""
    if run.data.is_tokenized:
        return
    for key, sets in (("dataset", run.data.datasets), ("eval_dataset", run.data.evaluation_datasets)):
        yield from ((partial(in_registry_entry, run, key, dataset), dataset) for dataset in sets)


def checkpoint(run: RunSettings) -> Iterator[tuple[TrainerCheckpoint]]:
    """Yield the checkpoint of an earlier run from which this one goes on."""
    if saved := checkpoints.resume_checkpoint(run):
        yield (saved,)


def in_deepspeed_file(
    run: RunSettings, path: str = "", *keys: str, at_key: bool = False, conflicts_with: tuple[str, ...] = ()
) -> Place:
    """Return the place of a dotted path, and of keys below it (which may hold dots), in the DeepSpeed configuration: a
    JSON file, or a mapping or JSON text in the recipe."""
    route = (*path.split("."), *keys) if path else keys
    return in_json_setting(run, "deepspeed", *route, at_key=at_key, conflicts_with=conflicts_with)


def in_accelerate_file(
    run: RunSettings, *route: str | int, at_key: bool = False, conflicts_with: tuple[str, ...] = ()
) -> Place:
    """Return a place in the accelerate file that the header block names, or the header's field if there is no such
    file."""
    file = run.accelerate
    if file is None or safe_read.path_kind(Path(file.path)) != "file":
        return Place(("accelerate",), key="accelerate")
    return Place(route, file.path, "accelerate", at_key, conflicts_with)


def in_fsdp_config(run: RunSettings, name: str) -> Place:
    """Return the place of a setting of FSDP in the accelerate file, under the name that is written there, or of one of
    the file's own keys."""
    file = run.accelerate
    if file is None or name in file.config:
        return in_accelerate_file(run, name)
    return in_accelerate_file(run, "fsdp_config", file.written.get(name, name))


def in_json_setting(
    run: RunSettings, key: str, *route: str | int, at_key: bool = False, conflicts_with: tuple[str, ...] = ()
) -> Place:
    """Return a place in the settings that a key such as `fsdp_config` holds, or in the JSON file that it names."""
    value = run.args.get(key)
    if not isinstance(value, str):
        return Place((key, *route), None, key, at_key, conflicts_with)
    location = None if value.startswith("{") else run.workspace.find(value)
    if location is None or safe_read.path_kind(location[0]) != "file":
        return Place((key,), key=key, conflicts_with=conflicts_with)
    return Place(route, str(location[0]), key, at_key, conflicts_with)


def at_checkpoint_key(run: RunSettings, key: str) -> Place:
    """Return the place of a key that names a checkpoint. A message about it may quote the small files of the
    checkpoint."""
    saved = checkpoints.resume_candidates(run)
    files = (file for each in saved for file in safe_read.glob_folder(each.path, "*.json"))
    hidden = (str(file) for file in files if not run.workspace.may_quote(file))
    return Place((key,), key=key, quotes_file=next(hidden, None))


def at_list_item(run: RunSettings, key: str, name: str) -> Place:
    """Return the place of one of several names that a key lists."""
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
    """Return a place in the registry entry of a data set that `key` names. A message about it may quote the rows of the
    data set."""
    rows = next((str(file) for file in dataset.files if not run.workspace.may_quote(file)), None)
    if isinstance(run.args.get("dataset_dir"), Mapping):
        return Place(("dataset_dir", dataset.name, *route), None, key, at_key, conflicts_with, rows)
    return Place((dataset.name, *route), str(dataset.folder / REGISTRY_FILE), key, at_key, conflicts_with, rows)
