"""Rows of data files, one at a time: nothing is ever read whole that need not be."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from validator.diagnostic import RecipeError
from validator.read.tree import deep
from validator.study import ceiling, columnar, delimited
from validator.study.opening import opened, plain
from validator.study.values import TOO_DEEP, UnreadableError, Values

loads: Callable[[bytes], Any] = json.loads
with contextlib.suppress(ImportError):  # several times faster, with the [data] extra
    from orjson import loads

Rows = Iterator[tuple[int, dict[str, Any]]]
_LINE = 1 << 20  # bytes of a first line that is looked at
# Rows whose keys are looked at one by one: what names a key twice does so in every row, and the look takes long.
_LOOKED = 100


def rows(path: Path, span: tuple[int, int] | None = None) -> Rows:
    """Rows with their numbers: of the line in files of lines, else of the row. `span` is the part of a file of lines to
    read, in bytes; numbers then count from its beginning. Raises UnreadableError, and
    RecipeError for what is not looked into."""
    try:
        with opened(path) as stream:
            yield from _lines(stream, span) if span else _READERS[path.suffix[1:]](stream)
    except RecipeError as err:
        raise type(err)(f"`{path}`: {err}") from None


def first(paths: Iterable[Path], number: int) -> list[dict[str, Any]]:
    """So many rows of all files together, fewer where they are large, up to one that cannot be read; files of no known
    type have none. Raises UnreadableError where nothing can be read."""
    held, weight = list[dict[str, Any]](), 0
    try:
        for _, row in chain.from_iterable(rows(path) for path in paths if path.suffix[1:] in _READERS):
            held.append(row)
            weight += ceiling.weight(row)
            if len(held) == number or weight > ceiling.HELD:
                break
    except UnreadableError:
        if not held:
            raise
    return held


def count(path: Path) -> int:
    """How many rows a file has: what a parquet file says, else the rows that can be read. Raises UnreadableError."""
    if path.suffix != ".parquet":
        return sum(1 for _ in rows(path))
    with opened(path) as stream:
        return columnar.stated(stream)


def in_lines(path: Path) -> bool:
    """Whether the file is JSON with one object on each line, not packed, so that it can be read in parts."""
    with plain(path) as stream:
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
    for number, line in enumerate(iter(partial(stream.readline, ceiling.ROW + 1), b""), 1):
        if len(line) > ceiling.ROW:
            raise ceiling.row(number)
        if number == 1 and position == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
        if number <= _LOOKED and not span:
            _look(line, number)
        try:
            row = loads(line)
        except ValueError as err:
            if not begun and line.strip() and (values := _spread(stream)):
                yield from values
                return
            yield from ((number, row) for row in _several(line, number, err))
        else:
            if line.count(b"[") + line.count(b"{") > ceiling.DEPTH and deep(row, ceiling.DEPTH):
                raise UnreadableError(number, TOO_DEEP)
            yield number, _object(row, number, begun)
        begun = begun or bool(line.strip())
        position += len(line)
        if span and position >= end:
            return


def _several(line: bytes, number: int, err: ValueError) -> list[dict[str, Any]]:
    """No object or more than one on a line, which Arrow reads, too."""
    if not line.strip():
        return []
    try:
        return [_object(value, number) for value in Values(io.BytesIO(line))]
    except UnreadableError as wrong:
        raise UnreadableError(number, _why(line, err, str(wrong))) from None


def _look(line: bytes, number: int) -> None:
    """Raises UnreadableError where a key is there twice."""
    with contextlib.suppress(ValueError, RecursionError):  # which are told of where the line is read
        json.loads(line, object_pairs_hook=partial(_once, number), parse_int=str, parse_float=str)


def _once(number: int, pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise UnreadableError(number, f"has the key `{max(names, key=names.count)}` twice")


def _object(row: Any, number: int, begun: bool = True) -> dict[str, Any]:
    if row is None and begun:  # a row without values
        return {}
    if row is None:  # tried with pyarrow 24 and 26
        raise UnreadableError(number, "is null, and Arrow crashes where the first row is; take it out")
    if not isinstance(row, dict):
        raise UnreadableError(number, "is no object of columns; each row is one")
    if len(row) > ceiling.COLUMNS:
        raise ceiling.columns(len(row))
    return row


def _why(line: bytes, err: ValueError, fault: str) -> str:
    """What is wrong with a line: `err` as the fast reader says it, `fault` as the other does."""
    if not fault.startswith("is not"):
        return fault
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
    except (UnreadableError, StopIteration) as err:
        if not str(err).startswith("is not") and isinstance(err, UnreadableError):  # it is JSON, and no row
            raise
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
        for number, line in enumerate(iter(partial(lines.readline, ceiling.ROW + 1), ""), 1):
            if len(line) > ceiling.ROW:
                raise ceiling.row(number)
            yield number, {"text": line.rstrip("\n")}
    except UnicodeDecodeError:
        raise UnreadableError(number + 1, "or one close behind it is not UTF-8 text; save it as UTF-8") from None
    finally:
        lines.detach()


_READERS: dict[str, Callable[[IO[bytes]], Rows]] = {
    "json": _json, "jsonl": _json, "txt": _text, "csv": delimited.rows,
    "parquet": partial(columnar.rows, "parquet"), "arrow": partial(columnar.rows, "arrow"),
}  # fmt: skip
