"""Suggestions for misspelled names ("did you mean X?"): the known name that is most similar."""

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
    """Return the message that a name is not known. `what`: the kind of name, such as "key". `effect`: text on what
    follows from the mistake. The message ends with the most similar name in `known` or, if none is similar and `known`
    is short, with all of them."""
    names = list(known)
    few = f"known are {', '.join(names)}" if names else "there is none"
    remedy = suggest(name, names) or (f"; {few}" if len(names) <= _MAX_NAMES_LISTED else "")
    return f"{what} `{clip(name)}` is not known{effect}{remedy}"


def suggest(name: str, known: Iterable[str], likeness: float = _LIKENESS) -> str:
    """Return `; did you mean X?` with the name in `known` that is most similar; an empty string if no name is similar
    enough. `likeness`: the share of letters, from 0 to 1, that must agree."""
    near = nearest_name(name, known, likeness)
    return f"; did you mean `{near}`?" if near else ""


def nearest_name(name: str, known: Iterable[str], likeness: float = _LIKENESS) -> str | None:
    """Return the known name that is most similar to a misspelled one, ignoring case; None if no name is similar enough.
    If exactly one known name consists of all words of `name` and a few more, this name wins; otherwise the known name
    with the fewest edits, if at least the share `likeness` of its letters agrees. Also None if there are too many known
    names to compare."""
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


def _leaves_out(part: list[str], all_: list[str]) -> bool:
    """True if the words `part` are the words `all_` without a few: in the same order, and at least half of them."""
    rest = iter(all_)
    return len(part) < len(all_) <= 2 * len(part) and all(word in rest for word in part)


def _fewest_edits(word: str, candidates: list[str], likeness: float) -> str | None:
    """Return the known name that needs the fewest edits to become `word`; None if none is similar enough. `likeness`:
    the least share of the longer name's letters that need no edit. A single edit is always accepted, but in names of
    three letters only after the first letter."""
    best: tuple[int, str] | None = None
    for each in candidates:
        longer = max(len(word), len(each))
        slip = longer > _SHORT_NAME or (longer == _SHORT_NAME and word[:1] == each[:1].lower())
        max_edits = max(int((1 - likeness) * longer + 1e-9), int(slip))
        edits = edit_distance(word, each.lower(), min(max_edits, best[0] - 1) if best else max_edits)
        if edits is not None:
            best = edits, each
    return best[1] if best else None


def edit_distance(one: str, other: str, most: int) -> int | None:
    """Return how many letters must be inserted, deleted, replaced or swapped with their neighbour to turn one word into
    the other (optimal string alignment: Damerau 1964, Levenshtein 1966). None if more than `most` edits are needed."""
    if most < 0 or abs(len(one) - len(other)) > most:
        return None
    before, row = [0] * (len(other) + 1), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row_before_last, before = before, row
        row = [i]
        for j, other_letter in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other_letter))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == other_letter:
                cost = min(cost, row_before_last[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return None
    return row[-1] if row[-1] <= most else None
