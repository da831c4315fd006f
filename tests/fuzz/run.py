"""One input given to the real program, within this process and its ceilings."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from fuzz.given import Input
from validator import entry
from validator.__main__ import command
from validator.machine import driver

SECONDS = 10  # of the processor, for one answer
_HUNG = 600  # seconds after which an answer is taken never to come, which waits for something: however busy the machine
MEMORY = 3 << 29  # bytes of addresses, for one answer, beside those that the process has; stacks of threads count
_WRITTEN = 64 << 20  # bytes of one file
# An exception that the program has not caught, which its own edge would have made exit code 3.
ESCAPED = 99
# What is asked of a driver's program, and the file of tests/fixtures/recorded/ that has the answer.
_ASKED = {"-L": "list.txt", "-q": "details.txt", "info": "info.txt", "static": "static.json", "metric": "metric.json",
          "--showpids": "pids.txt", "--showproductname": "vram.json"}  # fmt: skip
_FOLDERS = {
    "HOME": "",
    "XDG_DATA_HOME": "data",
    "XDG_CONFIG_HOME": "config",
    "XDG_CACHE_HOME": "cache",
    "HF_HOME": "hub",
}


class Answer(NamedTuple):
    """What came out, and what it took: `log` is the traceback of an internal error, `left` what lies where nothing was
    to be written, `reached` the connections and processes that were asked for, `seconds` of the processor."""

    code: int
    out: str
    err: str
    log: str
    left: list[str]
    reached: list[str]
    seconds: float


class _Left(BaseException):
    """The program has ended its process."""


def ready() -> None:
    """Import the program, once for all inputs."""
    gc.set_threshold(100_000)  # as the program itself
    for path in sorted(Path(entry.__file__).parent.glob("*/*.py")):
        if path.parent.name != "simulation" and path.stem != "__main__":
            importlib.import_module(f"validator.{path.parent.name}.{path.stem}")


def limit() -> None:
    """Ceilings for this process: beyond them it ends by a signal, or the program is refused memory."""
    most = MEMORY + resource.getpagesize() * int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_WRITTEN, _WRITTEN))


def answer(given: Input, folder: Path) -> Answer:
    """The program's answer to an input, whose files lie in a new folder within this one."""
    place = laid(given.files, folder / "in")
    (folder / "tmp").mkdir()
    os.chdir(place)
    os.environ.update({name: str(place / ".home" / part) for name, part in _FOLDERS.items()})
    out, err = (os.memfd_create(name) for name in ("out", "err"))
    reached: list[str] = []
    before = _spent()
    with _timed():
        code = _run(given, folder / "tmp", (out, err), reached)
    seconds = _spent() - before
    _forget()
    logs = "".join(path.read_text("utf-8", "replace") for path in (folder / "tmp").glob("lmf-recipes-*.log"))
    left = sorted(path.name for path in (folder / "tmp").iterdir() if path.suffix != ".log")
    return Answer(code, _read(out), _read(err), logs, left, reached, seconds)


def laid(files: Mapping[str, bytes], folder: Path) -> Path:
    """The folder, with the files in it."""
    folder.mkdir(parents=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@contextlib.contextmanager
def _timed() -> Any:
    """Ends this process after so many seconds of the processor, or where it hangs, with a signal that no code of
    Python's or of a library can put off."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, _HUNG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _read(handle: int) -> str:
    with open(handle, "rb") as stream:
        stream.seek(0)
        return stream.read().decode("utf-8", "backslashreplace")


def _run(given: Input, temporary: Path, handles: tuple[int, int], reached: list[str]) -> int:
    """The exit code. In place of the end of the process there is an exception; no connection is made and no program
    started, and drivers' programs print what the input has of them. The child that counts tokens is a fork, which ends
    as ever and is spoken to by a socket of this machine."""
    owner, end, connection = os.getpid(), os._exit, socket.socket

    def leave(code: int) -> NoReturn:
        if os.getpid() != owner:
            end(code)
        raise _Left(code)

    def local(family: int = -1, *words: Any, **more: Any) -> socket.socket:
        return connection(family, *words, **more) if family == socket.AF_UNIX else refuse(family, *words)

    def refuse(*words: object, **_more: object) -> NoReturn:
        reached.append(repr(words)[:60])
        raise OSError(1, "not while inputs are tried")

    def printed(name: str, *words: str) -> str | None:
        data = given.files.get(f"bin/{name}/{_ASKED.get(words[0] if words else '', 'query.csv')}")
        return None if data is None else data.decode("utf-8", "replace")

    streams = [open(handle, "w", encoding="utf-8", closefd=False) for handle in handles]  # noqa: SIM115
    stdin = io.TextIOWrapper(io.BytesIO(given.files.get("r.yaml", b"")), "utf-8")
    with (
        patch.multiple(sys, stdout=streams[0], stderr=streams[1], stdin=stdin, argv=["lmf-recipes", *given.words]),
        patch.object(tempfile, "tempdir", str(temporary)),
        patch.object(os, "_exit", leave),
        patch.object(socket, "socket", local),
        patch.object(subprocess, "Popen", refuse),
        patch.object(driver, "run_tool", printed),
    ):
        try:
            entry.run_program(lambda: command(given.words)())
        except _Left as end:
            return int(end.args[0])
        except BaseException:
            traceback.print_exc(file=streams[1])
            return ESCAPED
        finally:
            for stream in streams:
                stream.flush()


_REMEMBERED: list[Any] = []


def _forget() -> None:
    """Empty what the program remembers of files: each input is asked as if by a new process."""
    if not _REMEMBERED:
        rooms = (
            "validator.run",
            "validator.dataset",
            "validator.machine",
            "validator.simulation",
            "validator.advise",
            "validator.knowledge",
        )
        modules = [vars(module) for name, module in list(sys.modules.items()) if name.startswith(rooms)]
        _REMEMBERED.extend(each for held in modules for each in held.values() if hasattr(each, "cache_clear"))
    for each in _REMEMBERED:
        each.cache_clear()
