"""An engine's own client, as a subprocess."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from validator.diagnostic import RecipeError


def run(words: Sequence[str], text: str, remedy: str) -> str:
    """What the client prints when it gets the job on standard input. Raises RecipeError with its own words where it
    refuses, or, with the remedy, where it is not installed."""
    if shutil.which(words[0]) is None:
        raise RecipeError(f"{words[0]} is not installed here; {remedy}")
    try:
        ended = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    except OSError as err:
        raise RecipeError(f"{words[0]} cannot be started: {err.strerror}") from None
    if ended.returncode:
        said = " ".join((ended.stderr or ended.stdout).split()) or f"ended with exit code {ended.returncode}"
        raise RecipeError(f"{words[0]} refuses the job: {said}")
    return ended.stdout.strip()
