"""The number of rows that the footer of a Parquet file states, read without pyarrow.

The footer is a struct `FileMetaData` in Thrift's compact protocol (parquet-format, parquet.thrift; thrift,
doc/specs/thrift-compact-protocol.md). The number of rows is its third field, behind the schema."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import IO

from validator.rows.reading_limits import UnreadableError

_MAGIC = b"PAR1"
_MAX_FOOTER_BYTES = 64 << 20
_NUM_ROWS = 3  # the field of FileMetaData
# Types of the compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_MAX_VARINT_BITS = 63
_MAX_DEPTH = 16  # of a schema element it is 5


def parquet_row_count(stream: IO[bytes]) -> int:
    """Return the number of rows that the footer of a Parquet file states. Raises UnreadableError if the stream is not a
    valid Parquet file."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - 8, 0))
    end = stream.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or not 0 < length <= min(size - 12, _MAX_FOOTER_BYTES):
        raise UnreadableError(0, "is not a valid parquet file: its end is not that of one")
    stream.seek(size - 8 - length)
    footer = io.BytesIO(stream.read(length))
    try:
        rows = _find_row_count(footer)
    except (IndexError, RecursionError):
        rows = -1
    if rows < 0:
        raise UnreadableError(0, "is not a valid parquet file: its footer is damaged")
    return rows


def _find_row_count(footer: io.BytesIO) -> int:
    """Return the field `num_rows` of FileMetaData; -1 if the struct ends without it. Raises IndexError at the end of
    the footer."""
    field = 0
    while (kind := (header := footer.read(1)[0]) & 15) != _STOP:
        field = field + (header >> 4) if header >> 4 else _signed(_varint(footer))
        if field == _NUM_ROWS and kind == _I64:
            return _signed(_varint(footer))
        _skip(footer, kind, 0)
    return -1


def _varint(footer: io.BytesIO) -> int:
    value = shift = 0
    while True:
        byte = footer.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
        shift += 7
        if shift > _MAX_VARINT_BITS:
            raise IndexError


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _skip(footer: io.BytesIO, kind: int, depth: int) -> None:
    """Move behind a value of this type. Raises IndexError for an unknown type, and RecursionError if values are nested
    deeper than Parquet's are."""
    if depth > _MAX_DEPTH:
        raise RecursionError
    if kind in (_I16, _I32, _I64):
        _varint(footer)
    elif kind in (_BYTE, _DOUBLE, _BINARY):
        footer.seek({_BYTE: 1, _DOUBLE: 8}.get(kind) or _varint(footer), os.SEEK_CUR)
    elif kind in (_LIST, _SET):
        header = footer.read(1)[0]
        number = header >> 4 if header >> 4 < 15 else _varint(footer)
        _skip_elements(footer, number, [header & 15], depth + 1)
    elif kind == _MAP:
        number = _varint(footer)
        kinds = footer.read(1)[0] if number else 0
        _skip_elements(footer, number, [kinds >> 4, kinds & 15], depth + 1)
    elif kind == _STRUCT:
        _skip_fields(footer, depth + 1)
    elif kind not in (_TRUE, _FALSE):  # whose value is the type itself
        raise IndexError


def _skip_fields(footer: io.BytesIO, depth: int) -> None:
    while (kind := (header := footer.read(1)[0]) & 15) != _STOP:
        if not header >> 4:  # the field's number follows
            _varint(footer)
        _skip(footer, kind, depth)


def _skip_elements(footer: io.BytesIO, number: int, kinds: Sequence[int], depth: int) -> None:
    """Skip `number` elements of a list or a map. `kinds`: the types of the values of one element. In lists a boolean
    takes one byte. Raises IndexError if the footer is too short for that many elements."""
    if number > footer.getbuffer().nbytes:
        raise IndexError
    for _ in range(number):
        for kind in kinds:
            _skip(footer, _BYTE if kind in (_TRUE, _FALSE) else kind, depth)
