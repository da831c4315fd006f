"""How a job is started, as `explain` prints it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
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
    spaced = [text for text in (job.path, *words) if re.search(r"\s", text)]
    if spaced and not job.accelerate and launch.environment(*handoff.size(job), job.zero is not None):
        return Starting(problem=_split(job, spaced[0]))
    return Starting(handoff.commands(job, job.path, words))


def _split(job: Job, text: str) -> str:
    """Under torchrun the launcher joins its arguments and splits them at spaces (launcher.py)."""
    folder = str(Path(job.path).parent)
    there = re.search(r"\s", folder) and text == job.path
    remedy = f"run `cd {shlex.quote(folder)}`, and explain it there" if there else "use a path without"
    return f"`{text}` holds a space, at which LLaMA-Factory's launcher splits; {remedy}"
