"""The names that a compiled library needs and gives, by its table of dynamic symbols (ELF of 64 bits)."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_DYNAMIC_SYMBOLS = 11


class Symbols(NamedTuple):
    """Names that must come from elsewhere, weak ones left out, and names that are offered."""

    needed: frozenset[str]
    offered: frozenset[str]


def symbols(library: Path, start: str) -> Symbols:
    """The names that begin so. Raises ValueError for a file of another form."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{library} is no library of 64 bits")
        rows = [row for row in _rows(data) if row[2].startswith(start)]
    needed = frozenset(name for defined, weak, name in rows if not (defined or weak))
    return Symbols(needed, frozenset(name for defined, _, name in rows if defined))


def _rows(data: mmap.mmap) -> Iterator[tuple[bool, bool, str]]:
    """Whether it is defined here, whether it may be missing, and the name."""
    sections = _sections(data)
    for section in sections:
        if section[1] == _DYNAMIC_SYMBOLS:
            offset, size, names = section[4], section[5], sections[section[6]][4]
            for name, info, _, at, _, _ in _SYMBOL.iter_unpack(data[offset : offset + size]):
                text = data[names + name : data.find(b"\0", names + name)]
                yield at != 0, info >> 4 == 2, text.decode("ascii", errors="replace")


def _sections(data: mmap.mmap) -> list[tuple[int, ...]]:
    (place,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    return [_SECTION.unpack_from(data, place + number * size) for number in range(count)]
