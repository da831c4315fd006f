"""Which releases a recipe is for: `llamafactory` and `transformers` of its header block, against the tables'."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from validator.diagnostic import RecipeError
from validator.read.text import clip
from validator.tables import data

FIELDS = ("llamafactory", "transformers")
_DIGITS = re.compile(r"(?:^|\.)(\d*)")  # of each part of a version
_LONG = 10  # digits, which no part of a version has
_SIGNS = (">=", "<=", "==", "!=", ">", "<")
_LONGEST = 200  # characters of a range
Pair = tuple[str, str]


def known() -> list[Pair]:
    """LLaMA-Factory releases with the transformers releases each admits, newest first in both."""
    return [(release, version) for release, versions in _releases().items() for version in versions]


@cache
def newest() -> Pair:
    """What a recipe without a range is judged by."""
    return known()[0]


def seen(package: str) -> str:
    """The release of a package with which the rules and formulas were settled; those of LLaMA-Factory and transformers
    are the newest pair. Raises KeyError for a package that is not in seen.yaml."""
    return str(data.listing("seen")[package])


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Releases of those packages that this Python has, without importing them."""
    from importlib.metadata import PackageNotFoundError, version  # which no check waits for

    there = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            there[package] = version(package)
    return there


def name(pair: Pair) -> str:
    """The pair as the tables write it."""
    return "/".join(pair)


def series(version: str) -> str:
    """The series that a release belongs to: 5.6 of 5.6.0."""
    return ".".join(version.split(".")[:2])


def pairs(header: Mapping[str, Any]) -> list[Pair]:
    """What the recipe must run with, newest first: the newest pair where the header names no range, each LLaMA-Factory
    release of its range with the newest transformers, or with what stands for it. Raises RecipeError where a range is
    malformed or holds none."""
    if not any(header.get(field) is not None for field in FIELDS):
        return [newest()]
    newest_of: dict[str, Pair] = {}
    for pair in _named(header) or stand_ins(header):
        newest_of.setdefault(pair[0], pair)
    if not newest_of:
        asked = " with ".join(f"{field} {header[field]}" for field in FIELDS if header.get(field) is not None)
        table = "; ".join(f"{release} with {', '.join(versions)}" for release, versions in _releases().items())
        raise RecipeError(f"no release in the tables fits {asked}; there are {table}")
    return list(newest_of.values())


def admitted(header: Mapping[str, Any]) -> list[Pair]:
    """Every pair that the recipe may meet, newest first: all of its range; where it names none, or one that cannot be
    read, the newest LLaMA-Factory with each transformers release that it admits."""
    try:
        there = _named(header) or stand_ins(header)
    except RecipeError:
        there = []
    if there and any(header.get(field) is not None for field in FIELDS):
        return there
    return [pair for pair in known() if pair[0] == newest()[0]]


def before(header: Mapping[str, Any], limit: str) -> bool:
    """Whether the recipe may run with a release before a limit such as "transformers 4.54.0". Where the tables hold
    none of its range, the least that it names decides, not what stands in for it; one that cannot be read counts as
    the newest pair."""
    field, _, version = limit.partition(" ")
    try:
        if field == FIELDS[1] and stand_ins(header):
            return admits(f"<{version}", _least(header[field]))
    except RecipeError:
        return False
    return holds(header, until=limit)


def stand_ins(header: Mapping[str, Any]) -> list[Pair]:
    """Where the tables hold no release of the header's range, what it is judged as with each LLaMA-Factory that takes
    it, newest first: the nearest transformers at or below, else the nearest above, of the same major release. Empty
    where a release is in the range, or none takes it. Raises RecipeError where a range is malformed."""
    wanted = header.get("transformers")
    if wanted is None or _named(header):
        return []
    least = _least(wanted)
    return [
        (release, near)
        for release, versions in _releases().items()
        if admits(header.get(FIELDS[0]), release) and admits(f">={_oldest(release)}, <={versions[0]}", least)
        for near in _nearest(versions, least)
    ]


def _least(wanted: Any) -> str:
    """The least release that a range names."""
    return min((part.strip(" <>=!") for part in str(wanted).split(",")), key=lambda part: _numbers(part, wanted))


def _named(header: Mapping[str, Any]) -> list[Pair]:
    """The pairs of the tables in the header's ranges, newest first."""
    wanted = [header.get(field) for field in FIELDS]
    return [pair for pair in known() if all(map(admits, wanted, pair))]


def _nearest(versions: list[str], version: str) -> list[str]:
    alike = [each for each in versions if each.partition(".")[0] == version.partition(".")[0]]
    return [each for each in alike if admits(f"<={version}", each)][:1] or alike[-1:]


def defaults(header: Mapping[str, Any], key: str) -> set[Any]:
    """What a key that is left out stands for, with each pair that the recipe may meet."""
    table = data.table("arguments")
    newest_one, changes = table["arguments"].get(key, {}).get("default"), table["changes"]
    each = (changes.get(name(pair), {}).get(key, {}) for pair in admitted(header))
    return {fields.get("default", newest_one) for fields in each}


def before_torch(header: Mapping[str, Any], minor: int) -> bool:
    """Whether the header's range of torch holds a release before 2.minor; false where it names none, or no range."""
    return header.get("torch") is not None and _admits_torch(header["torch"], range(minor))


def from_torch(header: Mapping[str, Any], minor: int) -> bool:
    """Whether the header's range of torch holds 2.minor or a later release; true where it names none, or no range."""
    return _admits_torch(header.get("torch"), range(minor, 100)) or not before_torch(header, minor)


def _admits_torch(wanted: Any, minors: range) -> bool:
    try:
        return any(admits(wanted, f"2.{minor}.{patch}") for minor in minors for patch in range(3))
    except RecipeError:
        return False


def admits(wanted: Any, version: str) -> bool:
    """Whether a range such as `>=0.9.4, <0.9.6` holds a version; a version alone means that one. Null holds all. Raises
    RecipeError where it is no range."""
    if wanted is None:
        return True
    if len(str(wanted)) > _LONGEST:
        raise _unreadable(wanted)
    for part in str(wanted).split(","):
        sign = next((sign for sign in _SIGNS if part.strip().startswith(sign)), "")
        limit, here = _numbers(part.strip().removeprefix(sign), wanted), _numbers(version, wanted)
        size = max(len(limit), len(here))
        order = _compare(here + (0,) * (size - len(here)), limit + (0,) * (size - len(limit)))
        if order not in {">=": (0, 1), "<=": (0, -1), "!=": (1, -1), ">": (1,), "<": (-1,)}.get(sign, (0,)):
            return False
    return True


def holds(header: Mapping[str, Any], since: str = "", until: str = "") -> bool:
    """Whether the recipe must run with a pair from `since` on and before `until`, such as "transformers 5.0.0" (empty:
    no bound); a range that cannot be read counts as the newest pair."""
    try:
        judged = pairs(header)
    except RecipeError:
        judged = [newest()]
    return any(reached(pair, since) and not (until and reached(pair, until)) for pair in judged)


def reached(pair: Pair, limit: str) -> bool:
    """Whether the pair has come to a limit such as "transformers 5.0.0"; to an empty one, always."""
    field, _, version = limit.partition(" ")
    return not limit or admits(f">={version}", pair[FIELDS.index(field)])


def earlier() -> list[str]:
    """The transformers releases of the tables but the newest, that of the earlier major release first."""
    others = [version for release, version in known()[1:] if release == newest()[0]]
    return sorted(others, key=lambda version: version != previous()[1])


def previous() -> Pair:
    """The newest pair whose transformers is of an earlier major release than the newest pair's."""
    major = newest()[1].partition(".")[0]
    return next(pair for pair in known() if pair[1].partition(".")[0] != major)


def outside(header: Mapping[str, Any], installed: Mapping[str, str]) -> Iterator[str]:
    """What is installed and not in the recipe's range, in words; nothing where the range cannot be read."""
    try:
        pairs(header)
    except RecipeError:
        return
    for field in FIELDS:
        if field in installed and not admits(header.get(field), installed[field]):
            yield f"the recipe is for {field} {header[field]}, and {installed[field]} is installed here"


def _oldest(release: str) -> str:
    """The oldest transformers that a LLaMA-Factory release takes."""
    return str(data.table("arguments")["releases"][release]["oldest"])


def _releases() -> dict[str, list[str]]:
    return {name: facts["transformers"] for name, facts in data.table("arguments")["releases"].items()}


def _numbers(version: str, wanted: Any) -> tuple[int, ...]:
    """The numbers of a version; a part such as 0rc1 counts as its leading number."""
    digits: list[str] = _DIGITS.findall(version.strip())
    if not all(0 < len(each) < _LONG for each in digits):
        raise _unreadable(wanted)
    return tuple(int(digit) for digit in digits)


def _unreadable(wanted: Any) -> RecipeError:
    what = f"`{clip(str(wanted))}` is no range of releases"
    return RecipeError(f"{what}; write one such as `>=0.9.4` or `>=0.9.4, <0.9.6`")


def _compare(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    return (one > two) - (one < two)
