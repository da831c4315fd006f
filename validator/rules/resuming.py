"""PTH009 to PTH011 and PTH014: what earlier runs have left, in the output folder or elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.paths import unexpanded
from validator.rules.rule import Finding, rule

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
    if folder and (steps := _checkpoints(folder)):
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
