"""An engine's own client, as a subprocess."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from validator.diagnostic import RecipeError


def run(words: Sequence[str], text: str, remedy: str) -> str:
    """What the client prints when it gets the job on standard input. Raises RecipeError with its own words where it
    refuses, or, with the remedy, where it is not installed."""
    ended = _ended(words, remedy, input=text, capture_output=True)
    if ended.returncode:
        said = " ".join((ended.stderr or ended.stdout).split()) or f"ended with exit code {ended.returncode}"
        raise RecipeError(f"{words[0]} refuses the job: {said}")
    return ended.stdout.strip()


def shown(words: Sequence[str], remedy: str) -> None:
    """Lets the client speak and ask at this terminal. Raises RecipeError as `run` does."""
    ended = _ended(words, remedy)
    if ended.returncode:
        raise RecipeError(f"{words[0]} did not take the job (exit code {ended.returncode}); its own words stand above")


def _ended(words: Sequence[str], remedy: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    if shutil.which(words[0]) is None:
        raise RecipeError(f"{words[0]} is not installed here; {remedy}")
    try:
        return subprocess.run(words, text=True, check=False, **streams)
    except OSError as err:
        raise RecipeError(f"{words[0]} cannot be started: {err.strerror}") from None
