"""How a job is started, as `explain` prints it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from validator.job.job import Job
from validator.train import handoff, launch


class Starting(NamedTuple):
    """The command of each node, or why there is none."""

    commands: Sequence[str] = ()
    problem: str | None = None


def starting(job: Job, overrides: Sequence[str]) -> Starting:
    """The recipe with the overrides, and with those that lead to what it reads beside itself, each key once."""
    if job.path == "-":
        return Starting(problem="llamafactory-cli reads a recipe from a file; save it first")
    displaced = handoff.displaced(job)
    keys = {text.partition("=")[0] for text in displaced}
    words = [*(text for text in overrides if text.partition("=")[0] not in keys), *displaced]
    spaced = [text for text in words if re.search(r"\s", text)]  # the recipe's own path is judged by PTH012
    if spaced and not job.accelerate and launch.environment(*handoff.size(job), job.zero is not None):
        says = f"`{spaced[0]}` holds a space, at which LLaMA-Factory's launcher splits; use a value without"
        return Starting(problem=says)
    return Starting(handoff.commands(job, job.path, words))
