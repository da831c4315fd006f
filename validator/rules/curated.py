"""CUR: this repository's own conventions, for files of its recipes/ that carry a header block. Nobody else is bound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.job.naming import name, predicted
from validator.rules.rule import Finding, rule
from validator.tables.checkout import home

_HEADER = {
    "summary": "one line on what it trains",
    "machine": "such as 8xascend-910b-64g",
    "host_ram_gib": "main memory of a node",
    "samples": "recommended number of samples",
}


def _curated(job: Job) -> bool:
    """What a command line asks beyond the file, a user's own run, is not the catalogue's concern."""
    return bool(job.header) and job.as_written and Path(job.path).absolute().parent == home() / "recipes"


@rule("CUR001", Severity.WARNING)
def name_not_derived(job: Job) -> Iterator[Finding]:
    """The file name does not say what the recipe holds.

    Why: recipes are found by name: model, hardware, method.
    Source: own (this repository's conventions)
    Fix: name it `<model>-<device>[x<count>]-<method>[-<variant>].yaml`; the message says the derived form.
    """
    stem = Path(job.path).stem
    named = _curated(job) and job.model is not None and job.model.short is not None
    if named and (derived := name(job)) and stem != derived and not stem.startswith(f"{derived}-"):
        yield None, f"is named {stem}.yaml, but its contents say {derived}[-variant].yaml; rename it"


@rule("CUR002", Severity.WARNING)
def header_incomplete(job: Job) -> Iterator[Finding]:
    """The header block of a catalogue recipe lacks a field.

    Why: the catalogue lists and judges recipes by these fields.
    Source: own (this repository's conventions)
    Fix: add the field to the block between `# /// recipe` and `# ///`.
    """
    if _curated(job):
        for field, what in _HEADER.items():
            if job.header.get(field) is None:
                yield None, f"header block lacks `{field}` ({what}); add it"


@rule("CUR003", Severity.WARNING)
def prediction_drifted(job: Job) -> Iterator[Finding]:
    """The `predicted` field differs from what the tool computes.

    Why: readers choose by it, and it changes with the recipe and with the memory model.
    Source: own (this repository's conventions)
    Fix: `make tables` rewrites the line in every recipe; or paste the values of the message. Hours, which take longer
    to compute, are compared by `python tools/derive.py --check` alone.
    """
    now, told = predicted(job), job.header.get("predicted")
    hours = {"hours": told["hours"]} if isinstance(told, dict) and "hours" in told else {}
    if _curated(job) and now and told != {**now, **hours}:
        written = ", ".join(f"{key}: {value}" for key, value in {**now, **hours}.items())
        yield "predicted", f"predicted differs from what is computed; write `predicted: {{{written}}}`"


@rule("CUR004", Severity.WARNING)
def left_from_an_example(job: Job) -> Iterator[Finding]:
    """A catalogue recipe limits the number of samples.

    Why: users copy it and train on a fraction of their data without noticing.
    Source: own (this repository's conventions)
    Fix: remove `max_samples`.
    """
    if _curated(job) and job.has("max_samples"):
        yield "max_samples", f"`max_samples: {job.get('max_samples')}` would cut a user's data silently; remove it"
