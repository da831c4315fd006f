"""Words of printed commands: what bash makes of them is what was meant, and they are safe to print."""

from __future__ import annotations

import os
import subprocess

import pytest

from validator import escaping
from validator.escaping import shell_join, shell_quote

# fmt: off
SHOWN = (
    ("recipes/x.yaml", "recipes/x.yaml"),
    ("a b", "'a b'"),
    ("it's", """'it'"'"'s'"""),
    ("a\nb", "$'a\\x0ab'"),
    ("\x1b]0;title\a", "$'\\x1b\\x5d0\\x3btitle\\x07'"),
    ("::error::x", "$'\\x3a\\x3aerror\\x3a\\x3ax'"),
)
# fmt: on


@pytest.mark.parametrize(("word", "shown"), SHOWN)
def test_a_word(word: str, shown: str) -> None:
    assert shell_quote(word) == shown


def test_bash_reads_what_was_meant() -> None:
    odd = ["", "'", "\\", "\\n", "$x`y`$(z)", "*?[a]", "\n", "\r\n::error::x", "\t\x01\x1b\x7f\x9b\u202e", "##[error]x",
           "\udcff.yaml", "微 调'\n", "👩‍🔬\x1b", "~", "-x", "a\x1bf", "\x0bcafe", "!x"]  # fmt: skip
    words = [*odd, *map(chr, range(1, 0x180)), *(f"'{chr(code)}0" for code in range(1, 0x80))]
    line = shell_join(words)
    assert escaping.escape_line(line) == line
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    assert done.stdout.decode(errors="surrogateescape").split("\0")[:-1] == words
    assert os.fsencode("\udcff.yaml") in done.stdout
