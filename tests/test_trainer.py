"""Signals, and what becomes of all processes of a trainer, with stand-ins for it that a test speaks to.

Each of them holds the pipe that the test reads: its end says that none of them is left."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from validator import orphans
from validator.diagnostic import RecipeError
from validator.tables.saved import checkpoints
from validator.train.alone import alone

ROOT = Path(__file__).parents[1]
LIMIT = 600  # seconds; a busy machine is slow, not broken
INT, TERM, HUP, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
PROGRAM = """
import os, signal, sys
signal.signal(1, signal.SIG_IGN if "NOHUP" in os.environ else signal.SIG_DFL)  # whatever the tests run under
signal.signal(2, signal.default_int_handler)
from pathlib import Path
from validator.train import trainer
from validator.train.launch import Process
sys.exit(trainer.run(Process([sys.executable, "-c", *sys.argv[2:]], dict(os.environ)), float(sys.argv[1]), Path("out")))
"""
# What stand-ins have in common.
SAYS = """
import os, signal, subprocess, sys, time
say = lambda *words: os.write(1, (" ".join(map(str, words)) + chr(10)).encode())
def heed(*numbers, end=True):
    def handler(number, _frame):
        say("got", number)
        if end: os._exit(0)
    for number in numbers: signal.signal(number, handler)
def wait():
    while True: signal.pause()
"""
HEEDS = f"{SAYS}\nheed(1, 2, 15); say('ready'); wait()"
STUBBORN = f"{SAYS}\nheed(1, 2, 15, end=False); say('ready'); wait()"
PLAIN = f"{SAYS}\nsignal.signal(2, signal.SIG_DFL); say('ready'); wait()"
# llamafactory-cli, which waits for torchrun, which starts each rank in a session of its own.
RANKS = f"""{SAYS}
agent = '''{SAYS}
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True) for _ in range(2)]
def close(number, _frame):
    for rank in ranks: os.killpg(rank.pid, number)
    for rank in ranks: rank.wait()
    sys.exit(1)
for number in (1, 2, 15): signal.signal(number, close)
wait()
'''
subprocess.run([sys.executable, "-c", agent, sys.argv[1]])
"""


class Started:
    """A trainer behind `lmf-recipes`, and what its processes say."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def heard(self, word: str, times: int = 1) -> list[str]:
        """Lines up to that in which the word stands for so many times."""
        assert self.process.stdout
        lines: list[str] = []
        while sum(word in line for line in lines) < times:
            lines.append(self.process.stdout.readline())
            assert lines[-1], lines
        return lines

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """The exit code, and what is said until no process is left."""
        said, _ = self.process.communicate(timeout=LIMIT)
        code = self.process.returncode
        return code if code >= 0 else 128 - code, said


@contextmanager
def started(folder: Path, stand_in: str, *words: str, grace: float = 1000.0) -> Iterator[Started]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(grace), stand_in, *words], text=True, cwd=folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            yield Started(process)
        finally:
            for pid in (*orphans.below(process.pid), process.pid):
                orphans.send(pid, KILL)


@pytest.mark.parametrize("number", [INT, TERM, HUP])
def test_the_trainer_gets_the_signal_once(number: int, tmp_path: Path) -> None:
    with started(tmp_path, HEEDS) as run:
        run.heard("ready")
        run.send(number)
        code, said = run.end()
    assert (code, said.count(f"got {number}")) == (128 + number, 1)


@pytest.mark.parametrize("number", [INT, TERM, HUP])
def test_ranks_in_sessions_of_their_own_get_it_once(number: int, tmp_path: Path) -> None:
    with started(tmp_path, RANKS, HEEDS) as run:
        run.heard("ready", 2)
        run.send(number)
        code, said = run.end()
    assert (code, said.count(f"got {number}")) == (128 + number, 2)


@pytest.mark.parametrize("stand_in", [(STUBBORN,), (RANKS, STUBBORN)])
def test_what_does_not_heed_it_is_killed_after_the_grace(stand_in: tuple[str, ...], tmp_path: Path) -> None:
    with started(tmp_path, *stand_in, grace=0.5) as run:
        run.heard("ready", len(stand_in))
        run.send(TERM)
        code, said = run.end()
    assert code == 143
    assert "lmf-recipes: not ended within 0 s (`--grace`): killed" in said


@pytest.mark.parametrize("first", [INT, TERM])
def test_another_ctrl_c_kills_at_once(first: int, tmp_path: Path) -> None:
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


# Its first thread has ended, another has not: it looks ended, and keeps its children. Large programs are like that for
# a tenth of a second when they are killed.
HEADLESS = f"""{SAYS}
import ctypes, platform, threading
for _ in range(2): subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
threading.Thread(target=time.sleep, args=(3600,)).start()
ctypes.CDLL(None).syscall({{"x86_64": 60, "aarch64": 93}}[platform.machine()], 0)  # exit(2), of this thread
"""


@pytest.mark.parametrize("stand_in", [RANKS, HEADLESS])
def test_the_trainer_ends_with_a_guard_that_is_killed(stand_in: str, tmp_path: Path) -> None:
    with started(tmp_path, stand_in, HEEDS) as run:
        run.heard("ready", 2)
        (guard,) = orphans.children(run.process.pid)
        os.kill(guard, KILL)
        assert run.end() == (137, "")


def test_what_a_trainer_leaves_behind_ends(tmp_path: Path) -> None:
    leaves = f"{SAYS}\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)\nsys.exit(7)"
    with started(tmp_path, leaves, PLAIN) as run:
        assert run.end()[0] == 7


def test_nohup_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOHUP", "")
    with started(tmp_path, PLAIN) as run:
        run.heard("ready")
        run.send(HUP)
        run.send(TERM)
        assert run.end()[0] == 143


SAVES = f"""{SAYS}
heed(15)
os.makedirs("out/checkpoint-5")
weights, state = "out/checkpoint-5/adapter_model.bin", "out/checkpoint-5/trainer_state.json"
open(weights, "w").write("…")
say("ready")
if not sys.stdin.readline(): wait()
open(state, "w").write('{{"global_step": 5}}')
for path in (weights, state, "out/checkpoint-5"): os.utime(path, (0, 0))  # nothing was written for a while
say("saved")
wait()
"""


def test_a_save_ends_first(tmp_path: Path) -> None:
    with started(tmp_path, SAVES) as run:
        run.heard("ready")
        run.send(TERM)
        assert "checkpoint-5 is being saved: the run ends after that, in 1000 s" in run.heard("is being saved")[-1]
        assert run.process.stdin
        print(file=run.process.stdin, flush=True)
        code, said = run.end()
    assert code == 143
    assert said.index("saved") < said.index("told to end") < said.index("got 15")


# A launcher that takes its time to pass a signal on, and a rank that saves as soon as it has saved.
SLOW = f"""{SAYS}
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
def close(number, _frame):
    time.sleep(1)
    rank.send_signal(number)
    rank.wait()
    sys.exit(1)
signal.signal(15, close)
wait()
"""
BUSY = f"""{SAYS}
from itertools import count
for step in count(1):
    folder = f"out/checkpoint-{{step}}"
    os.makedirs(folder)
    if step == 2: say("ready")
    for name, text in (("adapter_model.bin", "…"), ("trainer_state.json", '{{"global_step": 1}}')):
        time.sleep(0.05)
        open(f"{{folder}}/{{name}}", "w").write(text)
    time.sleep(0.13)  # not as often as the guard looks, which would meet a save each time
"""


def test_no_save_begins_while_the_signal_is_passed_on(tmp_path: Path) -> None:
    with started(tmp_path, SLOW, BUSY) as run:
        run.heard("ready")
        run.send(TERM)
        code, _ = run.end()
    assert code == 143
    assert [each.flaw for each in checkpoints(tmp_path / "out") if each.flaw] == []


def test_a_save_that_takes_longer_than_the_grace(tmp_path: Path) -> None:
    with started(tmp_path, SAVES, grace=0.5) as run:
        run.heard("ready")
        run.send(TERM)
        code, said = run.end()
    assert code == 143
    assert "got" not in said


def test_no_other_run_is_let_into_a_folder_that_is_still_written_to(tmp_path: Path) -> None:
    """Where `lmf-recipes` is killed, its lock is gone, and the trainer may finish a save."""
    with started(tmp_path, SAVES) as run:
        run.heard("ready")
        run.send(KILL)
        run.heard("is being saved")
        with pytest.raises(RecipeError, match="another run writes to"), alone(tmp_path / "out"):
            pass
        assert run.process.stdin
        print(file=run.process.stdin, flush=True)
        run.end()
    with alone(tmp_path / "out"):
        pass


@contextmanager
def at_terminal(folder: Path, stand_in: str) -> Iterator[tuple[int, int]]:
    """The program in the foreground of a terminal of its own: its process, and the other end of the terminal."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(folder)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM, "1000", stand_in])
    try:
        yield pid, terminal
    finally:
        for each in (*orphans.below(pid), pid):
            orphans.send(each, KILL)
        os.close(terminal)


def shown(terminal: int, word: bytes) -> None:
    seen = b""
    while word not in seen:
        seen += os.read(terminal, 1024)


def states(pids: Iterator[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def test_ctrl_c_at_a_terminal_is_heard_once_and_questions_can_be_answered(tmp_path: Path) -> None:
    asks = f"{SAYS}\nheed(2)\nsay('name?')\nsay('hello', input())\nwait()"
    with at_terminal(tmp_path, asks) as (pid, terminal):
        shown(terminal, b"name?")
        os.write(terminal, b"you\n")
        shown(terminal, b"hello you")
        os.write(terminal, b"\x03")
        shown(terminal, b"got 2")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130


def test_a_terminal_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can be told any more; the exit code is that of the signal all the same."""
    cli = tmp_path / "llamafactory-cli"
    cli.write_text("#!/bin/sh\ntrap 'exit 0' HUP\necho trains\nwhile :; do sleep 0.1; done\n")
    cli.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(ROOT)
        words = ["lmf-recipes", "train", "recipes/tiny-cpu-lora.yaml", f"output_dir={tmp_path}/out"]
        os.execv(Path(sys.executable).with_name("lmf-recipes"), words)
    shown(terminal, b"trains")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129


def test_ctrl_z_stops_all_but_the_guard_and_fg_continues(tmp_path: Path) -> None:
    with at_terminal(tmp_path, HEEDS) as (pid, terminal):
        shown(terminal, b"ready")
        os.write(terminal, b"\x1a")
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        (guard,) = orphans.children(pid)
        while states(orphans.below(guard)) != {"T"}:
            pass
        os.kill(pid, signal.SIGCONT)
        while "T" in states(orphans.below(guard)):
            pass
        os.kill(pid, TERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 143
