"""Rows of data files, one at a time: nothing is ever read whole that need not be."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from validator.study import columnar
from validator.study.values import UnreadableError, Values

loads: Callable[[bytes], Any] = json.loads
with contextlib.suppress(ImportError):  # several times faster, with the [data] extra
    from orjson import loads

Rows = Iterator[tuple[int, dict[str, Any]]]
_LINE = 1 << 20  # bytes of a first line that is looked at
_GZIP = b"\x1f\x8b"
# Rows whose keys are looked at one by one: what names a key twice does so in every row, and the look takes long.
_LOOKED = 100


def rows(path: Path, span: tuple[int, int] | None = None) -> Rows:
    """Rows with their numbers: of the line in files of lines, else of the row. `span` is the part of a file of lines to
    read, in bytes; numbers then count from its beginning. Raises UnreadableError."""
    kind = path.suffix[1:]
    if kind in columnar.READERS:
        try:
            yield from columnar.READERS[kind](path)
        except columnar.BrokenError as err:
            raise UnreadableError(err.row, str(err)) from None
        return
    try:
        with opened(path) as stream:
            yield from _lines(stream, span) if span else _READERS[kind](stream)
    except (gzip.BadGzipFile, EOFError) as err:
        raise UnreadableError(0, f"is a damaged gzip file ({err})") from None
    except OSError as err:
        raise UnreadableError(0, f"cannot be read: {(err.strerror or str(err)).lower()}") from None


def first(paths: Iterable[Path], number: int) -> list[dict[str, Any]]:
    """So many rows of all files together, up to one that cannot be read; files of no known type have none. Raises
    UnreadableError where nothing can be read."""
    held: list[dict[str, Any]] = []
    try:
        for path in (path for path in paths if path.suffix[1:] in {**columnar.READERS, **_READERS}):
            held.extend(row for _, row in islice(rows(path), number - len(held)))
    except UnreadableError:
        if not held:
            raise
    return held


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file; what gzip packed is unpacked on the way, as the datasets library does whatever the file is called."""
    with path.open("rb") as stream:
        packed = stream.read(2) == _GZIP
        stream.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=stream) as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            yield stream


def in_lines(path: Path) -> bool:
    """Whether the file is JSON with one object on each line, not packed, so that it can be read in parts."""
    with path.open("rb") as stream:
        head = stream.read(64).removeprefix(codecs.BOM_UTF8).lstrip()
        return head.startswith(b"{") and stream.readline(_LINE).rstrip().endswith(b"}")


def _json(stream: IO[bytes]) -> Rows:
    head = stream.read(64)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableError(0, "is UTF-16 text; save it as UTF-8")
    marked = head.startswith(codecs.BOM_UTF8)
    stream.seek(0)
    if not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        return _lines(stream)
    if marked:
        raise UnreadableError(0, "is a list behind a byte order mark, which the run refuses; save it without")
    return _listed(stream)


def _lines(stream: IO[bytes], span: tuple[int, int] | None = None) -> Rows:
    """One object on each line, blank lines between them, or objects spread over several lines."""
    position, end = span or (0, 0)
    begun = bool(span)
    stream.seek(position)
    for number, line in enumerate(stream, 1):
        if number == 1 and position == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            row = loads(line)
        except ValueError as err:
            if not begun and line.strip() and (values := _spread(stream)):
                yield from values
                return
            yield from ((number, row) for row in _several(line, number, err))
        else:
            if number <= _LOOKED and not span:
                with contextlib.suppress(RecursionError):
                    json.loads(line, object_pairs_hook=partial(_once, number))
            yield number, _object(row, number)
        begun = begun or bool(line.strip())
        position += len(line)
        if span and position >= end:
            return


def _several(line: bytes, number: int, err: ValueError) -> list[dict[str, Any]]:
    """No object or more than one on a line, which Arrow reads, too."""
    try:
        objects = [_object(value, number) for value in Values(io.BytesIO(line))]
        json.dumps(objects, ensure_ascii=False).encode()
        return objects
    except UnicodeEncodeError:
        raise UnreadableError(number, "holds half of a surrogate pair (`\\ud800` to `\\udfff`), no character") from None
    except RecursionError:
        raise UnreadableError(number, "is nested too deeply") from None
    except UnreadableError:
        raise UnreadableError(number, _why(line, err)) from None


def _once(number: int, pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise UnreadableError(number, f"has the key `{max(names, key=names.count)}` twice")


def _object(row: Any, number: int) -> dict[str, Any]:
    if row is None:  # a row without values
        return {}
    if not isinstance(row, dict):
        raise UnreadableError(number, "is no object of columns; each row is one")
    return row


def _why(line: bytes, err: ValueError) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        return f"is not UTF-8 text (byte 0x{line[wrong.start]:02x} at column {wrong.start + 1}); save it as UTF-8"
    kind = "ends in the middle" if not line.endswith((b"}\n", b"}\r\n", b"}")) else "is not valid JSON"
    return f"{kind}: {str(err).split(': line')[0].lower()}"


def _spread(stream: IO[bytes]) -> Rows | None:
    """Objects over several lines each; None, and the stream as it was, where not even the first is one."""
    position = stream.tell()
    stream.seek(0)
    values = iter(Values(stream))
    try:
        first = next(values)
    except UnreadableError:
        stream.seek(position)
        return None
    return ((number, _object(value, number)) for number, value in enumerate(chain((first,), values), 1))


def _listed(stream: IO[bytes]) -> Rows:
    """A list: of objects, or of texts, which become a column `text`."""
    for number, value in enumerate(Values(stream, "["), 1):
        if value is None:
            raise UnreadableError(number, "is null; each row of a list is an object")
        yield number, {"text": value} if isinstance(value, str) else _object(value, number)


def _text(stream: IO[bytes]) -> Rows:
    """Every line is a row, blank ones too."""
    number, lines = 0, io.TextIOWrapper(stream, "utf-8")
    try:
        for number, line in enumerate(lines, 1):
            yield number, {"text": line.rstrip("\n")}
    except UnicodeDecodeError:
        raise UnreadableError(number + 1, "or one close behind it is not UTF-8 text; save it as UTF-8") from None
    finally:
        lines.detach()


_READERS: dict[str, Callable[[IO[bytes]], Rows]] = {"json": _json, "jsonl": _json, "txt": _text}
