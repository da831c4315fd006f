"""The report: differences by kind and cause, the most important first, in few lines."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import median
from typing import NamedTuple

from differences import KINDS, Difference

_LINES = 26  # of the short report
_WIDTH = 180


class Seen(NamedTuple):
    """A difference in the answer to a question, by its id."""

    question: str
    difference: Difference


class Allowed:
    """Kinds of differences that are intended: KIND, or KIND:PATTERN with a pattern of question ids or causes."""

    def __init__(self, words: Sequence[str]) -> None:
        self._allowed = [(kind, pattern or "*") for kind, _, pattern in (word.partition(":") for word in words)]
        unknown = [kind for kind, _ in self._allowed if kind not in KINDS]
        if unknown:
            raise ValueError(f"--allow knows {', '.join(KINDS)}; not {', '.join(unknown)}")

    def __contains__(self, seen: Seen) -> bool:
        texts = (seen.question, seen.difference.cause)
        return any(
            kind == seen.difference.kind and any(fnmatchcase(text, pattern) for text in texts)
            for kind, pattern in self._allowed
        )


def lines(seen: Sequence[Seen], allowed: Allowed, whole: bool = False) -> Iterator[str]:
    """The report. Unless it is wanted whole, as many causes of each kind as there is room for."""
    unexpected = {
        kind: group
        for kind in KINDS
        if (group := _causes(e for e in seen if e.difference.kind == kind and e not in allowed))
    }
    each = max(1, (_LINES - 2 * len(unexpected)) // max(1, len(unexpected)))
    for kind, causes in unexpected.items():
        shown = list(causes.items()) if whole or len(causes) <= each + 1 else list(causes.items())[:each]
        yield f"{KINDS[kind]}: {_answers([e for group in causes.values() for e in group])}"
        yield from (f"  {_line(cause, group)}" for cause, group in shown)
        if rest := list(causes.items())[len(shown) :]:
            names = ", ".join(cause for cause, _ in rest)
            yield _cut(f"  and {len(rest)} more in {_answers([e for _, group in rest for e in group])}: {names}")
    expected = [each for each in seen if each in allowed]
    if expected:
        counts = {kind: [e for e in expected if e.difference.kind == kind] for kind in KINDS}
        yield "allowed: " + ", ".join(f"{KINDS[kind]} in {_answers(group)}" for kind, group in counts.items() if group)


def _causes(seen: Iterator[Seen]) -> Mapping[str, list[Seen]]:
    """By cause, the most frequent first."""
    causes: dict[str, list[Seen]] = defaultdict(list)
    for each in seen:
        causes[each.difference.cause].append(each)
    return dict(sorted(causes.items(), key=lambda pair: (-_count(pair[1]), pair[0])))


def _line(cause: str, seen: Sequence[Seen]) -> str:
    """One cause: how often, by how much, and the change in one answer."""
    changes = [each.difference.change for each in seen if each.difference.change is not None]
    # The largest change is the best example, and else the shortest.
    first = min(
        seen, key=lambda each: (-abs(each.difference.change or 0), len(each.difference.old + each.difference.new))
    )
    by = ""
    if changes:
        by = f", by {_percent(max(changes, key=abs))} at most, {_percent(median(changes))} in the median"
    both = dict.fromkeys(filter(None, (first.difference.old, first.difference.new)))
    told = f": {' -> '.join(_cut(text, 120 // len(both)) for text in both)}" if both else ""
    return f"{_cut(cause, 100)}  ({_answers(seen)}{by}; {first.question}{told})"


def _percent(change: float) -> str:
    if math.isinf(change):
        return "from 0"
    return f"{100 * change:+.2g} %" if abs(change) < 10 else f"x {change + 1:,.0f}"


def _answers(seen: Sequence[Seen]) -> str:
    count = _count(seen)
    return f"{count:,} answer{'s' * (count != 1)}"


def _count(seen: Sequence[Seen]) -> int:
    return len({each.question for each in seen})


def _cut(text: str, width: int = _WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
