"""Releases of LLaMA-Factory, transformers, DeepSpeed and torch: the releases in the tables, the releases that a
recipe's header block allows, and what older releases do differently in memory (data/older.yaml)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import tables
from validator.wording import clip

RELEASE_FIELDS = ("llamafactory", "transformers")
ENGINE_FIELDS = ("deepspeed", "torch")  # whose releases are in data/releases.yaml
ALL_FIELDS = (*RELEASE_FIELDS, *ENGINE_FIELDS)
_DEVELOPMENT_SUFFIX = re.compile(r"\.(?:dev|post)\d*$")
_LEADING_DIGITS = re.compile(r"(?:^|\.)(\d*)")  # of each part of a version
_MAX_DIGITS = 10  # digits, which no part of a version has
# Comparison -> how a version may be ordered to its limit: below (-1), equal or above (1). None means equal.
_COMPARISONS = {">=": (0, 1), "<=": (0, -1), "==": (0,), "!=": (1, -1), ">": (1,), "<": (-1,), "": (0,)}
_MAX_RANGE_LENGTH = 200  # characters of a range
_SERIES = re.compile(r"(\d{1,9})\.(\d{1,9})")
ReleasePair = tuple[str, str]


def known_pairs() -> list[ReleasePair]:
    """Return all pairs (LLaMA-Factory release, transformers release that it accepts) of the tables, newest first in
    both."""
    return [(release, version) for release, versions in _transformers_by_release().items() for version in versions]


@cache
def newest_pair() -> ReleasePair:
    """Return the newest pair (LLaMA-Factory release, transformers release) of the tables. A recipe whose header block
    names no releases is judged by this pair."""
    return known_pairs()[0]


def earlier_transformers() -> list[str]:
    """Return the transformers releases that the newest LLaMA-Factory accepts, without the newest of them. The newest
    release of an earlier major version comes first if there is one; the others follow, newest first."""
    versions = [version for release, version in known_pairs()[1:] if release == newest_pair()[0]]
    return sorted(versions, key=lambda version: version != previous_major_pair()[1])


def previous_major_pair() -> ReleasePair:
    """Return the newest pair (LLaMA-Factory release, transformers release) whose transformers has an earlier major
    version than the newest transformers."""
    major = newest_pair()[1].partition(".")[0]
    return next(pair for pair in known_pairs() if pair[1].partition(".")[0] != major)


def verified_release(package: str) -> str:
    """Return the release of a package with which rules and formulas were verified, from data/seen.yaml. For
    LLaMA-Factory and transformers this is the newest pair. Raises KeyError if the file lacks the package."""
    return str(tables.yaml_table("seen")[package])


def known_factories() -> list[str]:
    """Return the LLaMA-Factory releases of the tables, newest first."""
    return list(_transformers_by_release())


def admitted_transformers(factory: str) -> ReleasePair:
    """Return the oldest and the newest transformers release that a LLaMA-Factory release admits. `factory`: the
    LLaMA-Factory release; one that the tables lack counts as the newest of the tables."""
    table = tables.json_table("arguments")["releases"]
    facts = table.get(factory, table[newest_pair()[0]])
    return facts["oldest"], facts["transformers"][0]


def pair_name(pair: ReleasePair) -> str:
    """Return the name of a pair (LLaMA-Factory release, transformers release) in the tables, such as `0.9.5/5.6.0`."""
    return "/".join(pair)


def release_series(version: str) -> str:
    """Return the series of a release, such as 5.6 for 5.6.0."""
    return ".".join(version.split(".")[:2])


def is_at_least(pair: ReleasePair, limit: str) -> bool:
    """True if a pair (LLaMA-Factory release, transformers release) has reached `limit`, such as "transformers 5.0.0".
    The limit names its package, and only the pair's release of this package is compared. An empty limit is always
    reached."""
    field, _, version = limit.partition(" ")
    return not limit or range_admits(f">={version}", pair[RELEASE_FIELDS.index(field)])


class ReleaseRange:
    """The releases that a recipe allows by `llamafactory`, `transformers`, `deepspeed` and `torch` in its header block.
    A recipe without these ranges is judged by the newest pair of LLaMA-Factory and transformers releases, and by the
    verified releases of DeepSpeed and torch."""

    def __init__(self, header: Mapping[str, Any] | None = None) -> None:
        header = header or {}
        self._wanted = {name: header[name] for name in ALL_FIELDS if header.get(name) is not None}
        self._asked = [f"{name} {self._wanted[name]}" for name in RELEASE_FIELDS if name in self._wanted]
        self._engines: dict[str, tuple[str, ...]] = {}

    @cached_property
    def _admitted(self) -> list[ReleasePair]:
        """Pairs (LLaMA-Factory release, transformers release) of the tables that the recipe's header block allows,
        newest first. Raises RecipeError if a range in the header block is malformed."""
        ranges = [self._wanted.get(field) for field in RELEASE_FIELDS]
        return [pair for pair in known_pairs() if all(map(range_admits, ranges, pair))]

    @cached_property
    def stand_ins(self) -> list[ReleasePair]:
        """Pairs (LLaMA-Factory release, transformers release), newest first, by which the recipe is judged if the
        tables hold no release of the ranges in its header block. Empty if the tables hold such releases, or if no
        release can stand in.

        If the LLaMA-Factory range lies before every release of the tables, the oldest one stands in. The lowest
        transformers release of the range decides. For each LLaMA-Factory release that accepts this release, the nearest
        transformers release of the same major version stands in: at or below the lowest release if possible, else
        above it. Raises RecipeError if a range is malformed."""
        if not self._asked or self._admitted:
            return []
        table, oldest = tables.json_table("arguments")["releases"], self.oldest_stand_in
        wanted, transformers_range = self._wanted.get("llamafactory"), self._wanted.get("transformers")
        if transformers_range is None:
            return [(oldest, version) for version in table[oldest]["transformers"]] if oldest else []
        lowest_release = _least_release(transformers_range)
        return [
            (release, version)
            for release, facts in table.items()
            if (release == oldest or range_admits(wanted, release))
            and range_admits(f">={facts['oldest']}, <={facts['transformers'][0]}", lowest_release)
            for version in _nearest_releases(facts["transformers"], lowest_release)
        ]

    @property
    def oldest_stand_in(self) -> str | None:
        """The oldest LLaMA-Factory release of the tables, if the range in the recipe's header block lies before it;
        else None. Raises RecipeError if the range is malformed."""
        wanted, oldest = self._wanted.get("llamafactory"), known_pairs()[-1][0]
        if wanted is None or any(range_admits(wanted, release) for release in known_factories()):
            return None
        return oldest if range_admits(f"<={oldest}", _least_release(wanted)) else None

    def factories_before_tables(self, earlier: Iterable[str]) -> list[str]:
        """Return the releases among `earlier` that the recipe may run with. Empty if its LLaMA-Factory range does not
        lie before every release of the tables, or is malformed."""
        with suppress(RecipeError):
            if self.oldest_stand_in:
                return [release for release in earlier if range_admits(self._wanted["llamafactory"], release)]
        return []

    @cached_property
    def required_pairs(self) -> list[ReleasePair]:
        """Pairs (LLaMA-Factory release, transformers release) that the recipe must run with, newest first. Each
        LLaMA-Factory release that the recipe's header block allows is paired with the newest transformers release that
        the header block also allows, or with a stand-in (see `stand_ins`). Without ranges in the header block this is
        the newest pair of the tables. Raises RecipeError if a range is malformed or allows no release of the tables."""
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
        """Every pair (LLaMA-Factory release, transformers release) that the recipe may run with, newest first. If the
        recipe's header block states no range, or a malformed one, these are the newest LLaMA-Factory release with each
        transformers release that it accepts."""
        try:
            pairs = (self._admitted or self.stand_ins) if self._asked else []
        except RecipeError:
            pairs = []
        return pairs or [pair for pair in known_pairs() if pair[0] == newest_pair()[0]]

    @property
    def possible_factories(self) -> list[str]:
        """Every LLaMA-Factory release that the recipe may run with, newest first (see `possible_pairs`)."""
        possible = {pair[0] for pair in self.possible_pairs}
        return [factory for factory in known_factories() if factory in possible]

    def pairs_among(self, versions: Iterable[str]) -> list[ReleasePair]:
        """Return every pair (LLaMA-Factory release, transformers release) that the recipe's header block allows, of the
        transformers releases in `versions` and those that its range names. If the header block has no transformers
        range, each LLaMA-Factory release that it allows counts with the newest transformers release. If its range lies
        before every release of the tables, the oldest one stands in. Empty if a range is malformed or allows no release
        of the tables."""
        wanted = self._wanted.get("transformers")
        try:
            required = self.required_pairs
        except RecipeError:
            return []
        if wanted is None:
            return required
        named = [part.strip(" <>=!") for part in str(wanted).split(",")]
        each = dict.fromkeys([*versions, *named])
        admitted = [version for version in each if range_admits(wanted, version)] or [_least_release(wanted)]
        return [
            (release, version)
            for release in known_factories()
            if release == self.oldest_stand_in or range_admits(self._wanted.get("llamafactory"), release)
            for version in admitted
            if range_admits(">={}, <={}".format(*admitted_transformers(release)), version)
        ]

    def requires(self, since: str = "", until: str = "") -> bool:
        """True if the recipe must run with a pair of releases (LLaMA-Factory and transformers) that has reached `since`
        but not `until`. Each limit names its package, such as "transformers 5.0.0", and is compared with the pair's
        release of this package; empty: no limit. If the tables hold no transformers release that the header block
        allows, the lowest release of its range is compared. If a range in the header block is malformed, only the
        newest pair is checked.

        Limits of DeepSpeed or torch, which both name the same package, are compared with `engine_releases`."""
        package = (since or until).partition(" ")[0]
        if package in ENGINE_FIELDS:
            between = f">={since.partition(' ')[2] or 0}{until and ', <' + until.partition(' ')[2]}"
            return any(range_admits(between, release) for release in self.engine_releases(package))
        return any(is_at_least(pair, since) and not (until and is_at_least(pair, until)) for pair in self._judged)

    @cached_property
    def judged_pairs(self) -> list[ReleasePair]:
        """Pairs of `required_pairs`, or only the newest pair of the tables if the ranges in the recipe's header block
        are malformed or allow no release of the tables."""
        try:
            return self.required_pairs
        except RecipeError:
            return [newest_pair()]

    @cached_property
    def _judged(self) -> list[ReleasePair]:
        """The pairs by which `requires` judges. A pair that stands in for releases which the tables lack has the lowest
        transformers release of the range in the header block."""
        with suppress(RecipeError):
            if "transformers" in self._wanted and self.stand_ins:
                lowest = _least_release(self._wanted["transformers"])
                return [(factory, lowest) for factory, _ in self.judged_pairs]
        return self.judged_pairs

    @cached_property
    def older_effects(self) -> frozenset[str]:
        """Names of the entries in data/older.yaml that apply to a release which the recipe may run with. An entry says
        what older releases of a package do differently. Empty if the recipe's header block states no range."""
        if not self._asked:
            return frozenset()
        return frozenset(
            name
            for name, entry in tables.yaml_table("older").items()
            if self.requires(until=entry["until"]) and not ("since" in entry and self.requires(until=entry["since"]))
        )

    @property
    def older_tower_types(self) -> frozenset[str]:
        """Model types whose vision towers do something differently in a release which the recipe may run with."""
        entries = tables.yaml_table("older")
        return frozenset(kind for name in self.older_effects for kind in entries[name].get("types", ()))

    def possible_defaults(self, key: str) -> set[Any]:
        """Return all default values that the recipe key `key` has in the pairs of releases (LLaMA-Factory,
        transformers) that the recipe may run with."""
        table = tables.json_table("arguments")
        newest_one, changes = table["arguments"].get(key, {}).get("default"), table["changes"]
        each = (changes.get(pair_name(pair), {}).get(key, {}) for pair in self.possible_pairs)
        return {fields.get("default", newest_one) for fields in each}

    def engine_releases(self, package: str) -> tuple[str, ...]:
        """Releases of DeepSpeed or torch that the recipe must run with, newest first: those that its header block
        allows and LLaMA-Factory accepts. If there are none of both, those that the header block allows, or else the
        lowest release that its range names. Without a range, or with a malformed one, the verified release, or the
        newest one before it that LLaMA-Factory accepts."""
        if package not in self._engines:
            self._engines[package] = self._find_engine_releases(package)
        return self._engines[package]

    def _find_engine_releases(self, package: str) -> tuple[str, ...]:
        verified, wanted = verified_release(package), self._wanted.get(package)
        if wanted is None and not self._asked:
            return (verified,)
        table, accepted = tables.yaml_table("releases")[package]["releases"], self.accepted_ranges(package)
        with suppress(RecipeError):
            if wanted is not None:
                named = [one for one in _named_releases(wanted) if not any(range_admits(one, each) for each in table)]
                allowed = [release for release in (*named, *table) if range_admits(_series_range(wanted), release)]
                both = [one for one in allowed if any(range_admits(each, one) for each in accepted.values())]
                return tuple(both or allowed or [_least_release(wanted)])
        until_verified = [release for release in table if range_admits(f"<={verified}", release)]
        newest = (next(one for one in until_verified if range_admits(each, one)) for each in accepted.values())
        return tuple(dict.fromkeys(newest))

    def accepted_ranges(self, package: str) -> dict[str, str | None]:
        """Return the range of DeepSpeed releases that LLaMA-Factory accepts, or of torch releases that transformers
        accepts, by each release of LLaMA-Factory or transformers that the recipe must run with, newest first. The range
        is None if every release is accepted."""
        entry = tables.yaml_table("releases")[package]
        place, accepted = RELEASE_FIELDS.index(entry["by"]), entry["accepted"]
        return {pair[place]: accepted.get(pair[place]) for pair in self.judged_pairs}

    def refused(self, package: str) -> Iterator[tuple[str, str]]:
        """Yield (name and release, range) for each release of LLaMA-Factory or transformers that the recipe must run
        with and that accepts none of the releases of DeepSpeed or torch by which the recipe is judged."""
        found = self.engine_releases(package)
        for release, accepted in self.accepted_ranges(package).items():
            if not any(range_admits(accepted, one) for one in found):
                yield f"{tables.yaml_table('releases')[package]['by']} {release}", str(accepted)

    def pip_range(self, package: str) -> str:
        """Return the range of DeepSpeed or torch releases to install, as pip writes it: the range of the header block,
        or else what the newest LLaMA-Factory that the recipe must run with accepts. Empty for no bound."""
        wanted = None if package in dict(self.malformed()) else self._wanted.get(package)
        text = _series_range(wanted) or next(iter(self.accepted_ranges(package).values())) or ""
        return str(text if not text or str(text).strip()[0] in "<>=!" else f"=={text}").replace(" ", "")

    def malformed(self) -> Iterator[tuple[str, str]]:
        """Yield (field, reason) for each field of the header block (deepspeed, torch) whose value is no range of
        releases."""
        for field in ENGINE_FIELDS:
            try:
                range_admits(self._wanted.get(field), "0")
            except RecipeError as err:
                yield field, str(err)

    def excluded(self, installed: Mapping[str, str]) -> Iterator[str]:
        """Yield a clause for each installed package (LLaMA-Factory, transformers, DeepSpeed, torch) whose release the
        recipe's header block does not allow. `installed`: release of each installed package, by name. Yields nothing if
        a range in the header block is malformed."""
        try:
            _ = self.required_pairs
        except RecipeError:
            return
        malformed = dict(self.malformed())
        for field in ALL_FIELDS:
            wanted = None if field in malformed else self._wanted.get(field)
            wanted = _series_range(wanted) if field in ENGINE_FIELDS else wanted
            if field in installed and not range_admits(wanted, installed[field]):
                yield f"the recipe is for {field} {self._wanted[field]}, and {installed[field]} is installed here"


def range_admits(wanted: Any, version: str) -> bool:
    """True if a range (`wanted`), such as `>=0.9.4, <0.9.6`, contains `version`. A range that is a single version
    contains only this version. None contains every version. Raises RecipeError if the range is malformed."""
    return wanted is None or _admits(str(wanted), version)


@lru_cache(maxsize=8192)
def _admits(release_range: str, version: str) -> bool:
    numbers = _version_numbers(version, release_range)
    for allowed, limit in _parse_range(release_range):
        size = max(len(limit), len(numbers))
        one, two = numbers + (0,) * (size - len(numbers)), limit + (0,) * (size - len(limit))
        if (one > two) - (one < two) not in allowed:
            return False
    return True


@lru_cache(maxsize=256)
def _parse_range(release_range: str) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return a pair for each part of a range, such as `>=0.9.4`: the orderings of a version to the limit that the part
    allows (-1 below, 0 equal, 1 above), and the numbers of the limit. Raises RecipeError if the range is malformed."""
    if len(release_range) > _MAX_RANGE_LENGTH:
        raise _unreadable_range_error(release_range)
    parts = []
    for part in map(str.strip, release_range.split(",")):
        sign = next(sign for sign in _COMPARISONS if part.startswith(sign))
        parts.append((_COMPARISONS[sign], _version_numbers(part.removeprefix(sign), release_range)))
    return tuple(parts)


def _least_release(release_range: Any) -> str:
    """Return the lowest release that a range names, such as 0.9.4 for `>=0.9.4, <0.9.6`. Raises RecipeError if the
    range is malformed."""
    return min(_named_releases(release_range), key=lambda part: _version_numbers(part, release_range))


def _named_releases(release_range: Any) -> list[str]:
    return [part.strip(" <>=!") for part in str(release_range).split(",")]


def _series_range(wanted: Any) -> Any:
    """Return a range of DeepSpeed or torch releases in which a series, such as 2.7, means each of its releases."""
    series = wanted is not None and _SERIES.fullmatch(str(wanted).strip())
    return f">={series[0]}, <{series[1]}.{int(series[2]) + 1}" if series else wanted


def _nearest_releases(versions: list[str], version: str) -> list[str]:
    alike = [each for each in versions if each.partition(".")[0] == version.partition(".")[0]]
    return [each for each in alike if range_admits(f"<={version}", each)][:1] or alike[-1:]


def _transformers_by_release() -> dict[str, list[str]]:
    return {name: facts["transformers"] for name, facts in tables.json_table("arguments")["releases"].items()}


def _version_numbers(version: str, release_range: str) -> tuple[int, ...]:
    """Return the numbers of a version. A part such as 0rc1 counts as its leading number. A development version, such as
    the version of LLaMA-Factory's main branch, counts as the release that it leads to; what a build adds behind `+`
    does not count. Raises RecipeError if a part has
    no number; the message quotes `release_range`, the range for which the version is read."""
    digits: list[str] = _LEADING_DIGITS.findall(_DEVELOPMENT_SUFFIX.sub("", version.strip().partition("+")[0]))
    if not all(0 < len(each) < _MAX_DIGITS for each in digits):
        raise _unreadable_range_error(release_range)
    return tuple(int(digit) for digit in digits)


def _unreadable_range_error(release_range: Any) -> RecipeError:
    message = f"`{clip(str(release_range))}` is no range of releases"
    return RecipeError(f"{message}; write one such as `>=0.9.4` or `>=0.9.4, <0.9.6`")


ArgumentEntry = Mapping[str, Any]


def argument_entry(key: str, pairs: list[ReleasePair]) -> ArgumentEntry | None:
    """Return the facts in data/arguments.json (type, default, choices) about the recipe key `key`; None if one of
    `pairs` lacks the key. `pairs`: pairs (LLaMA-Factory release, transformers release), newest first. The facts of the
    last, oldest pair are returned, because additions of newer releases do not exist there."""
    entry = tables.json_table("arguments")["arguments"].get(key)
    if entry is None or not all(pair_name(pair) in entry.get("in", [pair_name(pair)]) for pair in pairs):
        return None
    change = tables.json_table("arguments")["changes"].get(pair_name(pairs[-1]), {}).get(key)
    return {**entry, **change} if change else entry
