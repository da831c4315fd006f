"""Subjects that a rule can be about beside the run itself: the DeepSpeed file, a data set, the device and the like.

A subject is a tuple of what the rule takes after the run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from validator.knowledge.devices import Device, Machine
from validator.knowledge.models import Model
from validator.physics import Workload
from validator.rules.finding_places import EntryPlace, in_registry_entry
from validator.run import checkpoints
from validator.run.checkpoints import TrainerCheckpoint
from validator.run.dataset_registry import Dataset
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.fsdp import AccelerateFile
from validator.run.prediction import predict
from validator.run.settings import RunSettings


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


def deepspeed_file(run: RunSettings) -> Iterator[tuple[DeepSpeedConfig]]:
    """Yield the DeepSpeed configuration, written in the recipe or in a file."""
    if run.deepspeed:
        yield (run.deepspeed,)


def accelerate_file(run: RunSettings) -> Iterator[tuple[AccelerateFile]]:
    """Yield the accelerate file that the header block names."""
    if run.accelerate:
        yield (run.accelerate,)


def datasets(run: RunSettings) -> Iterator[tuple[EntryPlace, Dataset]]:
    """Yield each data set that is named and defined, with what gives places in its entry: `at("columns", "prompt")`."""
    if run.data.registry is None or run.data.is_tokenized:
        return
    for key in ("dataset", "eval_dataset"):
        for name in dict.fromkeys(run.args.words(key)):
            if dataset := run.data.registry.get(name):
                yield partial(in_registry_entry, run, key, dataset), dataset


def checkpoint(run: RunSettings) -> Iterator[tuple[TrainerCheckpoint]]:
    """Yield the checkpoint of an earlier run from which this one goes on."""
    if saved := checkpoints.resume_checkpoint(run):
        yield (saved,)
