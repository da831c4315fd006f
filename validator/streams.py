"""The standard streams: what goes out is printable, and none is missing."""

from __future__ import annotations

import io
import os
import sys
from typing import ClassVar

from validator import printable
from validator.printable import Exact

_OPEN = ((0, os.O_WRONLY), (1, os.O_RDWR), (2, os.O_RDWR))


class OutputError(Exception):
    """A standard stream takes no more: a full disk, or a pipe whose reader has gone (`gone`)."""

    def __init__(self, err: OSError) -> None:
        super().__init__((err.strerror or str(err)).lower())
        self.gone = isinstance(err, BrokenPipeError)


class Stream(io.TextIOWrapper):
    """A standard stream that shows what a terminal would obey. File names need not be UTF-8, and a terminal need not
    show block characters: what its encoding lacks is escaped, too.

    It has no `buffer`: click would write past us where the encoding is ASCII.
    """

    buffer: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(self, old: io.TextIOWrapper) -> None:
        old.flush()
        super().__init__(
            old.buffer, old.encoding, "backslashreplace", line_buffering=old.line_buffering,
            write_through=old.write_through,
        )  # fmt: skip
        self._under = old  # which closes the file when it goes

    def write(self, words: str, /) -> int:
        """Write the words, made printable; raises OutputError."""
        try:
            if not isinstance(words, Exact):
                return super().write(printable.text(words))
            super().flush()
            self._under.buffer.write(words.encode(errors="backslashreplace"))
            if self.line_buffering:
                self._under.buffer.flush()
        except OSError as err:
            raise OutputError(err) from None
        return len(words)

    def flush(self) -> None:
        """Hand on what was written; raises OutputError."""
        try:
            super().flush()
        except OSError as err:
            raise OutputError(err) from None

    def close(self) -> None:
        """Hand on what was written; the file stays open, as it is not ours."""
        self.flush()


def open_all() -> None:
    """Replace the standard streams. Where one was closed (`>&-`), the next file to be opened would take its number and
    be written to by our own messages and those of processes we start: it becomes /dev/null, as git does. Standard
    input becomes one that cannot be read, so that a recipe from it is not taken for an empty one."""
    for number, mode in _OPEN:
        if (sys.stdin, sys.stdout, sys.stderr)[number] is None:
            null = os.open(os.devnull, mode)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)))
    sys.stdout, sys.stderr = _stream(sys.stdout, 1), _stream(sys.stderr, 2)


def _stream(old: object, number: int) -> Stream | object:
    if old is None:
        old = io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), line_buffering=number == 2)
    return Stream(old) if isinstance(old, io.TextIOWrapper) and not isinstance(old, Stream) else old
