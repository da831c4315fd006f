"""JSON values of a stream, one at a time: nothing is ever read whole that need not be."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

_CHUNK = 1 << 20
_NEAR = 32  # characters: an error so close to the end of the text at hand may come from where it is cut
_DECODER = json.JSONDecoder()
_GAP = re.compile(r"[\s,]*")


class UnreadableError(Exception):
    """A file, or one of its rows, that LLaMA-Factory cannot load. `row` counts from 1; 0: the file as a whole."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class Values:
    """JSON values one behind the other, with commas or blanks between them. The text at hand grows until it holds the
    next one whole."""

    def __init__(self, stream: IO[bytes], opening: str = "", errors: str = "strict") -> None:
        self._bytes, self._opening = stream, opening
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
                value, self._position = _DECODER.raw_decode(self._text, self._position)
                return value
            except RecursionError:
                raise UnreadableError(self._number, "is nested too deeply") from None
            except json.JSONDecodeError as err:
                wanted *= 2
                cut = err.msg.startswith("Unterminated") or err.pos + _NEAR > len(self._text)
                if not cut or not self._more(wanted):
                    raise UnreadableError(self._number, f"is not valid JSON: {err.msg.lower()}") from None

    def _begins(self) -> bool:
        """Whether another value begins at the position, which is moved there. A list has commas between its values."""
        while (end := _GAP.match(self._text, self._position).end()) == len(self._text):  # type: ignore[union-attr]
            if not self._more(_CHUNK):
                if self._closing:
                    raise UnreadableError(self._number, "is missing: the list is not closed")
                return False
        commas, self._position = self._text.count(",", self._position, end), end
        closes = bool(self._closing) and self._text.startswith(self._closing, end)
        if commas != (self._closing != "" and self._number > 1 and not closes):
            raise UnreadableError(self._number, "is not valid JSON: a comma too many, or one is missing")
        return not closes

    def _behind(self) -> bool:
        """Whether there is more behind the closing bracket."""
        self._position += len(self._closing)
        while not self._text[self._position :].strip():
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
