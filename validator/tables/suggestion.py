"""Did you mean … ?"""

from __future__ import annotations

from collections.abc import Iterable


def suggest(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """`; did you mean X?` for a near miss, at least so like, else an empty text."""
    import difflib

    written = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(written), n=1, cutoff=likeness)
    return f"; did you mean `{written[near[0]]}`?" if near else ""
