"""Issues of the text of one row: empty answers, control characters, text that was read in a wrong encoding."""

from __future__ import annotations

import re

TEXT_ISSUES = ("empty answers", "very short answers", "control characters", "garbled text", "huge rows")
_EMPTY_ANSWER, _SHORT_ANSWER, _CONTROL_CHARACTERS, _GARBLED_TEXT, _HUGE_ROW = (1 << at for at in range(5))
# Between the turns of a row: no text should hold it.
TURN_SEPARATOR = "\x1e"
_SHORT_ANSWER_CHARACTERS = 5  # characters of a very short answer are fewer
_HUGE_ROW_BYTES = 1_000_000  # bytes of a huge row are more
_BLANK_CHARACTERS = f"{TURN_SEPARATOR} \t\r\n"
# All bytes but control characters; tab, line feed and carriage return are no trouble.
_PRINTABLE_BYTES = bytes(set(range(256)) - set(range(32)) - {127}) + b"\t\n\r"
# The replacement character, and UTF-8 read as Latin-1, Windows-1252 or GBK.
_WRONG_ENCODING = re.compile("\ufffd|锟斤拷|[ÃÂ][\u0080-\u00bf]|â€")


def text_issues(asked: str, answered: str, data: bytes, turns: int, answers: int) -> int:
    """Return the issues of a row as bits, in the order of TEXT_ISSUES. `data`: question and answer in UTF-8; separators
    stand between all turns."""
    issues = 0
    if len(answered) < 2 * _SHORT_ANSWER_CHARACTERS and answers:
        bare = answered.strip(_BLANK_CHARACTERS)
        if len(bare) < _SHORT_ANSWER_CHARACTERS:
            issues |= _SHORT_ANSWER if bare else _EMPTY_ANSWER
    if len(data.translate(None, _PRINTABLE_BYTES)) >= turns:
        issues |= _CONTROL_CHARACTERS
    if not (asked.isascii() and answered.isascii()) and (_is_garbled(asked) or _is_garbled(answered)):
        issues |= _GARBLED_TEXT
    if len(data) > _HUGE_ROW_BYTES:
        issues |= _HUGE_ROW
    return issues


def _is_garbled(text: str) -> bool:
    """Whether the pattern is found; looked for only where one of its beginnings is, which is far quicker."""
    hint = "\ufffd" in text or "Ã" in text or "Â" in text or "â€" in text or "锟斤拷" in text
    return hint and _WRONG_ENCODING.search(text) is not None
