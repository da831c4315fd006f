"""What is printed of strangers' strings, and how the program ends where its surroundings are odd.

Every command looks at folders of `hostile`; then commands run without streams, home or room to write, and with numbers
that are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from robustness import hostile_words
from robustness.report import Answer, Row, answer

_FOLDERS = 4
_RECIPE = "qwen3-8b-a100-lora"
_COMMANDS = (
    *(("check", _RECIPE), ("check", "--format", "sarif", _RECIPE), ("explain", _RECIPE), ("rule",), ("--help",)),
    *(("explain", "--format", "json", _RECIPE), ("list",), ("doctor",), ("diff", _RECIPE, "qwen3-8b-4090x1-qlora")),
    *(("plan", "--model", "qwen7b", "--machine", "1xa100-80g"), ("data", "tiny-cpu-lora"), ("calibrate", "--list")),
    *(("train", "--dry-run", "tiny-cpu-lora"), ("submit", "--to", "slurm", "--dry-run", "--hours", "3", _RECIPE)),
)


class Surroundings(NamedTuple):
    """What is odd: variables, and what stands behind the command in bash. `codes` are the exit codes that are right."""

    what: str
    promise: str
    codes: tuple[int, ...] = (0, 1)
    behind: str = ""
    variables: Mapping[str, str] = {}


_ODD = (
    Surroundings("standard input closed", "as ever", behind="<&-"),
    Surroundings("standard output closed", "as ever", behind=">&-"),
    Surroundings("all streams closed", "as ever", behind="<&- >&- 2>&-"),
    Surroundings("a full disk as standard output", "exit code 1, one line", (1,), ">/dev/full"),
    Surroundings("a full disk as standard error", "no traceback", behind="2>/dev/full"),
    Surroundings("a reader that has gone", "exit code 141, or 0", (0, 1, 141), "| true; exit ${PIPESTATUS[0]}"),
    Surroundings("no home folder", "as ever", variables={"HOME": "~nobody", "XDG_CACHE_HOME": "relative"}),
    Surroundings("no folder for temporary files", "as ever", variables={"TMPDIR": "/nonexistent"}),
    Surroundings("output in ASCII", "all else as escapes", variables={"PYTHONIOENCODING": "ascii"}),
    Surroundings("python -OO", "as ever", variables={"PYTHONOPTIMIZE": "2"}),
    Surroundings("a terminal of one column", "as ever", variables={"COLUMNS": "1"}),
)
_NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e308", "1e400", "9" * 401, "9" * 5000, "", "x")
_NUMBERED = (
    ("explain", "--format", "json", _RECIPE, "--host-ram"),
    ("plan", "--format", "json", "--model", "qwen7b", "--machine", "1xa100-80g", "--samples"),
    ("plan", "--format", "json", "--model", "qwen7b", "--machine", "1xa100-80g", "--cutoff-len"),
    ("submit", "--to", "slurm", "--dry-run", _RECIPE, "--hours"),
    ("explain", "--format", "json", _RECIPE, "--price"),
    ("explain", "--format", "json", _RECIPE, "--machine"),
    ("explain", "--format", "json", _RECIPE, "--network"),
)


def rows() -> Iterator[Row]:
    """One row for each command that shows strings, each odd surrounding, and numbers."""
    yield from _shown()
    yield from map(_around, _ODD)
    yield _numbers()


def faults(said: Answer, words: Sequence[str], codes: Sequence[int] = (0, 1, 2)) -> list[str]:
    """What is wrong with an answer."""
    wrong = [f"exit code {said.code}"] * (said.code not in codes)
    wrong += ["traceback"] * (b"Traceback" in said.err)
    wrong += filter(None, map(hostile_words.obeyed, (said.out, said.err)))
    if said.out and ("json" in words or "sarif" in words):
        wrong += _no_json(said.out)
    return wrong


def _no_json(out: bytes) -> list[str]:
    def none(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    try:
        json.loads(out, parse_constant=none)
    except ValueError as err:
        return [str(err)]
    return []


def _shown() -> Iterator[Row]:
    results: dict[str, list[tuple[Answer, bool]]] = {}
    for seed in range(_FOLDERS):
        with tempfile.TemporaryDirectory() as name:
            for what, words in hostile_words.commands(hostile_words.lay(Path(name), seed)):
                said = answer(words, Path(name))
                results.setdefault(what, []).append((said, _failed(words, faults(said, words))))
    for what, tried in results.items():
        yield _row(f"hostile strings: {what}", "shown as escapes, in JSON, too; none is obeyed", tried)


def _around(odd: Surroundings) -> Row:
    env = {**os.environ, **odd.variables}
    tried = []
    for words in _COMMANDS:
        with tempfile.TemporaryDirectory() as name:
            said = _in_bash(words, odd.behind, Path(name), env) if odd.behind else answer(words, Path(name), env)
        wrong = faults(said, words, odd.codes)
        tried.append((said, _failed((odd.what, *words), wrong)))
    return _row(odd.what, odd.promise, tried)


def _in_bash(words: Sequence[str], behind: str, cwd: Path, env: Mapping[str, str]) -> Answer:
    program = Path(sys.executable).with_name("lmf-recipes")
    line = f'"$0" "$@" {behind}'
    done = subprocess.run(["bash", "-c", line, program, *words], cwd=cwd, env=env, capture_output=True, check=False)
    return Answer(done.returncode, done.stdout, done.stderr, 0.0, 0.0)


def _numbers() -> Row:
    tried = []
    for words in (((*most, number)) for most in _NUMBERED for number in _NUMBERS):
        with tempfile.TemporaryDirectory() as name:
            said = answer(words, Path(name))
        tried.append((said, _failed(words, faults(said, words))))
    return _row("options: nan, inf, 401 and 5,000 digits", "exit code 2 and one line, or JSON without NaN", tried)


def _failed(words: Sequence[str], wrong: Sequence[str]) -> bool:
    if wrong:
        sys.stderr.write(f"{words!a}: {wrong!a}\n")
    return bool(wrong)


def _row(what: str, promise: str, tried: Sequence[tuple[Answer, bool]]) -> Row:
    seconds = max(said.seconds for said, _ in tried) or None
    return Row(what, promise, len(tried), sum(failed for _, failed in tried), seconds)
