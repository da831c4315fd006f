"""The edge of the program: standard streams that print nothing a terminal would obey, the expected exceptions as
messages, and exit codes."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NoReturn

from validator import escaping
from validator.errors import RecipeError, os_reason
from validator.escaping import RawText
from validator.wrapping import terminal_width, wrap_line

_STREAM_MODES = ((0, os.O_WRONLY), (1, os.O_RDWR), (2, os.O_RDWR))


class OutputError(Exception):
    """A standard stream cannot be written: the disk is full, or the reader of a pipe has ended (`gone`)."""

    def __init__(self, err: OSError) -> None:
        super().__init__(os_reason(err))
        self.gone = isinstance(err, BrokenPipeError)


class EscapingStream(io.TextIOWrapper):
    """A standard stream that escapes whatever a terminal would obey instead of show. Characters that the stream's
    encoding lacks are escaped too, because file names need not be UTF-8. The class has no `buffer`; with one, click
    would write to it directly if the encoding is ASCII."""

    buffer: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(self, old: io.TextIOWrapper) -> None:
        old.flush()
        super().__init__(
            old.buffer, old.encoding, "backslashreplace", line_buffering=old.line_buffering,
            write_through=old.write_through,
        )  # fmt: skip
        self._under = old  # which closes the file when it goes

    def write(self, words: str, /) -> int:
        """Write the text with control characters escaped. Raises OutputError."""
        try:
            if not isinstance(words, RawText):
                return super().write(escaping.escape_text(words))
            super().flush()
            self._under.buffer.write(words.encode(errors="backslashreplace"))
            if self.line_buffering:
                self._under.buffer.flush()
        except OSError as err:
            raise OutputError(err) from None
        return len(words)

    def flush(self) -> None:
        """Flush the stream. Raises OutputError."""
        try:
            super().flush()
        except OSError as err:
            raise OutputError(err) from None

    def close(self) -> None:
        """Flush the stream and leave it open, because the interpreter owns it. Raises OutputError."""
        self.flush()


def open_streams() -> None:
    """Replace the standard streams. A stream that the caller closed (`>&-`) becomes /dev/null, as git does it;
    otherwise the next opened file would get its number, and messages would be written into that file. A closed standard
    input becomes a stream that cannot be read, so that a recipe read from it is not taken for an empty one."""
    for number, mode in _STREAM_MODES:
        if (sys.stdin, sys.stdout, sys.stderr)[number] is None:
            null = os.open(os.devnull, mode)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)))
    sys.stdout, sys.stderr = _wrap_stream(sys.stdout, 1), _wrap_stream(sys.stderr, 2)


def _wrap_stream(old: object, number: int) -> EscapingStream | object:
    if old is None:
        old = io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), line_buffering=number == 2)
    return EscapingStream(old) if isinstance(old, io.TextIOWrapper) and not isinstance(old, EscapingStream) else old


# What a shell says of a program that a signal ended: 128 and its number.
_EXIT_INTERRUPTED, _EXIT_NO_READER = 130, 141


def run_program(command: Callable[[], object]) -> NoReturn:
    """Run the command and end the process. Exit codes: 0 no error; 1 findings, bad input, or output that cannot be
    written; 2 wrong usage or a configuration file that
    cannot be used; 3 a bug of this program; 130 after Ctrl-C; 141 if the reader of a pipe has ended."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        open_streams()
        _run_with_messages(command)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        code = _EXIT_INTERRUPTED
    except OutputError as err:
        os._exit(_report_output_error(err))  # what is left of it can be written no more than what was
    _exit_fast(code)


def _exit_fast(code: int) -> NoReturn:
    """End the process without tearing down each module, which would take a twentieth of the time of a check."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OutputError as err:
        code = code if code > 1 else _report_output_error(err)
    except KeyboardInterrupt:
        code = _EXIT_INTERRUPTED
    os._exit(code)


def _run_with_messages(command: Callable[[], object]) -> None:
    try:
        _check_cwd()
        _run_command(command)
    except RecipeError as err:
        _exit_with_message(str(err), err.exit_code)
    except OutputError:
        raise
    except MemoryError:
        _exit_with_message("memory does not suffice; give smaller files, or fewer at once", 1)
    except Exception as err:
        _exit_with_message(f"internal error ({type(err).__name__}: {err}); {_save_traceback(err)}", 3)


def _run_command(command: Callable[[], object]) -> None:
    try:
        command()
    except FileNotFoundError:
        _check_cwd()  # it may have been removed in the meantime
        raise


def _check_cwd() -> None:
    """Raise RecipeError if the working directory was removed, because relative paths then lead nowhere."""
    try:
        Path.cwd()
    except OSError as err:
        raise RecipeError(f"the working folder cannot be read: {os_reason(err)}; change into one that exists") from None


def _exit_with_message(message: str, code: int) -> NoReturn:
    try:
        _print_error(message)
    except OutputError as err:  # nobody can be told
        code = _EXIT_NO_READER if err.gone else code
    sys.exit(code)


def _print_error(message: str) -> None:
    lines = wrap_line(f"lmf-recipes: {message}", terminal_width(sys.stderr))
    sys.stderr.write(escaping.escape_lines(lines))
    sys.stderr.flush()


def _report_output_error(err: OutputError) -> int:
    """Return the exit code for a stream that cannot be written. Nothing is printed if the reader has ended."""
    if err.gone:
        return _EXIT_NO_READER
    with suppress(OutputError):
        _print_error(f"the output cannot be written: {err}")
    return 1


def _save_traceback(err: Exception) -> str:
    """Return the file in which the traceback was saved, or the traceback's last place if no folder can be written."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", suffix=".log", prefix="lmf-recipes-", delete=False) as log:
            log.write("".join(traceback.format_exception(err)).encode(errors="backslashreplace").decode())
    except OSError as why:
        last = traceback.extract_tb(err.__traceback__)[-1]
        return f"at {last.filename}:{last.lineno}; no details are kept: {os_reason(why)}"
    return f"details in {log.name}"
