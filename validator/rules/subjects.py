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


def model(job: RunSettings) -> Iterator[tuple[Model]]:
    """Yield the model, if its shapes are known."""
    if job.model:
        yield (job.model,)


def multimodal_model(job: RunSettings) -> Iterator[tuple[Model, Workload]]:
    """Yield a model that sees or hears, whose parts are known by name, and what a step computes of it."""
    prediction = predict(job)
    if job.model and job.model.modules and prediction.workload:
        yield job.model, prediction.workload


def machine(job: RunSettings) -> Iterator[tuple[Machine]]:
    """Yield the machine that the run is judged for."""
    if job.machine:
        yield (job.machine,)


def device(job: RunSettings) -> Iterator[tuple[Device]]:
    """Yield the machine's device, if it is known what that can do (else DEV017 tells)."""
    if job.machine and job.machine.device.vendor != "unknown":
        yield (job.machine.device,)


def deepspeed_file(job: RunSettings) -> Iterator[tuple[DeepSpeedConfig]]:
    """Yield the DeepSpeed configuration, written in the recipe or in a file."""
    if job.deepspeed:
        yield (job.deepspeed,)


def accelerate_file(job: RunSettings) -> Iterator[tuple[AccelerateFile]]:
    """Yield the accelerate file that the header block names."""
    if job.accelerate:
        yield (job.accelerate,)


def datasets(job: RunSettings) -> Iterator[tuple[EntryPlace, Dataset]]:
    """Yield each data set that is named and defined, with what gives places in its entry: `at("columns", "prompt")`."""
    if job.data.registry is None or job.data.is_tokenized:
        return
    for key in ("dataset", "eval_dataset"):
        for name in dict.fromkeys(job.args.words(key)):
            if dataset := job.data.registry.get(name):
                yield partial(in_registry_entry, job, key, dataset), dataset


def checkpoint(job: RunSettings) -> Iterator[tuple[TrainerCheckpoint]]:
    """Yield the checkpoint of an earlier run from which this one goes on."""
    if saved := checkpoints.resume_checkpoint(job):
        yield (saved,)
