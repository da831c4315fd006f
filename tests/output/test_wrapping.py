"""Lines on a terminal of some columns, and in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from validator.commands.list import COLUMNS
from validator.wrapping import count_columns, terminal_width, wrap_line

ROOT = Path(__file__).parents[2]
WORDS = (
    ("check", "--machine", "1xrtx-4090", "recipes/qwen3-8b-a100x4-lora.yaml"),
    ("explain", "recipes/qwen3-8b-a100-full.yaml"),
    ("explain", "recipes/qwen3-8b-a100-full.yaml", "--machine", "1xrtx-4090", "--full"),
    ("doctor",),
    ("list",),
    ("list", "--machine", "2xrtx-4090"),
    ("rule", "out of memory"),
    ("rule", "FIT001"),
    ("explain", "qwen3-8b-4090x3-lora"),  # there is none
)
# What is copied, and so never broken: commands, and names without a blank.
WHOLE = re.compile(r"llamafactory-cli|^\s*(run|next|  or): |^\s*\S+$")
# As Python knows it: readline, which pytest imports, gives COLUMNS to programs that inherit it otherwise.
ENVIRONMENT = {**os.environ}


def on_a_terminal(columns: int, words: tuple[str, ...]) -> list[str]:
    """What the command writes on a terminal of so many columns."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    line = [sys.executable, "-m", "validator", *words]
    ends = (terminal, terminal, terminal)
    with subprocess.Popen(line, -1, None, *ends, cwd=ROOT, env=ENVIRONMENT) as program:
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(reader, 65536):
                shown += part
        os.close(reader)
    assert program.returncode in (0, 1)
    return shown.decode().replace("\r\n", "\n").splitlines()


def in_a_pipe(words: tuple[str, ...]) -> list[str]:
    line = [sys.executable, "-m", "validator", *words]
    done = subprocess.run(line, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.sample(one_in=3, whole_for=["validator/wrapping.py", "validator/output/*"])
@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal(words: tuple[str, ...], columns: int) -> None:
    lines = on_a_terminal(columns, words)
    assert lines
    assert not [line for line in lines if count_columns(line) > columns and not WHOLE.search(line)]
    if words[0] != "list" and "--full" not in words:  # which have columns and bars for the room that there is
        together, piped = (re.sub(r"\s+", " ", " ".join(each)) for each in (lines, in_a_pipe(words)))
        assert re.sub(r"[\d,.]+", "#", together) == re.sub(r"[\d,.]+", "#", piped)


def test_a_pipe_has_all_columns_and_rows() -> None:
    lines = in_a_pipe(("list",))
    assert tuple(lines[0].split()) == COLUMNS
    assert len(lines) == 1 + len([*(ROOT / "recipes").glob("*.yaml")])


def test_a_terminal_is_told_what_it_has_no_room_for() -> None:
    shown = " ".join(" ".join(on_a_terminal(80, ("list", "--machine", "2xrtx-4090"))).split())
    assert "not shown for want of width: model, method, host_gib, rows; a wider terminal, a pipe" in shown
    machines = on_a_terminal(80, ("list",))
    assert len(machines) < 80
    assert machines[0].split()[:2] == ["machine", "recipes"]


def test_lines_break_between_words() -> None:
    line = "  found: set `quantization_bit: 4` (20.8 GiB per device) in the recipe"
    assert wrap_line(line, None) == [line]
    assert wrap_line(line, 30) == [
        "  found: set", "    `quantization_bit: 4`", "    (20.8 GiB per device) in", "    the recipe"
    ]  # fmt: skip
    assert wrap_line("x" * 50, 30) == ["x" * 50]
    assert wrap_line("文" * 8 + " " + "字" * 8, 30) == ["文" * 8, "  " + "字" * 8]


@pytest.mark.parametrize(("columns", "width"), [("72", 72), ("1", 20), ("wide", None), ("-3", None), ("", None)])
def test_the_variable_counts_in_a_pipe(monkeypatch: pytest.MonkeyPatch, columns: str, width: int | None) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width
