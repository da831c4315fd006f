"""Runs a scheduler's own client (`sbatch`, `sky`, `kubectl`) as a subprocess. It ends by itself, as what it has begun
at the scheduler may cost: Ctrl-C at a terminal reaches it, too, and SIGTERM and SIGHUP are passed on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from validator.errors import RecipeError, os_reason
from validator.processes import handle_end_signals


def run_client(words: Sequence[str], text: str, remedy: str) -> str:
    """Give the client the job on standard input, and return what it prints. Raises RecipeError: with the client's own
    words if it refuses the job, with the remedy if it is not installed."""
    ended = _run_to_end(words, remedy, text)
    if ended.returncode:
        said = " ".join((ended.stderr or ended.stdout).split()) or f"ended with exit code {ended.returncode}"
        raise RecipeError(f"{words[0]} refuses the job: {said}")
    return ended.stdout.strip()


def run_interactive(words: Sequence[str], remedy: str) -> None:
    """Let the client speak and ask at this terminal. Raises RecipeError as `run_client` does."""
    ended = _run_to_end(words, remedy)
    if ended.returncode:
        raise RecipeError(f"{words[0]} did not take the job (exit code {ended.returncode}); its own words stand above")


def _run_to_end(words: Sequence[str], remedy: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the client to its end. With a text for standard input, its output is captured."""
    if shutil.which(words[0]) is None:
        raise RecipeError(f"{words[0]} is not installed here; {remedy}")
    pipe = None if text is None else subprocess.PIPE
    try:
        client = subprocess.Popen(words, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as err:
        raise RecipeError(f"{words[0]} cannot be started: {os_reason(err)}") from None
    came: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if number != signal.SIGINT:
            client.send_signal(number)

    with handle_end_signals(forward):
        printed = client.communicate(text)
    if came:
        sys.exit(128 + came[0])
    return subprocess.CompletedProcess(words, client.returncode, *printed)
