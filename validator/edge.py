"""The edge of the program: streams, the expected exceptions, exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from validator import printable, streams
from validator.diagnostic import RecipeError
from validator.streams import OutputError

# What a shell says of a program that a signal ended: 128 and its number.
_INTERRUPTED, _NO_READER = 130, 141


def run(command: Callable[[], object]) -> NoReturn:
    """Run the command and end the process. Exit codes: 0 no error, 1 findings, bad input or output that cannot be
    written, 2 usage, 3 our own bug; 130 after Ctrl-C, 141 where the reader of a pipe has gone."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        streams.open_all()
        _guard(command)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except OutputError as err:
        os._exit(_unwritten(err))  # what is left of it can be written no more than what was
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process without taking every module down one by one, which takes as long as a twentieth of a check."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OutputError as err:
        code = code if code > 1 else _unwritten(err)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    os._exit(code)


def _guard(command: Callable[[], object]) -> None:
    try:
        _here()
        _started(command)
    except RecipeError as err:
        _end(str(err), 1)
    except OutputError:
        raise
    except MemoryError:
        _end("memory does not suffice; give smaller files, or fewer at once", 1)
    except Exception as err:
        _end(f"internal error ({type(err).__name__}: {err}); {_kept(err)}", 3)


def _started(command: Callable[[], object]) -> None:
    try:
        command()
    except FileNotFoundError:
        _here()  # it may have been removed in the meantime
        raise


def _here() -> None:
    """Nothing works in a folder that was removed, as git says, too: relative paths lead nowhere."""
    try:
        Path.cwd()
    except OSError as err:
        why = str(err.strerror).lower()
        raise RecipeError(f"the working folder cannot be read: {why}; change into one that exists") from None


def _end(message: str, code: int) -> NoReturn:
    _tell(message)
    sys.exit(code)


def _tell(message: str) -> None:
    with suppress(OutputError):  # nobody can be told
        sys.stderr.write(f"lmf-recipes: {printable.line(message)}\n")
        sys.stderr.flush()


def _unwritten(err: OutputError) -> int:
    """The exit code where a stream takes no more; a reader that has gone wants to hear nothing."""
    if err.gone:
        return _NO_READER
    _tell(f"the output cannot be written: {err}")
    return 1


def _kept(err: Exception) -> str:
    """Where the traceback is kept; its last place where there is no folder for it."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", suffix=".log", prefix="lmf-recipes-", delete=False) as log:
            log.write("".join(traceback.format_exception(err)).encode(errors="backslashreplace").decode())
    except OSError as why:
        last = traceback.extract_tb(err.__traceback__)[-1]
        return f"at {last.filename}:{last.lineno}; no details are kept: {why.strerror}"
    return f"details in {log.name}"
