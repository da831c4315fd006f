"""Many files are judged by several processes as by one; nothing of them is left behind, whatever ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from validator import processes
from validator.check import worker_pool
from validator.cli import group
from validator.errors import RecipeError

pytestmark = [pytest.mark.process, pytest.mark.sample(one_in=2, whole_for=["validator/check/*"])]

ROOT = Path(__file__).parents[2]
# The first sixteen are judged by the process itself; two others say that they have begun, and never come to an end.
PROGRAM = """
import os, signal
from validator.check import worker_pool
worker_pool._usable_processors = lambda: 2
here = os.getpid()
def judge(number):
    if os.getpid() != here:
        os.write(1, b"begun\\n")
        signal.pause()
worker_pool.map_in_processes(judge, range(100))
"""


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_usable_processors", lambda: 2)


@pytest.fixture
def _interrupted() -> Iterator[None]:
    """Ctrl-C is answered as in a program, whatever the tests run under."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_answers_come_in_order_from_two_processes_and_the_first_part_from_this_one() -> None:
    answers = worker_pool.map_in_processes(lambda number: (number, os.getpid()), range(100))
    assert [number for number, _ in answers] == list(range(100))
    assert len({process for _, process in answers}) == 3
    assert {process for _, process in answers[:16]} == {os.getpid()}


@pytest.mark.parametrize(("processors", "items"), [(1, 100), (2, 16), (2, 32)])
def test_one_process_does_it_where_others_would_not_help(
    processors: int, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_usable_processors", lambda: processors)
    assert worker_pool.map_in_processes(lambda _: os.getpid(), range(items)) == [os.getpid()] * items


def test_a_process_that_is_ended_from_outside_is_told_in_one_line() -> None:
    def judge(number: int) -> int:
        if number == 70:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with pytest.raises(RecipeError, match="a process that judged files was ended by SIGKILL; give fewer files at once"):
        worker_pool.map_in_processes(judge, range(100))


def test_what_fails_in_another_process_fails_here_too() -> None:
    def judge(number: int) -> float:
        return 1 / (number - 70)

    with pytest.raises(ZeroDivisionError):
        worker_pool.map_in_processes(judge, range(100))


@pytest.mark.usefixtures("_interrupted")
def test_an_interruption_waits_until_all_are_started_though_another_thread_gets_it() -> None:
    """A process that judges has no other thread, but tests have those of libraries: the kernel tells one of these."""
    over, reached = threading.Event(), []
    came, bell = os.pipe()
    os.set_blocking(bell, False)

    def start() -> None:
        with processes.delay_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            os.read(came, 1)  # the other thread has it
            reached.append("the end")

    thread = threading.Thread(target=over.wait)
    thread.start()
    before = signal.set_wakeup_fd(bell)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        signal.set_wakeup_fd(before)
        over.set()
        thread.join()
        os.close(came)
        os.close(bell)
    assert reached == ["the end"]


@pytest.mark.usefixtures("_interrupted")
def test_no_process_outlives_an_interruption() -> None:
    here = os.getpid()
    (first, tells), (begun, begins) = os.pipe(), os.pipe()

    def judge(number: int) -> int:
        if os.getpid() != here:
            os.write(begins, f"{os.getpid()}\n".encode())
            if number == 16:  # the first of one of the two processes, which alone interrupts
                os.read(first, 1)
                os.kill(here, signal.SIGINT)
            os.write(tells, b".")
            signal.pause()
        return number

    with pytest.raises(KeyboardInterrupt):
        worker_pool.map_in_processes(judge, range(100))
    held = [int(pid) for pid in os.read(begun, 1024).split()]
    assert len(held) == 2
    for pid in held:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    for each in (first, tells, begun, begins):
        os.close(each)


def test_ctrl_c_while_processes_are_started_is_answered() -> None:
    at_a_fork = "import os, signal\nos.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    done = subprocess.run([sys.executable, "-c", at_a_fork + PROGRAM], capture_output=True, timeout=600)
    assert done.returncode == -signal.SIGINT
    assert b"Exception ignored" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="processes end with their parent on Linux alone")
def test_no_process_outlives_one_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == [b"begun\n"] * 2
        process.kill()
        assert process.stdout.read() == b""  # its end: nobody holds it any more


def test_a_folder_is_reported_as_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "recipes").glob("qwen3-8b-4090*.yaml"))]
    for number in range(70):
        text = texts[number % len(texts)].replace("### train", "### train\nlearing_rate: 1" if number % 7 else "[")
        (tmp_path / f"{number:02}.yaml").write_text(text, "utf-8")
    monkeypatch.chdir(ROOT)
    by_two = CliRunner().invoke(group, ["check", str(tmp_path), "--format", "json"])
    monkeypatch.setattr(worker_pool, "_usable_processors", lambda: 1)
    by_one = CliRunner().invoke(group, ["check", str(tmp_path), "--format", "json"])
    assert by_two.exit_code == by_one.exit_code == 1
    assert by_two.stdout == by_one.stdout
