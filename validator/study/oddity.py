"""What is odd about the text of one row."""

from __future__ import annotations

import re

KINDS = ("empty answers", "very short answers", "control characters", "garbled text", "huge rows")
# Between the turns of a row: no text should hold it.
SEPARATOR = "\x1e"
_EMPTY, _SHORT, _CONTROL, _GARBLED, _HUGE = KINDS
_SHORTER = 5  # characters of a very short answer are fewer
_LARGER = 1_000_000  # bytes of a huge row are more
_BLANK = f"{SEPARATOR} \t\r\n"
# All bytes but control characters; tab, line feed and carriage return are no trouble.
_PRINTED = bytes(set(range(256)) - set(range(32)) - {127}) + b"\t\n\r"
# The replacement character, and UTF-8 read as Latin-1, Windows-1252 or GBK.
_WRONG = re.compile("\ufffd|锟斤拷|[ÃÂ][\u0080-\u00bf]|â€")


def oddities(asked: str, answered: str, data: bytes, turns: int, answers: int) -> list[str]:
    """Kinds of oddities of a row. `data`: question and answer in UTF-8; separators stand between all turns."""
    odd = []
    if len(answered) < 2 * _SHORTER and answers:
        bare = answered.strip(_BLANK)
        if len(bare) < _SHORTER:
            odd.append(_SHORT if bare else _EMPTY)
    if len(data.translate(None, _PRINTED)) >= turns:
        odd.append(_CONTROL)
    if not (asked.isascii() and answered.isascii()) and (_garbled(asked) or _garbled(answered)):
        odd.append(_GARBLED)
    if len(data) > _LARGER:
        odd.append(_HUGE)
    return odd


def _garbled(text: str) -> bool:
    """Whether the pattern is found; looked for only where one of its beginnings is, which is far quicker."""
    hint = "\ufffd" in text or "Ã" in text or "Â" in text or "â€" in text or "锟斤拷" in text
    return hint and _WRONG.search(text) is not None
