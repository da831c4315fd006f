"""Bytes that were flipped, cut, repeated or put where none belong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from fuzz import odd
from fuzz.written import encoded


def damaged(random: Random, data: bytes, share: float = 0.3) -> bytes:
    """The bytes with a few changes, for that share of them."""
    if random.random() >= share:
        return data
    for _ in range(random.choice((1, 1, 2, 4))):
        data = random.choice(_DAMAGE)(random, data)
    return data


def _flip(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data) or 1)
    return data[:place] + bytes([random.randrange(256)]) + data[place + 1 :]


def _cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) or 1)]


def _remove(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data) or 1)
    return data[:place] + data[place + random.choice((1, 1, 2, 8, 100)) :]


def _insert(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.choice(_PIECES) + data[place:]


def _repeat(random: Random, data: bytes) -> bytes:
    place, length = random.randrange(len(data) or 1), random.choice((1, 4, 30, 300))
    return data[:place] + data[place : place + length] * random.choice((2, 3, 40)) + data[place + length :]


def _line(random: Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    place, other = random.randrange(len(lines)), random.randrange(len(lines))
    lines[place] = random.choice(
        (b"", lines[place] * 2, lines[other], b" " + lines[place], b"\t" + lines[place], b"#" + lines[place])
    )
    return b"".join(lines)


def _whole(random: Random, data: bytes) -> bytes:
    return random.choice(
        (
            lambda: b"\xef\xbb\xbf" + data,
            lambda: data.replace(b"\n", b"\r\n"),
            lambda: data.replace(b"\n", b"\r"),
            lambda: data.decode("utf-8", "replace").encode("utf-16"),
            lambda: data.decode("utf-8", "replace").encode("latin-1", "replace"),
            lambda: b"",
            lambda: b"\n",
            lambda: b"\x00" * 64,
            lambda: data * 2,
            lambda: data.rstrip(b"\n"),
            lambda: b"---\n" + data + b"---\n" + data,
        )
    )()


_PIECES: Sequence[bytes] = (
    *(encoded(word) for word in odd.WORDS),
    *(encoded(raw) for raw in (*odd.JSON, *odd.YAML) if len(raw) < 400),
    *(
        b"\xff",
        b"\xc3",
        b"\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\r",
        b"\n",
        b"\n\n",
        b"\t",
        b"  ",
        b"\x0b",
        b"\x0c",
        b"\x85",
    ),
    *(
        b"\xc2\x85",
        b": ",
        b"- ",
        b",",
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"'",
        b"\\",
        b"# ///\n",
        b"# /// recipe\n",
        b"---\n",
        b"...\n",
        b"?",
        b"|",
    ),
)
_DAMAGE: Sequence[Callable[[Random, bytes], bytes]] = (
    _flip,
    _cut,
    _remove,
    _insert,
    _insert,
    _repeat,
    _line,
    _line,
    _whole,
)
