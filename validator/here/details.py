"""What nvidia-smi tells of each device at length: the state of its memory and links, and who holds it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from validator.here import program
from validator.here.holder import Holder

_MIB = 1024  # in a GiB
_DEVICE = re.compile(r"^GPU (?=[0-9A-Fa-f]{8}:)", re.MULTILINE)
_FACT = re.compile(r"( +)(\S.*?) *(?:: (.*?) *)?")
_PROCESS = re.compile(
    r"^ +Process ID +: (\d+)\n +Type +: \S+\n +Name +: (.*)\n +Used GPU Memory +: (?:(\d+) MiB)?", re.MULTILINE
)


class Details(NamedTuple):
    """`facts` by their headings and name: `Fabric / State` is `Completed`. `holders` name the device by its UUID."""

    uuid: str
    facts: Mapping[str, str]
    holders: tuple[Holder, ...]


def details() -> list[Details]:
    """All devices that answer; none where nvidia-smi is not installed. Raises RecipeError where it does not answer."""
    return [_details(part) for part in _DEVICE.split(program.output("nvidia-smi", "-q") or "")[1:]]


def _details(part: str) -> Details:
    facts = dict(_facts(part))
    uuid = facts.get("GPU UUID", "")
    holders = (
        Holder(int(pid), name, int(size) / _MIB if size else None, uuid) for pid, name, size in _PROCESS.findall(part)
    )
    return Details(uuid, facts, tuple(holders))


def _facts(part: str) -> Iterator[tuple[str, str]]:
    """Lines of `name : value`, indented below their headings, which have no value."""
    above: dict[int, str] = {}
    for line in part.splitlines():
        if match := _FACT.fullmatch(line):
            indent, name, value = len(match[1]), match[2], match[3]
            above = {depth: heading for depth, heading in above.items() if depth < indent} | {indent: name}
            if value is not None:
                yield " / ".join(above.values()), value
