"""Why the turns of one conversation are not question and answer in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ASKS = ("user", "observation")


def fault(turns: Sequence[Mapping[str, Any]], kinds: Sequence[str], content: str) -> str:
    """What is wrong with the first turn that is out of order, and what to do; empty where nothing is. `kinds` are the
    roles by LLaMA-Factory's names, empty for one that is not known."""
    begin = 1 if kinds[:1] == ["system"] else 0
    for number, (turn, kind) in enumerate(zip(turns[begin:], kinds[begin:], strict=True), begin + 1):
        asks = (number - begin) % 2 == 1
        if not kind:
            return f"turn {number} is of no known role"
        if (kind in _ASKS) is not asks or kind == "system":
            return f"turn {number} is {_spoken(kind)}, where {'a question' if asks else 'an answer'} must stand"
        if not isinstance(turn.get(content), str):
            return f"turn {number} holds no text"
    return "" if (len(turns) - begin) % 2 == 0 else "it ends with a question: drop its last turn"


def _spoken(kind: str) -> str:
    return "a system prompt" if kind == "system" else "a question" if kind in _ASKS else "an answer"
