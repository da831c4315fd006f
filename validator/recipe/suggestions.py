""" "Did you mean X?": the known name that is nearest to a mistyped one, and the message on a name that is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from validator.wording import clip

# Of names like no other the longest is long enough to be no slip of the hand.
_LONGEST_NAME = 80
_SHORT_NAME = 3
# To compare with more names than that takes longer than all the rest of a check.
_TOO_MANY_NAMES = 5_000
_LIKENESS = 0.7
_MAX_NAMES_LISTED = 20


def unknown_name(what: str, name: str, known: Iterable[str], effect: str = "") -> str:
    """Return the message that a name is not known: `what` it is a name of, the `effect`, and as a remedy the nearest
    known name, else all known names if they are few."""
    names = list(known)
    few = f"known are {', '.join(names)}" if names else "there is none"
    remedy = suggest(name, names) or (f"; {few}" if len(names) <= _MAX_NAMES_LISTED else "")
    return f"{what} `{clip(name)}` is not known{effect}{remedy}"


def suggest(name: str, known: Iterable[str], likeness: float = _LIKENESS) -> str:
    """Return `; did you mean X?` for a near miss, else an empty text."""
    near = nearest_name(name, known, likeness)
    return f"; did you mean `{near}`?" if near else ""


def nearest_name(name: str, known: Iterable[str], likeness: float = _LIKENESS) -> str | None:
    """Return the one name that holds all words of this one and some more, else the similar name that takes the fewest
    edits. Case does not count. None if no name is similar enough, or if too many are known to compare."""
    if len(name) > _LONGEST_NAME:
        return None
    names = list(known)
    if len(names) > _TOO_MANY_NAMES:
        return None
    parts = _split_words(name.lower())
    longer = [each for each in names if _leaves_out(parts, _split_words(each.lower()))]
    return longer[0] if len(longer) == 1 else _fewest_edits(name.lower(), names, likeness)


@lru_cache(maxsize=_TOO_MANY_NAMES)
def _split_words(name: str) -> list[str]:
    return re.split(r"[_\W]+", name)


def _leaves_out(some: list[str], all_: list[str]) -> bool:
    """True if `some` are all words of `all_` but a few, in their order, and half of them at least."""
    rest = iter(all_)
    return len(some) < len(all_) <= 2 * len(some) and all(word in rest for word in some)


def _fewest_edits(word: str, known: list[str], likeness: float) -> str | None:
    """Return the similar name that takes the fewest edits. Likeness is the share of the longer name's letters that need
    no edit. One edit is always a slip, but in a name of three letters only behind the first."""
    best: tuple[int, str] | None = None
    for each in known:
        longer = max(len(word), len(each))
        slip = longer > _SHORT_NAME or (longer == _SHORT_NAME and word[:1] == each[:1].lower())
        most = max(int((1 - likeness) * longer + 1e-9), int(slip))
        edits = edit_distance(word, each.lower(), min(most, best[0] - 1) if best else most)
        if edits is not None:
            best = edits, each
    return best[1] if best else None


def edit_distance(one: str, other: str, most: int) -> int | None:
    """Return how many letters must be inserted, left out, replaced or exchanged with their neighbour (optimal string
    alignment: Damerau 1964, Levenshtein 1966); None if more than `most`."""
    if most < 0 or abs(len(one) - len(other)) > most:
        return None
    before, row = [0] * (len(other) + 1), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above, before = before, row
        row = [i]
        for j, there in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != there))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == there:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return None
    return row[-1] if row[-1] <= most else None
