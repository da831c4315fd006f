"""Which releases a recipe is for: `llamafactory`, `transformers` and `torch` of its header block against the
releases in the tables, and what older releases do otherwise in memory (data/older.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import tables
from validator.wording import clip

RELEASE_FIELDS = ("llamafactory", "transformers")
_LEADING_DIGITS = re.compile(r"(?:^|\.)(\d*)")  # of each part of a version
_MAX_DIGITS = 10  # digits, which no part of a version has
_COMPARISONS = (">=", "<=", "==", "!=", ">", "<")
_MAX_RANGE_LENGTH = 200  # characters of a range
ReleasePair = tuple[str, str]


def known_pairs() -> list[ReleasePair]:
    """LLaMA-Factory releases with the transformers releases each admits, newest first in both."""
    return [(release, version) for release, versions in _transformers_by_release().items() for version in versions]


@cache
def newest_pair() -> ReleasePair:
    """The pair of releases that a recipe without a range is judged by."""
    return known_pairs()[0]


def verified_release(package: str) -> str:
    """The release of a package with which the rules and formulas were settled; those of LLaMA-Factory and transformers
    are the newest pair. Raises KeyError for a package that is not in seen.yaml."""
    return str(tables.yaml_table("seen")[package])


def installed_releases(packages: Iterable[str]) -> dict[str, str]:
    """Releases of those packages that this Python has, without importing them."""
    from importlib.metadata import (  # 20 ms, which doctor and the trainer's report alone need
        PackageNotFoundError,
        version,
    )

    there = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            there[package] = version(package)
    return there


def pair_name(pair: ReleasePair) -> str:
    """The pair as the tables write it."""
    return "/".join(pair)


def release_series(version: str) -> str:
    """The series that a release belongs to: 5.6 of 5.6.0."""
    return ".".join(version.split(".")[:2])


def required_pairs(header: Mapping[str, Any]) -> list[ReleasePair]:
    """What the recipe must run with, newest first: the newest pair where the header names no range, each LLaMA-Factory
    release of its range with the newest transformers, or with what stands for it. Raises RecipeError where a range is
    malformed or holds none."""
    if not any(header.get(field) is not None for field in RELEASE_FIELDS):
        return [newest_pair()]
    newest_of: dict[str, ReleasePair] = {}
    for pair in _pairs_in_range(header) or stand_in_pairs(header):
        newest_of.setdefault(pair[0], pair)
    if not newest_of:
        asked = " with ".join(f"{field} {header[field]}" for field in RELEASE_FIELDS if header.get(field) is not None)
        table = "; ".join(
            f"{release} with {', '.join(versions)}" for release, versions in _transformers_by_release().items()
        )
        raise RecipeError(f"no release in the tables fits {asked}; there are {table}")
    return list(newest_of.values())


def possible_pairs(header: Mapping[str, Any]) -> list[ReleasePair]:
    """Every pair that the recipe may meet, newest first: all of its range; where it names none, or one that cannot be
    read, the newest LLaMA-Factory with each transformers release that it admits."""
    try:
        there = _pairs_in_range(header) or stand_in_pairs(header)
    except RecipeError:
        there = []
    if there and any(header.get(field) is not None for field in RELEASE_FIELDS):
        return there
    return [pair for pair in known_pairs() if pair[0] == newest_pair()[0]]


def may_be_before(header: Mapping[str, Any], limit: str) -> bool:
    """True if the recipe may run with a release before a limit such as "transformers 4.54.0". Where the tables hold
    none of its range, the least that it names decides, not what stands in for it; one that cannot be read counts as the
    newest pair."""
    field, _, version = limit.partition(" ")
    try:
        if field == RELEASE_FIELDS[1] and stand_in_pairs(header):
            return range_admits(f"<{version}", _least_release(header[field]))
    except RecipeError:
        return False
    return requires(header, until=limit)


def stand_in_pairs(header: Mapping[str, Any]) -> list[ReleasePair]:
    """Where the tables hold no release of the header's range, what it is judged as with each LLaMA-Factory that takes
    it, newest first: the nearest transformers at or below, else the nearest above, of the same major release. Empty
    where a release is in the range, or none takes it. Raises RecipeError where a range is malformed."""
    wanted = header.get("transformers")
    if wanted is None or _pairs_in_range(header):
        return []
    least = _least_release(wanted)
    return [
        (release, near)
        for release, versions in _transformers_by_release().items()
        if range_admits(header.get(RELEASE_FIELDS[0]), release)
        and range_admits(f">={_oldest_transformers(release)}, <={versions[0]}", least)
        for near in _nearest_releases(versions, least)
    ]


def _least_release(wanted: Any) -> str:
    """The least release that a range names."""
    return min(
        (part.strip(" <>=!") for part in str(wanted).split(",")), key=lambda part: _version_numbers(part, wanted)
    )


def _pairs_in_range(header: Mapping[str, Any]) -> list[ReleasePair]:
    """The pairs of the tables in the header's ranges, newest first."""
    wanted = [header.get(field) for field in RELEASE_FIELDS]
    return [pair for pair in known_pairs() if all(map(range_admits, wanted, pair))]


def _nearest_releases(versions: list[str], version: str) -> list[str]:
    alike = [each for each in versions if each.partition(".")[0] == version.partition(".")[0]]
    return [each for each in alike if range_admits(f"<={version}", each)][:1] or alike[-1:]


def possible_defaults(header: Mapping[str, Any], key: str) -> set[Any]:
    """Values that a key has by default, with each pair of releases that the recipe may meet."""
    table = tables.json_table("arguments")
    newest_one, changes = table["arguments"].get(key, {}).get("default"), table["changes"]
    each = (changes.get(pair_name(pair), {}).get(key, {}) for pair in possible_pairs(header))
    return {fields.get("default", newest_one) for fields in each}


def may_be_before_torch(header: Mapping[str, Any], minor: int) -> bool:
    """True if the header's range of torch holds a release before 2.minor; false where it names none, or no range."""
    return header.get("torch") is not None and _admits_torch(header["torch"], range(minor))


def may_be_since_torch(header: Mapping[str, Any], minor: int) -> bool:
    """True if the header's range of torch holds 2.minor or a later release; true where it names none, or no range."""
    return _admits_torch(header.get("torch"), range(minor, 100)) or not may_be_before_torch(header, minor)


def _admits_torch(wanted: Any, minors: range) -> bool:
    try:
        return any(range_admits(wanted, f"2.{minor}.{patch}") for minor in minors for patch in range(3))
    except RecipeError:
        return False


def range_admits(wanted: Any, version: str) -> bool:
    """True if a range such as `>=0.9.4, <0.9.6` holds a version; a version alone means that one. Null holds all. Raises
    RecipeError where it is no range."""
    if wanted is None:
        return True
    if len(str(wanted)) > _MAX_RANGE_LENGTH:
        raise _unreadable_range_error(wanted)
    for part in str(wanted).split(","):
        sign = next((sign for sign in _COMPARISONS if part.strip().startswith(sign)), "")
        limit, here = _version_numbers(part.strip().removeprefix(sign), wanted), _version_numbers(version, wanted)
        size = max(len(limit), len(here))
        order = _compare_versions(here + (0,) * (size - len(here)), limit + (0,) * (size - len(limit)))
        if order not in {">=": (0, 1), "<=": (0, -1), "!=": (1, -1), ">": (1,), "<": (-1,)}.get(sign, (0,)):
            return False
    return True


def requires(header: Mapping[str, Any], since: str = "", until: str = "") -> bool:
    """True if the recipe must run with a pair from `since` on and before `until`, such as "transformers 5.0.0" (empty:
    no bound); a range that cannot be read counts as the newest pair."""
    try:
        judged = required_pairs(header)
    except RecipeError:
        judged = [newest_pair()]
    return any(is_at_least(pair, since) and not (until and is_at_least(pair, until)) for pair in judged)


def is_at_least(pair: ReleasePair, limit: str) -> bool:
    """True if the pair has come to a limit such as "transformers 5.0.0"; to an empty one, always."""
    field, _, version = limit.partition(" ")
    return not limit or range_admits(f">={version}", pair[RELEASE_FIELDS.index(field)])


def earlier_transformers() -> list[str]:
    """The transformers releases of the tables but the newest, that of the earlier major release first."""
    others = [version for release, version in known_pairs()[1:] if release == newest_pair()[0]]
    return sorted(others, key=lambda version: version != previous_major_pair()[1])


def previous_major_pair() -> ReleasePair:
    """The newest pair whose transformers is of an earlier major release than the newest pair's."""
    major = newest_pair()[1].partition(".")[0]
    return next(pair for pair in known_pairs() if pair[1].partition(".")[0] != major)


def outside_range(header: Mapping[str, Any], installed: Mapping[str, str]) -> Iterator[str]:
    """What is installed and not in the recipe's range, in words; nothing where the range cannot be read."""
    try:
        required_pairs(header)
    except RecipeError:
        return
    for field in RELEASE_FIELDS:
        if field in installed and not range_admits(header.get(field), installed[field]):
            yield f"the recipe is for {field} {header[field]}, and {installed[field]} is installed here"


def _oldest_transformers(release: str) -> str:
    """The oldest transformers that a LLaMA-Factory release takes."""
    return str(tables.json_table("arguments")["releases"][release]["oldest"])


def _transformers_by_release() -> dict[str, list[str]]:
    return {name: facts["transformers"] for name, facts in tables.json_table("arguments")["releases"].items()}


def _version_numbers(version: str, wanted: Any) -> tuple[int, ...]:
    """The numbers of a version; a part such as 0rc1 counts as its leading number."""
    digits: list[str] = _LEADING_DIGITS.findall(version.strip())
    if not all(0 < len(each) < _MAX_DIGITS for each in digits):
        raise _unreadable_range_error(wanted)
    return tuple(int(digit) for digit in digits)


def _unreadable_range_error(wanted: Any) -> RecipeError:
    what = f"`{clip(str(wanted))}` is no range of releases"
    return RecipeError(f"{what}; write one such as `>=0.9.4` or `>=0.9.4, <0.9.6`")


def _compare_versions(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    return (one > two) - (one < two)


_NO_EFFECTS: frozenset[str] = frozenset()


def older_effects(header: Mapping[str, Any]) -> frozenset[str]:
    """Names of the entries that hold for a release which the recipe may run with."""
    if header.get("llamafactory") is None and header.get("transformers") is None:
        return _NO_EFFECTS
    table = tables.yaml_table("older")
    return frozenset(name for name in table if _may_have_effect(header, **table[name]))


def _may_have_effect(header: Mapping[str, Any], until: str, since: str = "", **_: str) -> bool:
    return may_be_before(header, until) and not (since and may_be_before(header, since))


ArgumentEntry = Mapping[str, Any]


def argument_entry(key: str, pairs: list[ReleasePair]) -> ArgumentEntry | None:
    """What the table says of a key for these releases: of several, the oldest, as what newer ones add does not help
    there. None where one of them does not have it."""
    known = tables.json_table("arguments")["arguments"].get(key)
    if known is None or not all(pair_name(pair) in known.get("in", [pair_name(pair)]) for pair in pairs):
        return None
    change = tables.json_table("arguments")["changes"].get(pair_name(pairs[-1]), {}).get(key)
    return {**known, **change} if change else known
