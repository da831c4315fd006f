"""What a terminal or a CI log would obey is shown instead."""

from __future__ import annotations

import json
import unicodedata

import pytest

from validator import escaping

# fmt: off
LINES = (
    ("plain", "plain"),
    ("a\tb", "a\tb"),
    ("a\nb", "a\\nb"),
    ("a\r\nb", "a\\r\\nb"),
    ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
    ("\x9b2J \x7f \x85", "\\x9b2J \\x7f \\x85"),
    ("abc\u202etxt.exe", "abc\\u202etxt.exe"),
    ("\ufeffhead", "\\ufeffhead"),
    ("\u2028::error::x", "\\u2028::error::x"),
    ("微调：数据。", "微调：数据。"),
    ("👩\u200d🔬", "👩\u200d🔬"),
    # actions/runner: `::` behind anything that it trims, `##[` anywhere; Azure: `##vso[`
    ("::error::x", "\\x3a:error::x"),
    ("  ::error file=a::x", "  \\x3a:error file=a::x"),
    ("\u3000\u00ad\u200b::stop-commands::x", "\u3000\u00ad\u200b\\x3a:stop-commands::x"),
    ("a ##[error]x", "a #\\x23[error]x"),
    ("###[add-path]/x", "##\\x23[add-path]/x"),
    ("##vso[task.setvariable]x", "#\\x23vso[task.setvariable]x"),
    # what neither obeys
    ("x.yaml: c::d", "x.yaml: c::d"),
    ("'::error::x'", "'::error::x'"),
    ("## a heading [link]", "## a heading [link]"),
)
# fmt: on


@pytest.mark.parametrize(("words", "shown"), LINES)
def test_a_line(words: str, shown: str) -> None:
    assert escaping.escape_line(words) == shown


def test_a_text_keeps_its_ends_and_each_of_its_lines_is_looked_at() -> None:
    assert escaping.escape_text("a\n::error::b\n\tc\r\n") == "a\n\\x3a:error::b\n\tc\\r\n"
    assert escaping.escape_lines(["a\n::error::b", "c"]) == "a\\n::error::b\nc\n"


def test_every_control_character_is_shown_by_its_number() -> None:
    """Unicode's category Cc is C0, DEL and C1; the marks of UAX 9 are those whose class is not that of a letter."""
    marks = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    obeyed = [
        character
        for character in map(chr, range(0x3000))
        if unicodedata.category(character) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(character) in marks
    ]
    assert len(obeyed) == 65 + 2 + 9
    for character in set(obeyed) - set("\t"):
        assert escaping.escape_line(f"a{character}b").isascii()
        assert escaping.escape_line(f"a{character}b").isprintable()


def test_json_stays_the_same() -> None:
    value = {"a\x1b\u202e": "##[error]x \x7f \x9b \u2028 ## ###[ 微调 \udcff"}
    written = escaping.escape_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(written) == value
    assert escaping.escape_text(written) == written
