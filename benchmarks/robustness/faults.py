"""The program on a disk that fails, and killed, at each step of what it writes.

faults.c is built with the C compiler of this machine and preloaded into a process that has imported the program; each
run is a child of that process, which takes a tenth of a start of its own. `walk` tries a command with a fault at its
first step, its second, and so on to its last, and says what was broken.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, NamedTuple

# What a command leaves that was killed: the name says what it is.
LEFTOVER = re.compile(r"\..+\.part")
# Imported before the first run, as far as the packages are installed.
_MODULES = (
    *(f"validator.commands.{name}" for name in ("copy", "plan", "check", "check_files", "data", "calibrate", "submit")),
    "validator.check.autofix",
    "validator.submit.slurm",
    "validator.dataset.data_text",
    "validator.dataset.data_page",
    "validator.dataset.user_input",
    "validator.dataset.data_report",
)


class Fault(NamedTuple):
    """What happens at a step: `error` is a number of errno. `bytes`: a step is a byte of a file's content, of which no
    more than so many find room. `stays`: all later steps fail as well. `only`: steps are calls of one function."""

    error: int
    bytes: bool = False
    stays: bool = False
    only: str = ""


# The process ends by SIGKILL; the folder that it works in is removed with all that is in it.
KILLED, REMOVED = Fault(0), Fault(-1)


class Ended(NamedTuple):
    """Exit code, as a shell has it, what was printed on standard error, and which calls were struck."""

    code: int
    err: str
    struck: list[str]


class Case(NamedTuple):
    """A command that writes, in a folder of these files. `again`: what a second run may say where the first one was
    struck when all was written."""

    name: str
    words: tuple[str, ...]
    files: Mapping[str, str]
    again: str = ""


# Contents and modes of files by path.
Files = dict[str, tuple[bytes, int]]


class Program:
    """The program with the library preloaded, which runs when it is asked to."""

    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self._process = process
        self._told = place / "told"

    def run(self, words: Sequence[str], folder: Path, fault: Fault | None = None, at: int = 0) -> Ended:
        """Run it in this folder, and strike it at this step."""
        self._told.unlink(missing_ok=True)
        variables = home(folder)
        if fault:
            variables |= {"FAULT_BYTE" if fault.bytes else "FAULT_AT": str(at), "FAULT_AS": str(fault.error)}
            variables |= {"FAULT_STAYS": str(int(fault.stays)), "FAULT_TOLD": str(self._told)}
            variables |= {"FAULT_ONLY": fault.only} if fault.only else {}
        code, err = self._ask([list(words), str(folder), variables])
        return Ended(code, err, self._told.read_text().split() if self._told.exists() else [])

    def _ask(self, question: object) -> tuple[int, str]:
        asked, answered = self._process.stdin, self._process.stdout
        assert asked
        assert answered
        asked.write(json.dumps(question) + "\n")
        asked.flush()
        code, err = json.loads(answered.readline())
        return code, err


def compiler() -> str | None:
    """The C compiler, where there is one, and a loader that takes libraries before others."""
    return shutil.which("cc") if sys.platform == "linux" else None


@contextmanager
def program() -> Iterator[Program]:
    """The program, ready to be struck. Needs a `compiler`."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "faults.so")
        source = Path(__file__).with_suffix(".c")
        subprocess.run([str(compiler()), "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        env = {**os.environ, "LD_PRELOAD": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, __file__]
        with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Program(process, Path(folder))
            finally:
                process.kill()


def walk(there: Program, case: Case, fault: Fault, stride: int = 1) -> Iterator[tuple[str, list[str]]]:
    """Each step at which the command is struck: the call, and what was broken, which should be nothing."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "case")
        before = files(laid(folder, case.files))
        whole = there.run(case.words, folder)
        assert whole.code == 0, whole.err
        after = files(folder)
        for at in itertools.count(0 if fault.bytes else 1, stride):
            laid(folder, case.files)
            ended = there.run(case.words, folder, fault, at)
            if not ended.struck:
                return
            broken = [*_said(ended, fault)]
            if fault != REMOVED:
                broken += kept(ended.code, before, after, files(folder))
                broken += _second(there.run(case.words, folder), case, after, files(folder))
            yield ended.struck[0], [f"{case.name}, step {at} ({ended.struck[0]}, {fault}): {each}" for each in broken]


def home(folder: Path) -> dict[str, str]:
    """Variables that keep a user's own files in a folder."""
    return {name: str(folder / "home") for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}


def files(folder: Path) -> Files:
    """What lies in a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mode) for path in paths}


def laid(folder: Path, content: Mapping[str, str]) -> Path:
    """The folder with these files alone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _said(ended: Ended, fault: Fault) -> Iterator[str]:
    """One line and exit code 1, or nothing where the run did without what failed."""
    if fault.error == KILLED.error:
        if ended.code != 128 + signal.SIGKILL:
            yield f"exit code {ended.code} of a run that was killed"
    elif ended.code not in (0, 1) or "internal error" in ended.err or "Traceback" in ended.err:
        yield f"exit code {ended.code}: {ended.err}"
    elif ended.code == 1 and sum(line.startswith("lmf-recipes: ") for line in ended.err.splitlines()) != 1:
        yield f"said {ended.err!r}"


def kept(code: int, before: Files, after: Files, now: Files) -> Iterator[str]:
    """Each file is the old one or the new one, and nothing else is there but leftovers."""
    for path in before.keys() | after.keys() | now.keys():
        if now.get(path) not in (before.get(path), after.get(path)) and not LEFTOVER.fullmatch(Path(path).name):
            yield f"{path} is {now.get(path)}"
        if code == 0 and now.get(path) != after.get(path) and not LEFTOVER.fullmatch(Path(path).name):
            yield f"{path} is not written, and nothing says so"


def _second(ended: Ended, case: Case, after: Files, now: Files) -> Iterator[str]:
    """What was struck goes through where nothing fails."""
    if ended.code and not (case.again and case.again in ended.err):
        yield f"a second run ends with exit code {ended.code}: {ended.err}"
    if {path: file for path, file in now.items() if not LEFTOVER.fullmatch(Path(path).name)} != after:
        yield "a second run leaves another content"


def _serve() -> None:
    """Runs as children of this process, one after the other."""
    for name in _MODULES:
        import_module(name)
    for line in sys.stdin:
        words, folder, variables = json.loads(line)
        with tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                _run(words, folder, variables, err)
            status = os.waitpid(child, os.WUNTRACED)[1]
            if os.WIFSTOPPED(status):
                shutil.rmtree(folder)
                os.kill(child, signal.SIGCONT)
                status = os.waitpid(child, 0)[1]
            code = os.waitstatus_to_exitcode(status)
            err.seek(0)
            print(json.dumps([code if code >= 0 else 128 - code, err.read().decode()]), flush=True)


def _run(words: list[str], folder: str, variables: dict[str, str], err: IO[bytes]) -> None:
    from validator import __main__

    nothing = os.open(os.devnull, os.O_RDWR)
    for theirs, ours in ((nothing, 0), (nothing, 1), (err.fileno(), 2)):
        os.dup2(theirs, ours)
    os.chdir(folder)
    os.environ.update(variables)
    sys.argv = ["lmf-recipes", *words]
    __main__.main()


if __name__ == "__main__":
    _serve()
