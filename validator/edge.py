"""The edge of the program: streams, the one expected exception, exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from validator.diagnostic import RecipeError


def run(command: Callable[[], object]) -> NoReturn:
    """Run the command and end the process. Exit codes: 0 no error, 1 findings, 2 usage, 3 our own bug."""
    for stream in (sys.stdout, sys.stderr):
        # File names need not be UTF-8, and a terminal need not show block characters: escape rather than fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _guard(command)
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else 0)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End the process without taking every module down one by one, which takes as long as a twentieth of a check."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader of a pipe has gone, or the disk is full
        code = code or 130
    os._exit(code)


def _guard(command: Callable[[], object]) -> None:
    try:
        command()
    except RecipeError as err:
        sys.stderr.write(f"lmf-recipes: {err}\n")
        sys.exit(1)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
    except Exception as err:
        import tempfile
        import traceback

        with tempfile.NamedTemporaryFile("w", suffix=".log", prefix="lmf-recipes-", delete=False) as log:
            traceback.print_exc(file=log)
        what = f"internal error ({type(err).__name__}: {err}); details in {Path(log.name)}"
        sys.stderr.write(f"lmf-recipes: {what}\n")
        sys.exit(3)
