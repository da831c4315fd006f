"""PTH009 to PTH011, PTH014 and PTH015: what earlier runs have left, in the output folder or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from validator.diagnostic import RecipeError, Severity
from validator.job import resumption
from validator.job.job import Job
from validator.read import disk
from validator.rules import inside
from validator.rules.paths import unexpanded
from validator.rules.rule import Finding, rule
from validator.tables import models
from validator.tables.models import Model

if TYPE_CHECKING:  # few recipes have an output folder that is there
    from validator.tables.saved import Saved


@rule("PTH009", Severity.ERROR)
def output_occupied(job: Job) -> Iterator[Finding]:
    """The output folder holds weights of an earlier run, and no checkpoint to resume from.

    Why: every process stops while the arguments are parsed: "Output directory already exists and is not empty".
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: another `output_dir`, or `overwrite_output_dir: true`.
    """
    held = resumption.results(job) if resumption.unasked(job) and not resumption.there(job) else []
    if held:
        folder = resumption.output(job)
        yield "output_dir", f"`{folder}` already holds {held[0]}; choose another, or set `overwrite_output_dir: true`"


@rule("PTH010", Severity.WARNING)
def silently_resumed(job: Job) -> Iterator[Finding]:
    """The output folder holds checkpoints, which LLaMA-Factory resumes without being asked.

    Why: training goes on from the last step of the earlier run, or ends at once, whatever the recipe now says.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: `resume_from_checkpoint` if that is meant, else another `output_dir` or `overwrite_output_dir: true`.
    """
    saved = _unasked(job)
    if saved and not _of_another(job, saved):
        yield (
            "output_dir",
            (
                f"`{resumption.output(job)}` holds {saved.name}, from which training resumes without being asked; "
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
    """`resume_from_checkpoint` names a checkpoint that is not there, or not whole.

    Why: "Can't find a valid checkpoint" or a file that is cut off, after the data set is tokenized and the model is
    loaded on every rank.
    Source: transformers/trainer.py:Trainer._load_from_checkpoint
    Fix: name an existing checkpoint-N folder, or leave the key out for a first run.
    """
    value = job.get("resume_from_checkpoint")
    if not value or not job.trains or resumption.never(job):
        return
    if value is True:
        if not resumption.there(job):
            yield "resume_from_checkpoint", "there is no checkpoint in `output_dir` to resume from; leave the key out"
    elif isinstance(value, str) and not job.find(value) and not unexpanded(value):
        yield "resume_from_checkpoint", f"`{value}` does not exist; name a checkpoint-N folder"
    elif (named := next(iter(resumption.chosen(job)), None)) and named.flaw:
        where = inside.checkpoint(job, "resume_from_checkpoint")
        yield where, f"`{value}` is no whole checkpoint ({named.flaw}); name another"


@rule("PTH015", Severity.ERROR)
def checkpoint_of_another_model(job: Job) -> Iterator[Finding]:
    """The output folder holds a checkpoint of another model, which LLaMA-Factory resumes without being asked.

    Why: its weights are loaded into this model: a size mismatch after the data set is tokenized and the model is loaded
    on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args, transformers/trainer.py:Trainer._load_from_checkpoint
    Fix: another `output_dir`.
    """
    saved = _unasked(job)
    if saved and (other := _of_another(job, saved)):
        held = f"`{resumption.output(job)}` holds {saved.name} of {other}"
        where = inside.checkpoint(job, "output_dir")
        yield where, f"{held}, from which training would resume; choose another `output_dir`"


def _unasked(job: Job) -> Saved | None:
    """The checkpoint that is taken although the recipe names none."""
    return resumption.source(job) if resumption.unasked(job) else None


def _of_another(job: Job, saved: Saved) -> str | None:
    """The model that a checkpoint was made from, where its type, width or depth is another; None where it is not, or
    cannot be told."""
    base = str(saved.adapter.get("base_model_name_or_path")) if saved.adapter else str(saved.path)
    there = job.find(base)
    try:
        maker = models.model(str(there[0]) if there and disk.kind(there[0] / "config.json") == "file" else base)
    except RecipeError:
        return None
    if job.model is None or _build(maker) == _build(job.model):
        return None
    return base if saved.adapter else f"another model ({maker.kind}, {maker.arch.layers} layers of {maker.arch.hidden})"


def _build(model: Model) -> tuple[str, int, int]:
    return model.kind, model.arch.hidden, model.arch.layers
