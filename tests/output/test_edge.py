"""The edge of the program: what becomes of it where streams, folders, home or memory are not as usual."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click
import pytest

from validator import entry
from validator.entry import OutputError
from validator.errors import RecipeError

pytestmark = pytest.mark.sample(one_in=2, whole_for=["validator/entry.py", "validator/entry.py"])

ROOT = Path(__file__).parents[2]
TINY = "recipes/tiny-cpu-lora.yaml"
PROGRAM = (sys.executable, "-P", "-m", "validator")


def shell(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """What bash says of a line in which `$lmf` is the program."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "lmf": " ".join(PROGRAM), **more}
    return subprocess.run(["bash", "-c", line], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def end(command: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code that the command ends with."""
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit) as left:
        entry.run_program(command)
    assert isinstance(left.value.code, int)
    return left.value.code


def raising(err: BaseException) -> Callable[[], NoReturn]:
    def command() -> NoReturn:
        raise err

    return command


FULL = "lmf-recipes: the output cannot be written: no space left on device\n"
# fmt: off
ENDS = (
    (RecipeError("no"), 1, "lmf-recipes: no\n"),
    (RecipeError("no\n::error::x\x1b"), 1, "lmf-recipes: no\\n::error::x\\x1b\n"),
    (SystemExit(2), 2, ""),
    (KeyboardInterrupt(), 130, ""),
    (OutputError(BrokenPipeError(32, "Broken pipe")), 141, ""),
    (OutputError(OSError(28, "No space left on device")), 1, FULL),
    (MemoryError(), 1, "lmf-recipes: memory does not suffice; give smaller files, or fewer at once\n"),
)
LINES = (
    # a full disk
    (f"$lmf check {TINY} >/dev/full", 1, FULL),
    (f"$lmf explain {TINY} --format json >/dev/full", 1, FULL),
    ("$lmf list --help >/dev/full", 1, FULL),
    ("$lmf rule 2>/dev/full >/dev/full", 1, ""),
    # a reader that has gone
    ("{ $lmf rule; echo $? >&2; } | true", 0, "141\n"),
    ("{ $lmf check - <<<x; echo $? >&2; } | true", 0, "141\n"),
    ("{ { $lmf explain none 2>&1 >/dev/null; echo $? >&3; } | true; } 3>&2", 0, "141\n"),
    # closed streams are no files of ours
    (f"$lmf check {TINY} <&- >&- 2>&-", 0, ""),
    ("$lmf rule >&-", 0, ""),
    ("$lmf list --nonsense >&- 2>&-", 2, ""),
    # no folder, no home
    ('d=$(mktemp -d); cd "$d"; rmdir "$d"; $lmf list', 1,
     "lmf-recipes: the working folder cannot be read: no such file or directory; change into one that exists\n"),
)
# fmt: on


@pytest.mark.parametrize(("err", "code", "told"), ENDS)
def test_how_a_command_ends(
    err: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (end(raising(err), monkeypatch), capsys.readouterr().err) == (code, told)


@pytest.mark.process
@pytest.mark.parametrize(("line", "code", "told"), LINES)
def test_a_shell_line(line: str, code: int, told: str) -> None:
    done = shell(line)
    assert (done.returncode, done.stderr) == (code, told)


def test_our_own_bug_is_told_where_nothing_can_be_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert end(raising(ZeroDivisionError("a\n::error::b")), monkeypatch) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lmf-recipes: internal error (ZeroDivisionError: a\\n::error::b); at ")
    assert line.endswith("no details are kept: no such file or directory")


def test_click_and_direct_writes_go_the_same_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        click.echo("\x1b[31m::x", color=True)
        click.echo("::error::\x9b", err=True)
        sys.stdout.write("a\n##[error]\u202e\n")
        sys.stderr.writelines(["\r", "\n"])

    assert end(command, monkeypatch) == 0
    assert capsys.readouterr() == ("\\x1b[31m::x\na\n#\\x23[error]\\u202e\n", "\\x3a:error::\\x9b\n\\r\n")


@pytest.mark.process
def test_a_terminal_that_takes_ascii_alone_is_not_written_past() -> None:
    done = shell(r"""$lmf explain $'\e微.yaml'""", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "\\x1b\\u5fae.yaml" in done.stderr
    assert done.stderr.isascii()


@pytest.mark.process
def test_a_file_that_goes_through_stays_as_it_is() -> None:
    text = "# \u202e 微调 \u0085::error::x\nmodel_name_or_path: x\n"
    done = shell(r"printf '%s' \"$text\" | $lmf check --fix -".replace(r"\"", '"'), text=text, PYTHONIOENCODING="ascii")
    assert done.stdout == text


@pytest.mark.process
@pytest.mark.parametrize("option", ["-O", "-OO"])
def test_the_manual_is_there_without_docstrings(option: str) -> None:
    usual, without = (shell(f"{sys.executable} {each} -P -m validator rule FIT001") for each in ("", option))
    assert (usual.stdout, usual.returncode) == (without.stdout, without.returncode)
    assert "Why:" in usual.stdout
