"""PTH009 to PTH011, PTH014 and PTH015: what earlier runs have left, in the output folder or elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from validator.diagnostic import RecipeError, Severity
from validator.job.job import Job
from validator.read.tree import read_json
from validator.rules.paths import unexpanded
from validator.rules.rule import Finding, rule
from validator.tables import models
from validator.tables.models import Model

# extras/constants.py, CHECKPOINT_NAMES
_WEIGHTS = (
    "adapter_model.safetensors", "adapter_model.bin", "model.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip


@rule("PTH009", Severity.ERROR)
def output_occupied(job: Job) -> Iterator[Finding]:
    """The output folder holds weights of an earlier run, and no checkpoint to resume from.

    Why: every process stops while the arguments are parsed: "Output directory already exists and is not empty".
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: another `output_dir`, or `overwrite_output_dir: true`.
    """
    folder = _output(job)
    if folder and not _checkpoints(folder) and (held := [name for name in _WEIGHTS if (folder / name).is_file()]):
        yield "output_dir", f"`{folder}` already holds {held[0]}; choose another, or set `overwrite_output_dir: true`"


@rule("PTH010", Severity.WARNING)
def silently_resumed(job: Job) -> Iterator[Finding]:
    """The output folder holds checkpoints, which LLaMA-Factory resumes without being asked.

    Why: training goes on from the last step of the earlier run, or ends at once, whatever the recipe now says.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: `resume_from_checkpoint` if that is meant, else another `output_dir` or `overwrite_output_dir: true`.
    """
    folder = _output(job)
    if folder and (steps := _checkpoints(folder)) and not _of_another(job, folder, max(steps)):
        yield (
            "output_dir",
            (
                f"`{folder}` holds checkpoint-{max(steps)}, from which training resumes without being asked; "
                "set `resume_from_checkpoint` if it shall, else another `output_dir`"
            ),
        )


@rule("PTH011", Severity.WARNING)
def tokenized_data_wins(job: Job) -> Iterator[Finding]:
    """`tokenized_path` holds data, so all other data settings are ignored.

    Why: LLaMA-Factory loads what lies there; `dataset`, `cutoff_len`, `template` and `max_samples` have no effect.
    Source: llamafactory/data/loader.py:get_dataset, llamafactory/extras/misc.py:has_tokenized_data
    Fix: remove the folder to tokenize anew, or name another.
    """
    if job.tokenized:
        yield (
            "tokenized_path",
            (
                f"`{job.get('tokenized_path')}` already holds data: `dataset`, `cutoff_len` and the like are ignored; "
                "remove it to tokenize anew"
            ),
        )


@rule("PTH014", Severity.ERROR)
def checkpoint_missing(job: Job) -> Iterator[Finding]:
    """`resume_from_checkpoint` names a checkpoint that is not there.

    Why: "Can't find a valid checkpoint", after the data set is tokenized and the model is loaded on every rank.
    Source: transformers/trainer.py:Trainer._load_from_checkpoint
    Fix: name an existing checkpoint-N folder, or leave the key out for a first run.
    """
    value = job.get("resume_from_checkpoint")
    if not value or not job.trains or _never_resumes(job):
        return
    if value is True:
        folder = _folder(job)
        if folder is None or not _checkpoints(folder):
            yield "resume_from_checkpoint", "there is no checkpoint in `output_dir` to resume from; leave the key out"
    elif isinstance(value, str) and not job.find(value) and not unexpanded(value):
        yield "resume_from_checkpoint", f"`{value}` does not exist; name a checkpoint-N folder"


@rule("PTH015", Severity.ERROR)
def checkpoint_of_another_model(job: Job) -> Iterator[Finding]:
    """The output folder holds a checkpoint of another model, which LLaMA-Factory resumes without being asked.

    Why: its weights are loaded into this model: a size mismatch after the data set is tokenized and the model is loaded
    on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args, transformers/trainer.py:Trainer._load_from_checkpoint
    Fix: another `output_dir`.
    """
    folder = _output(job)
    if folder and (steps := _checkpoints(folder)) and (other := _of_another(job, folder, max(steps))):
        held = f"`{folder}` holds checkpoint-{max(steps)} of {other}"
        yield "output_dir", f"{held}, from which training would resume; choose another `output_dir`"


def _of_another(job: Job, folder: Path, step: int) -> str | None:
    """The model that a checkpoint was made from, where its type, width or depth is another; None where it is not, or
    cannot be told."""
    place = folder / f"checkpoint-{step}"
    adapter = place / "adapter_config.json"
    try:
        base = str(read_json(str(adapter)).get("base_model_name_or_path")) if adapter.is_file() else str(place)
        there = job.find(base)
        maker = models.model(str(there[0]) if there and (there[0] / "config.json").is_file() else base)
    except (RecipeError, AttributeError):  # the latter: an adapter_config.json that is no mapping
        return None
    if job.model is None or _build(maker) == _build(job.model):
        return None
    return (
        base
        if adapter.is_file()
        else f"another model ({maker.kind}, {maker.arch.layers} layers of {maker.arch.hidden})"
    )


def _build(model: Model) -> tuple[str, int, int]:
    return model.kind, model.arch.hidden, model.arch.layers


def _never_resumes(job: Job) -> bool:
    return job.stage in ("rm", "ppo") and job.method in ("full", "freeze")


def _output(job: Job) -> Path | None:
    """The output folder where LLaMA-Factory would look for an earlier run (hparams/parser.py)."""
    asked = job.has("resume_from_checkpoint") or job.flag("overwrite_output_dir") or not job.trains
    return None if asked or _never_resumes(job) else _folder(job)


def _folder(job: Job) -> Path | None:
    """The output folder, where it exists; the Trainer's own default is `trainer_output`."""
    written = Path(str(job.get("output_dir") or "trainer_output"))
    try:
        folder = written.expanduser()
    except RuntimeError:  # no such user: taken literally, as LLaMA-Factory does
        folder = written
    location = job.find(str(folder))
    return folder if location and location[1] and location[0].is_dir() else None


def _checkpoints(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder."""
    matches = (re.fullmatch(r"checkpoint-(\d+)", path.name) for path in folder.iterdir() if path.is_dir())
    return [int(match[1]) for match in matches if match]
