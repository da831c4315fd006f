"""Answers questions with the program of one tree: `python worker.py TREE`, batches of questions in, answers out.

The program is imported once. Each batch is answered in a fork, so that nothing that one leaves behind reaches the
next. If a question ends or hangs its process, that is its answer.

A line of standard input is a batch, as JSON: a list of objects with `words`, `folder`, `environment`, `input` and
`own`. A line of standard output is the list of its answers: objects with `code`, `out`, `err`, `seconds` and `files`,
the texts that the program wrote into a folder that is the question's `own`.
"""

from __future__ import annotations

import builtins
import gc
import io
import json
import os
import re
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from trees import Finder, entry_point

_SECONDS = 30  # of the processor, for one answer
_SILENCE = 300  # seconds without an answer, after which a process that computes nothing is ended
_WRITTEN = 4 << 20  # bytes of one file; `doctor` writes more to time a disk
_ESCAPED = 99  # the exit code where an exception leaves the program
_MEMINFO = (
    "MemTotal: 263858000 kB\nMemFree: 250000000 kB\nMemAvailable: 255000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
)

Question = Mapping[str, Any]
Answer = dict[str, Any]


class _Left(BaseException):
    """The program has ended its process, with this exit code."""


class Program:
    """The console program of a tree."""

    def __init__(self, tree: Path) -> None:
        Finder(tree).install()
        entry = entry_point(tree)
        self.tree, self.name = tree, entry.program
        self.main: Callable[[], object] = getattr(import_module(entry.module), entry.function)

    def answer(self, question: Question) -> Answer:
        """What the program prints and how it ends, in this process."""
        folder = Path(question["folder"])
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(question["environment"])
        before = _texts(folder) if question["own"] else {}
        streams = (sys.stdin, sys.stdout, sys.stderr, sys.argv)
        handles = [os.memfd_create(name) for name in ("in", "out", "err")]
        os.write(handles[0], (question["input"] or "").encode())
        os.lseek(handles[0], 0, os.SEEK_SET)
        kept = [os.dup(number) for number in range(3)]
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(n, "rw"[n > 0], encoding="utf-8", closefd=False) for n in range(3)
        )
        sys.argv = [self.name, *question["words"]]
        code = _code(self.main)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        sys.stdin, sys.stdout, sys.stderr, sys.argv = streams
        for number, handle in enumerate(kept):
            os.dup2(handle, number)
            os.close(handle)
        out, err = (_read(handle) for handle in handles[1:])
        for handle in handles:
            os.close(handle)
        after = _texts(folder) if question["own"] else {}
        files = {name: text for name, text in after.items() if before.get(name) != text}
        files |= dict.fromkeys(before.keys() - after.keys(), "(removed)")
        return self.without_places({"code": code, "out": out, "err": err, "files": files}, folder)

    def without_places(self, answer: Answer, folder: Path) -> Answer:
        """The answer with names in place of the folders of this comparison."""
        home, temporary = os.environ["HOME"], os.environ["TMPDIR"]
        places = {str(folder): "<here>", str(self.tree): "<tree>", home: "<home>", temporary: "<tmp>"}

        def named(text: str) -> str:
            for place, name in places.items():
                text = text.replace(place, name)
            text = re.sub(r"\bjob_[0-9a-f]{8}\b", "job_…", text)  # of the content of the program of a job
            return re.sub(r"<tmp>/[\w.-]+", "<tmp>/…", text)

        files = {name: named(text) for name, text in answer["files"].items()}
        return {"code": answer["code"], "out": named(answer["out"]), "err": named(answer["err"]), "files": files}


def _code(main: Callable[[], object]) -> int:
    """The exit code of the program. `os._exit` raises an exception in this process; it still ends children."""
    owner, leave = os.getpid(), os._exit

    def left(status: int) -> NoReturn:
        if os.getpid() != owner:
            leave(status)
        raise _Left(status)

    os._exit = left
    try:
        main()
    except _Left as end:
        return int(end.args[0])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc(limit=-1)
        return _ESCAPED
    finally:
        if os.getpid() == owner:
            os._exit = leave
    return 0


def _read(handle: int) -> str:
    with open(handle, "rb", closefd=False) as stream:
        stream.seek(0)
        return stream.read().decode("utf-8", "backslashreplace")


def _texts(folder: Path) -> dict[str, str]:
    """The files in it, by name; what others link to is not looked at."""
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not Path(place, name).is_symlink()]
        for path in (Path(place, name) for name in names):
            if path.is_file() and not path.is_symlink():
                found[str(path.relative_to(folder))] = path.read_bytes().decode("utf-8", "backslashreplace")
    return found


def same_machine() -> None:
    """Let the program see one and the same machine, whatever else runs here: its name, memory, disks and processors."""
    disk = os.statvfs_result((4096, 4096, 1 << 28, 1 << 27, 1 << 27, 1 << 26, 1 << 25, 1 << 25, 4096, 255))
    os.statvfs = lambda _path: disk  # type: ignore[assignment]
    os.cpu_count = lambda: 4
    os.sched_getaffinity = lambda _pid: set(range(4))
    os.getloadavg = lambda: (0.0, 0.0, 0.0)
    socket.gethostname = lambda: "machine"
    # A clock that goes on by a millisecond each time it is read: how long a disk takes, no two runs say alike.
    ticks = count()
    time.monotonic = lambda: next(ticks) / 1000
    real = io.open

    def opened(file: Any, *words: Any, **more: Any) -> Any:
        if isinstance(file, (str, Path)) and str(file) == "/proc/meminfo":
            binary = "b" in (words[0] if words else more.get("mode", "r"))
            return io.BytesIO(_MEMINFO.encode()) if binary else io.StringIO(_MEMINFO)
        return real(file, *words, **more)

    io.open = builtins.open = opened


def _limits() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_WRITTEN, _WRITTEN))


def _more_seconds() -> None:
    """Allow so many more seconds of the processor, beyond those that this process has taken."""
    taken = resource.getrusage(resource.RUSAGE_SELF)
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(taken.ru_utime + taken.ru_stime) + _SECONDS, most))


def answered(program: Program, batch: Sequence[Question]) -> list[Answer]:
    """The answers to a batch, each `code` a word where the process did not outlive the question."""
    answers: list[Answer] = []
    while len(answers) < len(batch):
        found, end = _forked(program, batch[len(answers) :])
        answers += found
        if len(answers) < len(batch):
            answers.append({"code": end, "out": "", "err": "", "files": {}})
    return answers


def _forked(program: Program, batch: Sequence[Question]) -> tuple[list[Answer], str]:
    """The answers that a fork gives, and how it ended."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        _limits()
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            for question in batch:
                _more_seconds()
                before = time.process_time()
                answer = program.answer(question)
                answer["seconds"] = round(time.process_time() - before, 4)
                print(json.dumps(answer), file=pipe, flush=True)
        os._exit(0)
    os.close(writing)
    text, hung = b"", False
    while select.select([reading], [], [], _SILENCE)[0]:
        piece = os.read(reading, 1 << 20)
        if not piece:
            break
        text += piece
    else:
        hung = True
        os.kill(process, signal.SIGKILL)
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    end = (
        "hung" if hung or code == -signal.SIGXCPU else f"ended by {signal.Signals(-code).name}" if code < 0 else "ended"
    )
    return [json.loads(line) for line in text.split(b"\n")[:-1]], end


def main() -> None:
    """Answer every batch of standard input. The first one is answered in this process, to warm up, and not told."""
    sys.path.pop(0)  # this folder, whose modules are not the program's
    # Streams of their own, as the program has the usual ones.
    asked, told = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    same_machine()
    program = Program(Path(sys.argv[1]))
    for question in json.loads(asked.readline()):
        program.answer(question)
    gc.collect()
    gc.freeze()
    for line in asked:
        print(json.dumps(answered(program, json.loads(line))), file=told, flush=True)


if __name__ == "__main__":
    main()
