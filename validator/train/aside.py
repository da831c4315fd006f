"""What keeps a short run beside the real one: a folder of its own, nothing resumed, nothing told to others."""

from __future__ import annotations

from collections.abc import Iterator

from validator.job.job import Job
from validator.read.override import assignment

_ALWAYS = ("logging_steps=1", "logging_strategy=steps", "overwrite_output_dir=true", "report_to=none")
_WHERE_SET = {"resume_from_checkpoint": "null", "push_to_hub": "false", "use_swanlab": "false"}


def overrides(job: Job, output: str) -> Iterator[str]:
    """Each step is logged, in this folder alone."""
    yield from (assignment("output_dir", output), *_ALWAYS)
    yield from where_set(job, _WHERE_SET)


def where_set(job: Job, values: dict[str, str]) -> Iterator[str]:
    """Overrides of the keys that the recipe sets."""
    yield from (f"{key}={value}" for key, value in values.items() if job.get(key))
