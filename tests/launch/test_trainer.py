"""Signals, and what becomes of all processes of a trainer, with stand-ins for it that a test speaks to.

Each of them holds the pipe that the test reads: its end says that none of them is left."""

from __future__ import annotations

import os
import pty
import queue
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from validator import processes
from validator.launch import guard, local_launch
from validator.launch.local_launch import lock_output_dir
from validator.processes import PR_SET_CHILD_SUBREAPER, prctl
from validator.run.launch_command import ProcessSpec

pytestmark = [pytest.mark.process, pytest.mark.sample(one_in=3, whole_for=["validator/launch/*"])]

ROOT = Path(__file__).parents[2]
LIMIT = 600  # seconds in which a process says something; only one that hangs does not
INT, TERM, HUP, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
PYTHON = [sys.executable, "-I", "-S", "-c"]  # without site-packages, which takes a third of the time
# What stand-ins have in common. A signal that is to be heeded is blocked and then waited for, so that none is missed.
SAYS = """
import os, signal, sys
def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())
def heed(*numbers):
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
def got(*numbers):
    number = signal.sigwait(numbers)
    say("got", int(number))
    return number
def rank(code):
    pid = os.fork()
    if not pid:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        exec(code, {})
        os._exit(0)
    return pid
"""
HEEDS = f"{SAYS}\nheed(1, 2, 15); say('ready'); got(1, 2, 15)"
STUBBORN = f"{SAYS}\nheed(1, 2, 15); say('ready')\nwhile True: got(1, 2, 15)"
# Any signal ends it.
PLAIN = f"{SAYS}\nsignal.signal(2, signal.SIG_DFL); say('ready'); signal.pause()"
# In the middle of a save, which ends when a line is read.
SAVES = f"""{SAYS}
heed(1, 2, 15)
os.makedirs("out/checkpoint-5")
weights, state = "out/checkpoint-5/adapter_model.bin", "out/checkpoint-5/trainer_state.json"
open(weights, "w").write("…")
say("ready")
if not sys.stdin.readline(): got(15)
open(state, "w").write('{{"global_step": 5}}')
for path in (weights, state, "out/checkpoint-5"): os.utime(path, (0, 0))  # nothing was written for a while
say("saved")
got(1, 2, 15)
"""
# A trainer at each moment at which the signals are tried.
SIGNALS = (INT, TERM, HUP)
MOMENTS = {"while it starts": PLAIN, "before a save": HEEDS, "in a save": SAVES, "after a save": SAVES}
# llamafactory-cli, which waits for torchrun, which starts each rank in a session of its own.
RANKS = f"""{SAYS}
agent = os.fork()
if agent:
    try:
        os.waitpid(agent, 0)
    except KeyboardInterrupt:
        os.kill(agent, 9)  # as subprocess.run does
        raise
else:
    heed(1, 2, 15)
    ranks = [rank(sys.argv[1]) for _ in range(2)]
    number = signal.sigwait((1, 2, 15))
    for pid in ranks: os.killpg(pid, number)
    for pid in ranks: os.waitpid(pid, 0)
    os._exit(1)
"""


class Started:
    """A trainer behind `lmf-recipes`, and what its processes say."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.pid, self._stdin, self._stdout = pid, stdin, stdout
        self._unread = b""

    def heard(self, word: str, times: int = 1) -> str:
        """The line in which the word stands for the last of so many times."""
        heard: list[str] = []
        while sum(word in line for line in heard) < times:
            while b"\n" not in self._unread:
                assert self._read(), heard
            line, _, self._unread = self._unread.partition(b"\n")
            heard.append(line.decode())
        return heard[-1]

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def type(self, text: str) -> None:
        """Write a line to what the processes read."""
        os.write(self._stdin, f"{text}\n".encode())

    def end(self) -> tuple[int, str]:
        """The exit code, and what is said until no process is left."""
        while self._read():
            pass
        code, self.pid = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), 0
        return code if code >= 0 else 128 - code, self._unread.decode()

    def _read(self) -> bytes:
        """What is said next; nothing where no process is left that could say something."""
        assert select.select([self._stdout], [], [], LIMIT)[0], (
            f"a process hangs; the last that was said: {self._unread!r}"
        )
        more = os.read(self._stdout, 65536)
        self._unread += more
        return more


def program(folder: Path, words: tuple[str, ...], grace: float, hangup: signal.Handlers = signal.SIG_DFL) -> NoReturn:
    """What `lmf-recipes` does, in a fork of the tests. `hangup`: how it has inherited SIGHUP."""
    try:
        signal.signal(HUP, hangup)
        signal.signal(INT, signal.default_int_handler)
        os.chdir(folder)
        with lock_output_dir(Path("out"), print) as lock:
            spec = ProcessSpec([*PYTHON, *words], dict(os.environ))
            os._exit(local_launch.run_supervised(spec, grace, Path("out"), lock))
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(99)


@contextmanager
def started(
    folder: Path, *words: str, grace: float = 1000.0, hangup: signal.Handlers = signal.SIG_DFL
) -> Iterator[Started]:
    """A trainer that stands in for the real one, with its words."""
    (stdin, types), (reads, stdout) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        for theirs, number in ((stdin, 0), (stdout, 1), (stdout, 2)):
            os.dup2(theirs, number)
        for each in (stdin, types, reads, stdout):
            os.close(each)
        program(folder, words, grace, hangup)
    os.close(stdin)
    os.close(stdout)
    run = Started(pid, types, reads)
    try:
        yield run
    finally:
        if run.pid:
            for each in (*processes.descendant_pids(pid), pid):
                processes.send_signal(each, KILL)
            os.waitpid(pid, 0)
        os.close(types)
        os.close(reads)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", SIGNALS)
def test_the_trainer_gets_each_signal_once_at_each_moment(number: int, moment: str, tmp_path: Path) -> None:
    with started(tmp_path, MOMENTS[moment]) as run:
        run.heard("ready")
        if moment == "after a save":
            run.type("save")
            run.heard("saved")
        run.send(number)
        if moment == "in a save":
            assert "checkpoint-5 is being saved: the run ends after that, in 1000 s" in run.heard("is being saved")
            run.type("save")
        code, said = run.end()
    assert (code, said.count(f"got {number}")) == (128 + number, moment != "while it starts")
    if moment == "in a save":
        assert said.index("saved") < said.index("stopping the trainer") < said.index(f"got {number}")


@pytest.mark.parametrize("number", SIGNALS)
def test_ranks_in_sessions_of_their_own_get_it_once(number: int, tmp_path: Path) -> None:
    with started(tmp_path, RANKS, HEEDS) as run:
        run.heard("ready", 2)
        run.send(number)
        code, said = run.end()
    assert (code, said.count(f"got {number}")) == (128 + number, 2)


@pytest.mark.parametrize("stand_in", [(STUBBORN,), (RANKS, STUBBORN)])
def test_what_does_not_heed_it_is_killed_after_the_grace(stand_in: tuple[str, ...], tmp_path: Path) -> None:
    with started(tmp_path, *stand_in, grace=0.1) as run:
        run.heard("ready", len(stand_in))
        run.send(TERM)
        code, said = run.end()
    assert code == 143
    assert "lmf-recipes: not ended within 0 s (`--grace`): killed" in said


@pytest.mark.parametrize("first", [INT, TERM])
def test_another_ctrl_c_kills_at_once(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_launch, "_REPEAT_SECONDS", 0.0)
    with started(tmp_path, RANKS, STUBBORN) as run:
        run.heard("ready", 2)
        run.send(first)
        run.heard(f"got {first}", 2)
        run.send(INT)
        code, said = run.end()
    assert code == 128 + first
    assert "lmf-recipes: killed" in said


def test_another_sigterm_says_nothing_new(tmp_path: Path) -> None:
    """`timeout` sends it to the process and to its group, systemd SIGHUP after it."""
    with started(tmp_path, STUBBORN) as run:
        run.heard("ready")
        run.send(TERM)
        run.heard("got 15")
        for number in (TERM, HUP, INT):
            run.send(number)
        code, said = run.end()
    assert (code, said) == (143, "lmf-recipes: killed\n")


@pytest.mark.parametrize("stand_in", [(HEEDS,), (RANKS, HEEDS)])
def test_the_trainer_ends_with_a_program_that_is_killed(stand_in: tuple[str, ...], tmp_path: Path) -> None:
    with started(tmp_path, *stand_in) as run:
        run.heard("ready", len(stand_in))
        run.send(KILL)
        code, said = run.end()
    assert (code, said.count("got 15")) == (137, len(stand_in))


def test_what_a_trainer_leaves_behind_ends(tmp_path: Path) -> None:
    leaves = f"{SAYS}\nrank(sys.argv[1])\nsys.exit(7)"
    with started(tmp_path, leaves, PLAIN) as run:
        assert run.end()[0] == 7


def test_nohup_is_respected(tmp_path: Path) -> None:
    with started(tmp_path, PLAIN, hangup=signal.SIG_IGN) as run:
        run.heard("ready")
        run.send(HUP)
        run.send(TERM)
        assert run.end()[0] == 143


def test_a_checkpoint_has_two_seconds_for_what_is_written_after_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    saves, folder, seen = guard.SaveWatcher(tmp_path), tmp_path / "checkpoint-5", []
    folder.mkdir()
    written = {100.0: "adapter_model.bin", 200.0: "trainer_state.json", 201.9: "rng_state.pth"}
    for now in (*written, 202.1):
        if now in written:
            (folder / written[now]).write_text('{"global_step": 5}')
            for path in (folder / written[now], folder):
                os.utime(path, (now, now))
        seen.append(saves.in_progress())
    assert seen == ["checkpoint-5", "checkpoint-5", "checkpoint-5", None]


def test_a_save_that_takes_longer_than_the_grace(tmp_path: Path) -> None:
    with started(tmp_path, SAVES, grace=0.1) as run:
        run.heard("ready")
        run.send(TERM)
        code, said = run.end()
    assert code == 143
    assert "got" not in said


@pytest.fixture
def _foster() -> Iterator[None]:
    """Processes whose parent has ended become children of the tests."""
    processes.become_subreaper()
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0)


def locked(folder: Path, report: Callable[[str], None]) -> bool:
    with lock_output_dir(folder, report) as lock:
        return lock is not None


@pytest.mark.usefixtures("_foster")
def test_no_other_run_is_let_into_a_folder_that_is_still_written_to(tmp_path: Path) -> None:
    """If `lmf-recipes` is killed, the guard keeps the lock, and the trainer may finish a save, for which the next run
    waits."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with started(tmp_path, SAVES) as run:
        run.heard("ready")
        (guard,) = processes.child_pids(run.pid)
        run.send(KILL)
        run.heard("is being saved")
        waiting = ThreadPoolExecutor().submit(locked, tmp_path / "out", told.put)
        assert told.get().startswith(f"another run is just ending in {tmp_path / 'out'}: process {run.pid} on ")
        assert not waiting.done()
        run.type("save")
        run.end()
        os.waitpid(guard, 0)
    assert waiting.result()


@contextmanager
def at_terminal(folder: Path, stand_in: str) -> Iterator[tuple[int, int]]:
    """The program in the foreground of a terminal of its own: its process, and the other end of the terminal."""
    pid, terminal = pty.fork()
    if not pid:
        program(folder, (stand_in,), 1000.0)
    try:
        yield pid, terminal
    finally:
        for each in (*processes.descendant_pids(pid), pid):
            processes.send_signal(each, KILL)
        os.close(terminal)


def shown(terminal: int, word: bytes) -> None:
    seen = b""
    while word not in seen:
        assert select.select([terminal], [], [], LIMIT)[0], seen
        seen += os.read(terminal, 1024)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_ctrl_c_at_a_terminal_is_heard_once_and_questions_can_be_answered(tmp_path: Path) -> None:
    asks = f"{SAYS}\nheed(2)\nsay('name?')\nsay('hello', input())\ngot(2)"
    with at_terminal(tmp_path, asks) as (pid, terminal):
        shown(terminal, b"name?")
        os.write(terminal, b"you\n")
        shown(terminal, b"hello you")
        os.write(terminal, b"\x03")
        shown(terminal, b"got 2")
        assert ended(pid) == 130


def test_a_terminal_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can be told any more; the exit code is that of the signal all the same."""
    cli = tmp_path / "llamafactory-cli"
    cli.write_text(f"#!/bin/sh\nexec {' '.join(PYTHON[:-1])} {tmp_path}/trains.py\n")
    cli.chmod(0o755)
    (tmp_path / "trains.py").write_text(f"{SAYS}\nheed(1); say('trains'); signal.sigwait([1])")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(ROOT)
        words = ["lmf-recipes", "train", "recipes/tiny-cpu-lora.yaml", f"output_dir={tmp_path}/out"]
        os.execv(Path(sys.executable).with_name("lmf-recipes"), words)
    shown(terminal, b"trains")
    os.close(terminal)
    assert ended(pid) == 129


@pytest.mark.parametrize(("command", "stream"), [("train", 1), ("train", 2), ("calibrate", 2)])
def test_a_reader_that_has_gone(command: str, stream: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = tmp_path / "llamafactory-cli"
    cli.write_text(f"#!/bin/sh\nexec {' '.join(PYTHON[:-1])} {tmp_path}/trains.py\n")
    cli.chmod(0o755)
    prints = f"os.write({stream}, b'trains')\nsys.stdin.readline()\nos.write({stream}, b'on')"
    (tmp_path / "trains.py").write_text(f"{SAYS}\nrank('signal.pause()')\n{prints}")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    words = [command, "recipes/tiny-cpu-lora.yaml", *([f"output_dir={tmp_path}/out"] if command == "train" else [])]
    (reads, writes), (stdin, types), null = os.pipe(), os.pipe(), os.open(os.devnull, os.O_WRONLY)
    program = Path(sys.executable).with_name("lmf-recipes")
    run = subprocess.Popen([program, *words], cwd=ROOT, stdin=stdin, stdout=writes if stream == 1 else null,
                           stderr=writes if stream == 2 else null)  # fmt: skip
    for each in (stdin, writes, null):
        os.close(each)
    shown(reads, b"trains")
    os.close(reads)
    os.write(types, b"\n")
    assert run.wait(LIMIT) == 141
    with pytest.raises(BrokenPipeError):  # no process is left that could read it
        os.write(types, b"\n")
    os.close(types)
