"""Runs a scheduler's own client (`sbatch`, `sky`, `kubectl`) as a subprocess and waits for its end. The client is never
killed, because what the client has started at the scheduler may cost money. Ctrl-C at a terminal reaches the client
directly; SIGTERM and SIGHUP are passed on to the client."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from validator.errors import RecipeError, os_reason
from validator.processes import communicate_in_turns, handle_end_signals


def run_client(words: Sequence[str], text: str, remedy: str) -> str:
    """Run a scheduler's client (the command `words`) with `text`, the job, on standard input, and return what the
    client prints. Raises RecipeError with the client's message if its exit code is not 0, or with `remedy` if the
    client is not installed."""
    ended = _run_to_end(words, remedy, text)
    if ended.returncode:
        message = " ".join((ended.stderr or ended.stdout).split()) or f"ended with exit code {ended.returncode}"
        raise RecipeError(f"{words[0]} refuses the job: {message}")
    return ended.stdout.strip()


def run_interactive(words: Sequence[str], remedy: str) -> None:
    """Run a scheduler's client (the command `words`) at this terminal, where the client can print and ask questions.
    Raises RecipeError if its exit code is not 0, or with `remedy` if the client is not installed."""
    ended = _run_to_end(words, remedy)
    if ended.returncode:
        raise RecipeError(f"{words[0]} did not take the job (exit code {ended.returncode}); its own words stand above")


def _run_to_end(words: Sequence[str], remedy: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's client (the command `words`) to its end and return its exit code and output. If `text` is
    given, it becomes the client's standard input and the output is captured; otherwise the client uses the terminal.
    Raises RecipeError if the client cannot be started, or with `remedy` if it is not installed. Exits with 128 + n if
    this process has received signal n."""
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
        printed = communicate_in_turns(client, text)
    if came:
        sys.exit(128 + came[0])
    return subprocess.CompletedProcess(words, client.returncode, *printed)
