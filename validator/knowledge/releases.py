"""Releases of LLaMA-Factory, transformers and torch: those in the tables, those for which a recipe is by the ranges of
its header block, and what older releases do otherwise in memory (data/older.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, lru_cache
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import tables
from validator.wording import clip

RELEASE_FIELDS = ("llamafactory", "transformers")
_DEVELOPMENT_SUFFIX = re.compile(r"\.(?:dev|post)\d*(?=\+|$)")
_LEADING_DIGITS = re.compile(r"(?:^|\.)(\d*)")  # of each part of a version
_MAX_DIGITS = 10  # digits, which no part of a version has
# Comparison -> how a version may be ordered to its limit: below (-1), equal or above (1). None means equal.
_COMPARISONS = {">=": (0, 1), "<=": (0, -1), "==": (0,), "!=": (1, -1), ">": (1,), "<": (-1,), "": (0,)}
_MAX_RANGE_LENGTH = 200  # characters of a range
ReleasePair = tuple[str, str]


def known_pairs() -> list[ReleasePair]:
    """Return LLaMA-Factory releases with the transformers releases that each admits, newest first in both."""
    return [(release, version) for release, versions in _transformers_by_release().items() for version in versions]


@cache
def newest_pair() -> ReleasePair:
    """Return the pair of releases by which a recipe without a range is judged."""
    return known_pairs()[0]


def earlier_transformers() -> list[str]:
    """Return the transformers releases of the tables without the newest, the latest of the earlier major release
    first."""
    others = [version for release, version in known_pairs()[1:] if release == newest_pair()[0]]
    return sorted(others, key=lambda version: version != previous_major_pair()[1])


def previous_major_pair() -> ReleasePair:
    """Return the newest pair whose transformers is of an earlier major release than the newest pair's."""
    major = newest_pair()[1].partition(".")[0]
    return next(pair for pair in known_pairs() if pair[1].partition(".")[0] != major)


def verified_release(package: str) -> str:
    """Return the release of a package with which rules and formulas were verified. LLaMA-Factory's and transformers'
    are the newest pair. Raises KeyError for a package that is not in seen.yaml."""
    return str(tables.yaml_table("seen")[package])


def pair_name(pair: ReleasePair) -> str:
    """Return the pair as the tables write it."""
    return "/".join(pair)


def release_series(version: str) -> str:
    """Return the series of a release: 5.6 of 5.6.0."""
    return ".".join(version.split(".")[:2])


def is_at_least(pair: ReleasePair, limit: str) -> bool:
    """True if the pair has come to a limit such as "transformers 5.0.0"; to an empty one, always."""
    field, _, version = limit.partition(" ")
    return not limit or range_admits(f">={version}", pair[RELEASE_FIELDS.index(field)])


class ReleaseRange:
    """The releases that a recipe admits, by `llamafactory`, `transformers` and `torch` of its header block. Without a
    range it is judged by the newest pair of the tables."""

    def __init__(self, header: Mapping[str, Any] | None = None) -> None:
        header = header or {}
        self._wanted = {name: header[name] for name in (*RELEASE_FIELDS, "torch") if header.get(name) is not None}
        self._asked = [f"{name} {self._wanted[name]}" for name in RELEASE_FIELDS if name in self._wanted]

    @cached_property
    def _admitted(self) -> list[ReleasePair]:
        """The pairs of the tables in the range, newest first. Raises RecipeError if the range is malformed."""
        wanted = [self._wanted.get(field) for field in RELEASE_FIELDS]
        return [pair for pair in known_pairs() if all(map(range_admits, wanted, pair))]

    @cached_property
    def stand_ins(self) -> list[ReleasePair]:
        """The pairs by which the recipe is judged if the tables hold no release of its range, newest first; else empty.
        For each LLaMA-Factory that accepts the least transformers of the range: the nearest transformers of the same
        major release, at or below that if there is one, else above. Raises RecipeError if the range is malformed."""
        wanted = self._wanted.get("transformers")
        if wanted is None or self._admitted:
            return []
        least = _least_release(wanted)
        return [
            (release, near)
            for release, facts in tables.json_table("arguments")["releases"].items()
            if range_admits(self._wanted.get("llamafactory"), release)
            and range_admits(f">={facts['oldest']}, <={facts['transformers'][0]}", least)
            for near in _nearest_releases(facts["transformers"], least)
        ]

    @cached_property
    def required_pairs(self) -> list[ReleasePair]:
        """The pairs that the recipe must run with, newest first: each LLaMA-Factory release of its range with the
        newest transformers, or with a stand-in. Raises RecipeError if a range is malformed or holds no release."""
        if not self._asked:
            return [newest_pair()]
        newest_of: dict[str, ReleasePair] = {}
        for pair in self._admitted or self.stand_ins:
            newest_of.setdefault(pair[0], pair)
        if not newest_of:
            table = "; ".join(
                f"{release} with {', '.join(versions)}" for release, versions in _transformers_by_release().items()
            )
            raise RecipeError(f"no release in the tables fits {' with '.join(self._asked)}; there are {table}")
        return list(newest_of.values())

    @cached_property
    def possible_pairs(self) -> list[ReleasePair]:
        """Every pair that the recipe may meet, newest first: all of its range. Without a range, or with a malformed
        one, the newest LLaMA-Factory with each transformers release that it admits."""
        try:
            pairs = (self._admitted or self.stand_ins) if self._asked else []
        except RecipeError:
            pairs = []
        return pairs or [pair for pair in known_pairs() if pair[0] == newest_pair()[0]]

    def requires(self, since: str = "", until: str = "") -> bool:
        """True if the recipe must run with a pair from `since` on and before `until`, such as "transformers 5.0.0"
        (empty: no bound); a range that cannot be read counts as the newest pair."""
        return any(is_at_least(pair, since) and not (until and is_at_least(pair, until)) for pair in self._judged)

    @cached_property
    def _judged(self) -> list[ReleasePair]:
        try:
            return self.required_pairs
        except RecipeError:
            return [newest_pair()]

    def may_be_before(self, limit: str) -> bool:
        """True if the recipe may run with a release before a limit such as "transformers 4.54.0". If the tables hold
        none of its range, the least release of the range decides, not its stand-in; a range that cannot be read counts
        as the newest pair."""
        field, _, version = limit.partition(" ")
        try:
            if field == "transformers" and self.stand_ins:
                return range_admits(f"<{version}", _least_release(self._wanted[field]))
        except RecipeError:
            return False
        return self.requires(until=limit)

    @cached_property
    def older_effects(self) -> frozenset[str]:
        """Names of the entries of data/older.yaml that hold for a release which the recipe may run with."""
        if not self._asked:
            return frozenset()
        return frozenset(
            name
            for name, entry in tables.yaml_table("older").items()
            if self.may_be_before(entry["until"]) and not ("since" in entry and self.may_be_before(entry["since"]))
        )

    def possible_defaults(self, key: str) -> set[Any]:
        """Return the values that a key has by default, with each pair of releases that the recipe may meet."""
        table = tables.json_table("arguments")
        newest_one, changes = table["arguments"].get(key, {}).get("default"), table["changes"]
        each = (changes.get(pair_name(pair), {}).get(key, {}) for pair in self.possible_pairs)
        return {fields.get("default", newest_one) for fields in each}

    def may_be_before_torch(self, minor: int) -> bool:
        """True if the range of torch holds a release before 2.minor; false without a range, or with a malformed one."""
        return "torch" in self._wanted and self._admits_torch(range(minor))

    def may_be_since_torch(self, minor: int) -> bool:
        """True if the range of torch holds 2.minor or a later release, and without a range, or with a malformed one."""
        return self._admits_torch(range(minor, 100)) or not self.may_be_before_torch(minor)

    def _admits_torch(self, minors: range) -> bool:
        wanted = self._wanted.get("torch")
        try:
            return any(range_admits(wanted, f"2.{minor}.{patch}") for minor in minors for patch in range(3))
        except RecipeError:
            return False

    def excluded(self, installed: Mapping[str, str]) -> Iterator[str]:
        """Yield in words each installed package that is not in the range; nothing if the range cannot be read."""
        try:
            _ = self.required_pairs
        except RecipeError:
            return
        for field in RELEASE_FIELDS:
            if field in installed and not range_admits(self._wanted.get(field), installed[field]):
                yield f"the recipe is for {field} {self._wanted[field]}, and {installed[field]} is installed here"


def range_admits(wanted: Any, version: str) -> bool:
    """True if a range such as `>=0.9.4, <0.9.6` holds a version. A version alone admits only itself, null every
    version. Raises RecipeError if it is no range."""
    if wanted is None:
        return True
    here = _version_numbers(version, wanted)
    for allowed, limit in _parse_range(str(wanted)):
        size = max(len(limit), len(here))
        one, two = here + (0,) * (size - len(here)), limit + (0,) * (size - len(limit))
        if (one > two) - (one < two) not in allowed:
            return False
    return True


@lru_cache(maxsize=256)
def _parse_range(wanted: str) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return (how a version may be ordered to the limit, numbers of the limit) for each part of a range. Raises
    RecipeError if it is no range."""
    if len(wanted) > _MAX_RANGE_LENGTH:
        raise _unreadable_range_error(wanted)
    parts = []
    for part in map(str.strip, wanted.split(",")):
        sign = next(sign for sign in _COMPARISONS if part.startswith(sign))
        parts.append((_COMPARISONS[sign], _version_numbers(part.removeprefix(sign), wanted)))
    return tuple(parts)


def _least_release(wanted: Any) -> str:
    """Return the least release that a range names."""
    return min(
        (part.strip(" <>=!") for part in str(wanted).split(",")), key=lambda part: _version_numbers(part, wanted)
    )


def _nearest_releases(versions: list[str], version: str) -> list[str]:
    alike = [each for each in versions if each.partition(".")[0] == version.partition(".")[0]]
    return [each for each in alike if range_admits(f"<={version}", each)][:1] or alike[-1:]


def _transformers_by_release() -> dict[str, list[str]]:
    return {name: facts["transformers"] for name, facts in tables.json_table("arguments")["releases"].items()}


def _version_numbers(version: str, wanted: Any) -> tuple[int, ...]:
    """Return the numbers of a version. A part such as 0rc1 counts as its leading number, and a development version, as
    LLaMA-Factory's main branch has, as the release that it leads to."""
    digits: list[str] = _LEADING_DIGITS.findall(_DEVELOPMENT_SUFFIX.sub("", version.strip()))
    if not all(0 < len(each) < _MAX_DIGITS for each in digits):
        raise _unreadable_range_error(wanted)
    return tuple(int(digit) for digit in digits)


def _unreadable_range_error(wanted: Any) -> RecipeError:
    what = f"`{clip(str(wanted))}` is no range of releases"
    return RecipeError(f"{what}; write one such as `>=0.9.4` or `>=0.9.4, <0.9.6`")


ArgumentEntry = Mapping[str, Any]


def argument_entry(key: str, pairs: list[ReleasePair]) -> ArgumentEntry | None:
    """Return what the table says of a key for these releases; None if one of them lacks the key. Of several releases
    the oldest counts, as additions of newer ones do not help there."""
    known = tables.json_table("arguments")["arguments"].get(key)
    if known is None or not all(pair_name(pair) in known.get("in", [pair_name(pair)]) for pair in pairs):
        return None
    change = tables.json_table("arguments")["changes"].get(pair_name(pairs[-1]), {}).get(key)
    return {**known, **change} if change else known
