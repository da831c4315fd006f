"""The program and what it answers: as a process of its own, or in this process, which takes a tenth of the time."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from validator import entry
from validator.__main__ import command
from validator.cli import group

ROOT = Path(__file__).parents[2]
Answer = subprocess.CompletedProcess[bytes]


def process(*words: str, cwd: Path = ROOT, stdin: bytes = b"", **variables: str) -> Answer:
    """Exit code, standard output and error of a process of the program. `variables` are added to the environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    line = [sys.executable, "-P", "-m", "validator", *words]
    return subprocess.run(line, cwd=cwd, env=environment, input=stdin, capture_output=True, check=False)


def answer(*words: str, cwd: Path = ROOT, stdin: bytes = b"", **variables: str) -> Answer:
    """The same of the program's own start and end in this process. What is imported stays imported, and signals,
    closed streams and the end of the process are for `process` to show."""
    raw = {name: io.BytesIO(stdin if name == "stdin" else b"") for name in ("stdin", "stdout", "stderr")}
    streams: dict[str, Any] = {name: io.TextIOWrapper(each, "utf-8", errors="strict") for name, each in raw.items()}
    with chdir(cwd), patch.dict(os.environ, variables), patch.multiple(sys, **streams), patch("os._exit", sys.exit):
        code = _code(words)
    return subprocess.CompletedProcess(words, code, raw["stdout"].getvalue(), raw["stderr"].getvalue())


def run(*words: str, env: Mapping[str, str] | None = None) -> Result:
    """What click's own runner makes of the command line; `env` is added to the environment."""
    return CliRunner().invoke(group, words, env=env)


def run_to_exception(*words: str) -> Result:
    """The same with click's errors as exceptions of the result, where `run` has their text."""
    return CliRunner().invoke(group, words, standalone_mode=False)


def path_without_devices(folder: Path) -> str:
    """A PATH with llamafactory-cli, which must not be started, and no tool of a driver."""
    cli = folder / "bin" / "llamafactory-cli"
    cli.parent.mkdir(exist_ok=True)
    cli.write_text(f"#!{sys.executable}\nraise AssertionError\n")
    cli.chmod(0o755)
    return str(cli.parent)


def _code(words: Sequence[str]) -> int:
    with pytest.raises(SystemExit) as left:
        entry.run_program(lambda: command(words)())
    assert isinstance(left.value.code, int)
    return left.value.code
