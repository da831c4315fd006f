"""Known models near a name that is not known: the models of a family (`qwen3`), of the same family in another size
(`qwen3-7b`), or without the last words of the name (`qwen3-8b-instruct`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import log2
from typing import NamedTuple

from validator.knowledge.tables import yaml_table

# A longer name is no name of a model.
_MAX_WORDS = 16
# The parameters that a token uses (a3b), a size in billions or millions, a number, or letters.
_NAME_WORD = re.compile(r"[ae]\d+(?:\.\d+)?[bm](?![a-z])|\d+(?:\.\d+)?[bm](?![a-z])|\d+(?:\.\d+)?|[a-z]+")
_SIZE = re.compile(r"\d+(?:\.\d+)?[bm]")
_SHORT_NAMES = re.compile(r"short: (?!null)([\w.\-]+)")
_HUB_NAMES = re.compile(r"\n  hub: \[(.+)\]")
_RELEASED = re.compile(r"\n  released: (\S+)")
_PARAMETERS = re.compile(r"\n  parameters: (\d+)")


class KnownName(NamedTuple):
    """A name of a model in data/models.yaml. `key`: id of the entry. `is_variant`: True for the short form of a further
    hub name of the entry, such as qwen3-4b-2507."""

    key: str
    name: str
    is_variant: bool = False

    @property
    def words(self) -> list[str]:
        return _name_words(self.name)


class NearModels(NamedTuple):
    """Known models near a name, the likeliest first. They share the words of `beginning`, the beginning of the name.
    `is_family`: True if no word of the name is left out."""

    beginning: str
    is_family: bool
    known: list[KnownName]

    @property
    def is_general(self) -> bool:
        """True if the models share only the first word of the name."""
        return len(_name_words(self.beginning)) == 1

    @property
    def has_size(self) -> bool:
        """True if the models share a size, such as 8b."""
        return any(_SIZE.fullmatch(word) for word in _name_words(self.beginning))

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.known]

    def has_name(self, name: str) -> bool:
        """True if `name` is one of the names, or a hub name of one of the models."""
        return name in self.names or any(name in yaml_table("models")[each.key]["hub"] for each in self.known)


def near_models(name: str) -> NearModels | None:
    """Return the known models that have all words of `name` or, if there are none, all words but the last ones. A model
    that has just these words is returned alone. None if no known model begins with the first word, which names the
    family. If a size is left out, the model of the nearest size comes first; otherwise the newest model does."""
    words = _name_words(name)[:_MAX_WORDS]
    if not words or not words[0].isalpha():
        return None
    ids = [each for each in _ids_and_short_names() if each.words[:1] == words[:1]]
    hubs = [each for each in _hub_names() if each.words[:1] == words[:1]]
    for count in range(len(words), 0, -1):
        wanted = words[:count]
        same = [each for each in ids if each.words == wanted][:1]
        matches = (
            same
            or [each for each in ids if _has_words(each.words, wanted)]
            or [each for each in hubs if each.words[:count] == wanted]
        )
        if matches:
            return NearModels(_beginning(name, count), count == len(words), _ordered(matches, wanted, words[count:]))
    return None


def _name_words(name: str) -> list[str]:
    return _NAME_WORD.findall(_last_part(name).lower().removeprefix("meta-"))


def _last_part(name: str) -> str:
    return name.strip().rstrip("/").rpartition("/")[2]


def _beginning(name: str, count: int) -> str:
    """Return the first `count` words of a name as the user wrote them, without the owner."""
    bare_name = re.sub("(?i)^meta-", "", _last_part(name))
    return bare_name[: [*_NAME_WORD.finditer(bare_name.lower())][count - 1].end()]


def _ids_and_short_names() -> Iterator[KnownName]:
    """Yield the names for the command line. A short form comes before the id if it is another spelling of the id."""
    models = yaml_table("models")
    own_shorts: dict[str, str] = {}
    for key, short in models.matching(_SHORT_NAMES):
        if own_shorts.setdefault(key, short) != short:
            yield KnownName(key, short, is_variant=True)
    for key in models:
        known = [KnownName(key, name) for name in dict.fromkeys((own_shorts.get(key, key), key))]
        yield from sorted(known, key=lambda each: each.words != _name_words(key))


def _hub_names() -> Iterator[KnownName]:
    for key, hubs in yaml_table("models").matching(_HUB_NAMES):
        yield from (KnownName(key, hub) for hub in hubs.split(", "))


def _has_words(known: list[str], words: list[str]) -> bool:
    """True if all `words` are among the words of a known name. In the name of a family, a generation such as 3 is also
    in 3.1; with a size, it is another model's."""
    rest, is_family = list(known), not any(_SIZE.fullmatch(word) for word in words)
    for word in words:
        match = word if word in rest else None
        if match is None and is_family:
            match = next((each for each in rest if _is_minor_version(each, word)), None)
        if match is None:
            return False
        rest.remove(match)
    return True


def _is_minor_version(known: str, word: str) -> bool:
    return word.isdigit() and known.startswith(f"{word}.") and known[-1].isdigit()


def _ordered(matches: list[KnownName], words: list[str], left_out: list[str]) -> list[KnownName]:
    """Return one name of each model. Names with just these `words` and a size come first, then names that begin with
    `words`, then models whose size is near the size in `left_out`, then newer models, then smaller models."""
    models = yaml_table("models")
    months, parameters = dict(models.matching(_RELEASED)), dict(models.matching(_PARAMETERS))
    asked = next((_parameters_of(word) for word in left_out if _SIZE.fullmatch(word)), 0.0)

    def order(each: KnownName) -> tuple[bool, bool, bool, float, int, int]:
        is_plain = not any(word.isalpha() and word not in words for word in each.words)
        size, (year, month) = int(parameters[each.key]), map(int, months[each.key].split("-"))
        distance = abs(log2(size / asked)) if asked else 0.0
        # A family without its generation has its newest models first, whatever further words they have.
        is_general = len(words) == 1 and not asked
        return (
            not (is_plain or is_general),
            each.words[: len(words)] != words,
            each.is_variant,
            distance,
            -(12 * year + month),
            size,
        )

    by_model: dict[str, KnownName] = {}
    for each in matches:
        by_model.setdefault(each.name if each.is_variant else each.key, each)
    return sorted(by_model.values(), key=order)


def _parameters_of(size: str) -> float:
    """Return the number of parameters that a size such as 8b or 270m states."""
    return float(size[:-1]) * (1e9 if size[-1] == "b" else 1e6)
