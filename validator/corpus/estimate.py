"""Tokens of a text by its characters, where no tokenizer is at hand."""

from __future__ import annotations

from collections.abc import Iterable

# Non-negative least squares of relative errors against Qwen's own vocabulary (qwen.tiktoken of the dashscope 2.0.2
# package, 151,643 entries) on 2,000 pieces each of English prose (licences, package descriptions), code (Python, C) and
# Chinese (book reviews, news): totals within 3 %; half of the pieces within 6 %, nine of ten within 15 %.
_LETTER, _DIGIT, _SPACE, _BREAK, _MARK, _HIGH = 0.239, 1.495, 0.053, 0.464, 0.376, 0.213
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ASCII = bytes(range(128))


def estimate(text: str) -> int:
    """Tokens a Qwen tokenizer would make of a text, about. A Chinese character is three bytes of UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    others = data.translate(None, _LETTERS)
    rest = others.translate(None, b"0123456789")
    spaces, breaks = rest.count(b" "), rest.count(b"\n")
    high = 0 if text.isascii() else len(rest.translate(None, _ASCII))
    tokens = _LETTER * (len(data) - len(others)) + _DIGIT * (len(others) - len(rest))
    tokens += _SPACE * spaces + _BREAK * breaks + _HIGH * high + _MARK * (len(rest) - spaces - breaks - high)
    return round(tokens)


class Estimate:
    """Counts by characters."""

    name, exact, begins = "estimated from the script of the text", False, False

    def count(self, texts: Iterable[str]) -> list[int]:
        """Tokens of each text, about."""
        return [estimate(text) for text in texts]
