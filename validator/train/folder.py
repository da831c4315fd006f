"""The folders of the model and its adapters on this machine: whether a run can load them, or would learn nothing from
them."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job import earlier
from validator.job.job import Job
from validator.read import disk
from validator.tables import checkpoint
from validator.train.room import Shortage


def lacking(job: Job) -> Iterator[Shortage]:
    """What the folders lack. Without weights LLaMA-Factory stops; without a tokenizer transformers makes up an empty
    one, and the run ends well with nothing learned. An adapter may have to be trained first."""
    for path in job.words("adapter_name_or_path"):
        if not job.find(path) and (before := earlier.adapter(job.path, path)):
            yield Severity.ERROR, f"`{path}` does not exist yet; train `{before}` first"
    name = job.get("model_name_or_path")
    place = job.find(name) if isinstance(name, str) and name else None
    if place and disk.kind(place[0] / "config.json") == "file":
        scratch = job.flag("train_from_scratch")
        parts = [*checkpoint.missing(place[0], scratch=scratch), *(() if scratch else checkpoint.partial(place[0]))]
        if parts:
            remedy = "get them from where the model comes from"
            yield Severity.ERROR, f"`{name}` holds no {' and no '.join(parts)}; {remedy}"
