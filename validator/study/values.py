"""JSON values of a stream, one at a time: nothing is ever read whole that need not be."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from math import inf
from typing import IO, Any

from validator.read.tree import deep
from validator.study import ceiling

_CHUNK = 1 << 20
_NEAR = 32  # characters: an error so close to the end of the text at hand may come from where it is cut
TOO_DEEP = f"is nested deeper than {ceiling.DEPTH} levels, the most that Arrow holds"


class UnreadableError(Exception):
    """A file, or one of its rows, that LLaMA-Factory cannot load. `row` counts from 1; 0: the file as a whole."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


# Python reads no more than 4,300 digits of a whole number, and a float holds no more than 308.
_DIGITS = 300


def _whole(text: str) -> float:
    """A whole number in a line: what no integer holds is a float, as Arrow has it."""
    return int(text) if len(text) < _DIGITS else float(text)


def _real(text: str) -> float:
    value = float(text)
    if abs(value) == inf:
        raise UnreadableError(0, f"holds the number {text[:20]}, which is too large")
    return value


def _short(text: str) -> int:
    """A whole number in a list, which pandas reads: it takes none beyond 64 bits."""
    if len(text) > _LONG or not -(1 << 63) <= (value := int(text)) < 1 << 64:
        raise UnreadableError(0, f"holds the number {text[:24]}, which is too large")
    return value


_GAP = re.compile(r"[\s,]*")
_LONG = 20  # digits and sign of the longest number of 64 bits
_DECODERS = {"": json.JSONDecoder(parse_int=_whole, parse_float=_real), "[": json.JSONDecoder(parse_int=_short)}


def _halves(value: Any, listed: bool) -> Any:
    """The value without halves of surrogate pairs, which are no characters: pandas drops them, Arrow refuses them."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
        return value
    except UnicodeEncodeError:
        if not listed:
            raise UnreadableError(0, "holds half of a surrogate pair (`\\ud800` to `\\udfff`), no character") from None
        return json.loads(text.encode(errors="ignore"))


class Values:
    """JSON values one behind the other, with commas or blanks between them. The text at hand grows until it holds the
    next one whole."""

    def __init__(self, stream: IO[bytes], opening: str = "", errors: str = "strict") -> None:
        self._bytes, self._opening, self._decoder = stream, opening, _DECODERS[opening]
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors).decode
        self._text, self._position, self._number = "", 0, 1
        self._closing = "]" if opening else ""
        if opening:
            self._more(_CHUNK)
            self._position = self._text.index(opening) + 1

    def __iter__(self) -> Iterator[Any]:
        while self._begins():
            yield self._value()
            self._number += 1
        if self._closing and self._behind():
            raise UnreadableError(0, "goes on behind the end of its list")

    def _value(self) -> Any:
        wanted = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
                break
            except RecursionError:
                raise UnreadableError(self._number, TOO_DEEP) from None
            except UnreadableError as err:
                raise UnreadableError(self._number, str(err)) from None
            except json.JSONDecodeError as err:
                wanted *= 2
                cut = err.msg.startswith("Unterminated") or err.pos + _NEAR > len(self._text)
                if cut and len(self._text) - self._position > ceiling.ROW:
                    raise ceiling.row(self._number) from None
                if not cut or not self._more(wanted):
                    raise UnreadableError(self._number, f"is not valid JSON: {err.msg.lower()}") from None
        return self._sound(value, end)

    def _sound(self, value: Any, end: int) -> Any:
        """The value that ends there, as the datasets library has it. Raises UnreadableError where it has it not."""
        text, self._position = self._text[self._position : end], end
        if text.count("[") + text.count("{") > ceiling.DEPTH and deep(value, ceiling.DEPTH):
            raise UnreadableError(self._number, TOO_DEEP)
        if "\\ud" not in text and "\\uD" not in text:
            return value
        try:
            return _halves(value, bool(self._opening))
        except UnreadableError as err:
            raise UnreadableError(self._number, str(err)) from None

    def _begins(self) -> bool:
        """Whether another value begins at the position, which is moved there. A list has commas between its values."""
        commas = 0
        while True:
            end = _GAP.match(self._text, self._position).end()  # type: ignore[union-attr]
            commas, self._position = commas + self._text.count(",", self._position, end), end
            if end < len(self._text):
                break
            if not self._more(_CHUNK):
                if self._closing:
                    raise UnreadableError(self._number, "is missing: the list is not closed")
                return False
        closes = bool(self._closing) and self._text.startswith(self._closing, end)
        if commas != (self._closing != "" and self._number > 1 and not closes):
            raise UnreadableError(self._number, "is not valid JSON: a comma too many, or one is missing")
        return not closes

    def _behind(self) -> bool:
        """Whether there is more behind the closing bracket."""
        self._position += len(self._closing)
        while not self._text[self._position :].strip():
            self._position = len(self._text)
            if not self._more(_CHUNK):
                return False
        return True

    def _more(self, size: int) -> str:
        try:
            data = self._bytes.read(size)
            read = self._decode(data, not data)
        except UnicodeDecodeError as err:
            number = _undecoded(self._bytes, self._opening)
            raise UnreadableError(
                number, f"is not UTF-8 text (byte 0x{err.object[err.start]:02x}); save it as UTF-8"
            ) from None
        self._text, self._position = self._text[self._position :] + read, 0
        return read


def _undecoded(stream: IO[bytes], opening: str) -> int:
    """Number of the first value that is not UTF-8 text. Raises UnreadableError where one before it is no JSON."""
    stream.seek(0)
    number = 0
    for number, value in enumerate(Values(stream, opening, "surrogateescape"), 1):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return number
    return number + 1
