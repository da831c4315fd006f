"""Rows of JSON files: one object on each line, objects over several lines, or a list. A file is read piece by piece.
Rows that Arrow or pandas would refuse are refused here, too.

pyarrow's own reader, which the datasets library uses, is no substitute (tried with pyarrow 26.0.1): a first row `null`
and 20,000 levels of nesting end the process; 100,000 rows with 1,500 different keys in one object (7 MB) take 26 s and
1.9 GiB, because each row gets all keys; and it makes Python rows at a seventh of orjson's speed."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from math import inf
from typing import IO, Any

from validator.recipe.safe_read import is_too_deep
from validator.rows import reading_limits
from validator.rows.reading_limits import TOO_DEEP, UnreadableError

Rows = Iterator[tuple[int, dict[str, Any]]]  # the line at which a row begins (0 in a table), and the row
# Parses a line that holds one value. Raises ValueError for any other line, and may for values that JsonStream reads.
ParseLine = Callable[[bytes], Any]

_CHUNK = 1 << 20  # bytes that are read at once
_CUT_MARGIN = 32  # an error within so many characters of the end of the text that is held may come from the cut there
_GAP = re.compile(r"[\s,]*")
_MAX_INT_DIGITS = 300  # Python reads no more than 4,300 digits of a whole number, and a float holds no more than 308
_INT64_LENGTH = 20  # digits and sign of the longest number of 64 bits
# Lines that are searched for a key that stands twice: data that have one have it in every row, and the search takes
# long.
_LINES_CHECKED_FOR_REPEATED_KEYS = 100


def read_json(stream: IO[bytes], parse_line: ParseLine | None = None) -> Rows:
    """Yield the rows of a file, each with the line at which it begins. `parse_line`: the parser of a line; None for the
    standard library's. Raises UnreadableError for a file that LLaMA-Factory cannot load, and TooLargeError for a row
    beyond the reading limits."""
    head = stream.read(64)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableError(0, "is UTF-16 text; save it as UTF-8")
    marked = head.startswith(codecs.BOM_UTF8)
    stream.seek(0)
    if not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        yield from read_json_lines(stream, parse_line)
        return
    if marked:
        raise UnreadableError(
            0, "is a list after a byte order mark, which LLaMA-Factory cannot read; save it without the mark"
        )
    for row, (line, value) in enumerate(JsonStream(stream, is_list=True), 1):
        if value is None:
            raise UnreadableError(line, "is null; each row of a list is an object", row)
        yield line, {"text": value} if isinstance(value, str) else _require_object(value, line, row=row)


def read_json_lines(
    stream: IO[bytes], parse_line: ParseLine | None = None, span: tuple[int, int] | None = None
) -> Rows:
    """Yield each object of a JSON lines file with the line at which it begins. Each line holds one object or nothing;
    or each object is spread over several lines. `span`: the first byte of the part of the file to read, and the byte
    after it; lines are then counted from the start of this part. `parse_line`: the parser of a line; None for the
    standard library's. Raises UnreadableError and TooLargeError as `read_json` does."""
    parse_line = parse_line or _parse_line
    position, end = span or (0, 0)
    begun = bool(span)
    stream.seek(position)
    for number, line in enumerate(iter(partial(stream.readline, reading_limits.MAX_ROW_BYTES + 1), b""), 1):
        if len(line) > reading_limits.MAX_ROW_BYTES:
            raise reading_limits.row_too_large(number)
        nested = line.count(b"[") + line.count(b"{")
        reading_limits.require_few_separators(nested + line.count(b","), number)
        if number == 1 and position == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
        if number <= _LINES_CHECKED_FOR_REPEATED_KEYS and not span:
            with contextlib.suppress(ValueError, RecursionError):  # reported below, where the line is parsed
                unique = partial(_require_unique_keys, number)
                json.loads(line, object_pairs_hook=unique, parse_int=str, parse_float=str)
        try:
            row = parse_line(line)
        except ValueError as err:
            if not begun and line.strip() and (values := _multiline_objects(stream)):
                yield from values
                return
            yield from ((number, row) for row in _objects_on_line(line, number, err))
        else:
            if nested > reading_limits.MAX_NESTING:
                _require_flat(row, number)
            yield number, _require_object(row, number, begun)
        begun = begun or bool(line.strip())
        position += len(line)
        if span and position >= end:
            return


def _parse_line(line: bytes) -> Any:
    """Return the value of a line, parsed with the standard library. Raises ValueError where `orjson.loads` does."""
    if b"\\ud" in line or b"\\uD" in line:
        raise ValueError("half of a surrogate pair, perhaps")
    try:
        return _LINE_DECODER.decode(line.decode())
    except (RecursionError, UnreadableError) as err:
        raise ValueError(str(err)) from None


def _objects_on_line(line: bytes, number: int, err: ValueError) -> list[dict[str, Any]]:
    """Return the objects of a line that could not be parsed as one object: none for a blank line, or several one after
    the other, which Arrow accepts. `err`: the parser's error for the line. Raises UnreadableError if the line holds
    anything else."""
    if not line.strip():
        return []
    try:
        line.decode()
        return [_require_object(value, number) for _, value in JsonStream(io.BytesIO(line))]
    except UnicodeDecodeError as wrong:
        where = f"byte 0x{line[wrong.start]:02x} at column {wrong.start + 1}"
        raise UnreadableError(number, f"is not UTF-8 text ({where}); save it as UTF-8") from None
    except UnreadableError as wrong:
        if not str(wrong).startswith("is not"):
            raise UnreadableError(number, str(wrong)) from None
    kind = "is not valid JSON" if line.endswith((b"}\n", b"}\r\n", b"}")) else "ends in the middle"
    raise UnreadableError(number, f"{kind}: {str(err).split(': line')[0].lower()}")


def _multiline_objects(stream: IO[bytes]) -> Rows | None:
    """Return the objects of a file whose objects are spread over several lines. None if the file does not begin with a
    JSON value; the stream is then back at its old position."""
    position = stream.tell()
    stream.seek(0)
    values = iter(JsonStream(stream))
    try:
        first = next(values)
    except (UnreadableError, StopIteration) as err:
        if not str(err).startswith("is not") and isinstance(err, UnreadableError):  # it is JSON, and no row
            raise
        stream.seek(position)
        return None
    return ((line, _require_object(value, line)) for line, value in chain((first,), values))


def _require_object(value: Any, line: int, begun: bool = True, row: int = 0) -> dict[str, Any]:
    if value is None and begun:  # a row without values
        return {}
    if value is None:  # tried with pyarrow 24 and 26
        raise UnreadableError(line, "is null, and Arrow crashes if the first row is; remove it")
    if not isinstance(value, dict):
        raise UnreadableError(line, "is no JSON object; each row must be one", row)
    if len(value) > reading_limits.MAX_COLUMNS:
        raise reading_limits.too_many_columns(len(value))
    return value


def _require_unique_keys(number: int, pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise UnreadableError(number, f"has the key `{max(names, key=names.count)}` twice")


def _require_flat(value: Any, line: int, row: int = 0) -> None:
    if is_too_deep(value, reading_limits.MAX_NESTING):
        raise UnreadableError(line, TOO_DEEP, row)


def _parse_int(text: str) -> float:
    """Return the value of an integer in a JSON lines file. An integer of too many digits becomes a float, as in
    Arrow."""
    return int(text) if len(text) < _MAX_INT_DIGITS else float(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if abs(value) == inf:
        raise UnreadableError(0, f"holds the number {text[:20]}, which is too large")
    return value


def _parse_int64(text: str) -> int:
    """Return the value of an integer in a JSON file that is one list. Raises UnreadableError for an integer beyond 64
    bits, because pandas reads such files and refuses it."""
    if len(text) > _INT64_LENGTH or not -(1 << 63) <= (value := int(text)) < 1 << 64:
        raise UnreadableError(0, f"holds the number {text[:24]}, which is too large")
    return value


_LINE_DECODER = json.JSONDecoder(parse_int=_parse_int, parse_float=_parse_float)
_LIST_DECODER = json.JSONDecoder(parse_int=_parse_int64)


class JsonStream:
    """The JSON values of a stream, each with the line at which it begins: the items of a list, or values that follow
    each other without commas. The stream is read in chunks until the next value is complete."""

    def __init__(self, stream: IO[bytes], is_list: bool = False) -> None:
        self._stream, self._is_list = stream, is_list
        self._decoder = _LIST_DECODER if is_list else _LINE_DECODER
        # Bytes that are not UTF-8 become lone surrogates, so that the value which holds them can be named.
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape").decode
        # The line of the text at `_counted`; line breaks are counted up to there.
        self._text, self._position, self._number, self._line, self._counted = "", 0, 1, 1, 0
        if is_list:
            self._read_more(_CHUNK)
            self._position = self._text.index("[") + 1

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        while self._find_next():
            yield self._line, self._parse_next()
            self._number += 1
        if self._is_list:
            self._position += 1
            while not self._text[self._position :].strip():
                self._position = len(self._text)
                if not self._read_more(_CHUNK):
                    return
            raise UnreadableError(0, "goes on after the end of its list")

    def _find_next(self) -> bool:
        """Move to the next value of the stream; return False if there is none. Raises UnreadableError unless the values
        of a list are separated by one comma, and values outside of a list by none."""
        commas = 0
        while True:
            end = _GAP.match(self._text, self._position).end()  # type: ignore[union-attr]
            commas, self._position = commas + self._text.count(",", self._position, end), end
            if end < len(self._text):
                break
            if not self._read_more(_CHUNK):
                if self._is_list:
                    raise self._error("is missing: the list is not closed")
                return False
        self._count_lines()
        closes = self._is_list and self._text.startswith("]", end)
        if commas != (self._is_list and self._number > 1 and not closes):
            raise self._error("is not valid JSON: a comma too many, or one is missing")
        return not closes

    def _parse_next(self) -> Any:
        read_size = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
                break
            except RecursionError:
                raise self._error(TOO_DEEP) from None
            except UnreadableError as err:
                raise self._error(str(err)) from None
            except json.JSONDecodeError as err:
                read_size *= 2
                cut = err.msg.startswith("Unterminated") or err.pos + _CUT_MARGIN > len(self._text)
                if cut and len(self._text) - self._position > reading_limits.MAX_ROW_BYTES:
                    raise reading_limits.row_too_large(self._number, "row") from None
                if not cut or not self._read_more(read_size):
                    line = self._line + self._text.count("\n", self._position, err.pos)
                    raise self._error(f"is not valid JSON: {err.msg.lower()} at line {line}") from None
        text, self._position = self._text[self._position : end], end
        return self._as_datasets_reads(value, text)

    def _as_datasets_reads(self, value: Any, text: str) -> Any:
        """Return a parsed value as the datasets library would read it from `text`. Half of a surrogate pair is not a
        character: pandas drops it from a file that is one list, and Arrow refuses it in a JSON line. Raises
        UnreadableError for text that Arrow refuses or that is not UTF-8."""
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as err:
                byte = f"byte 0x{ord(text[err.start]) - 0xDC00:02x}"
                raise self._error(f"is not UTF-8 text ({byte}); save it as UTF-8") from None
        if text.count("[") + text.count("{") > reading_limits.MAX_NESTING:
            _require_flat(value, self._line, self._number)
        if "\\ud" not in text and "\\uD" not in text:
            return value
        text = json.dumps(value, ensure_ascii=False)
        encoded = text.encode(errors="ignore")
        if encoded == text.encode(errors="surrogatepass"):
            return value
        if not self._is_list:
            fault = "holds half of a surrogate pair (`\\ud800` to `\\udfff`), no character"
            raise self._error(fault)
        return json.loads(encoded)

    def _read_more(self, size: int) -> str:
        data = self._stream.read(size)
        read = self._decode(data, not data)
        self._count_lines()
        self._text, self._position, self._counted = self._text[self._position :] + read, 0, 0
        # A row of a mebibyte or more; of smaller ones, not as much is held.
        separators = sum(self._text.count(mark) for mark in "[{,") if size > _CHUNK else 0
        reading_limits.require_few_separators(separators, self._number, "row")
        return read

    def _count_lines(self) -> None:
        """Move `_line` to the present position."""
        self._line += self._text.count("\n", self._counted, self._position)
        self._counted = self._position

    def _error(self, message: str) -> UnreadableError:
        """Return the error for the value that is being read."""
        return UnreadableError(self._line, message, self._number)
