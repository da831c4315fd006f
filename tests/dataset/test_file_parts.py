"""Processes that read parts of a large file: none is left, and Ctrl-C is answered at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from validator.dataset import file_parts

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="processes end with their parent on Linux alone"),
]
# Each process says that it has begun, with work without end, so that no machine is too fast for a test.
PROGRAM = """
import os, threading
from validator import entry
from validator.dataset import file_parts
def work(_):
    os.write(1, f"{os.getpid()}\\n".encode())
    threading.Event().wait()
entry.run_program(lambda: list(file_parts.results_in_order(work, [(each,) for each in range(100)])))
"""
# Ctrl-C in what Python does after each fork, where it is lost unless it is made to wait.
AT_A_FORK = """
import os, signal
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
"""


@contextmanager
def begun() -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A process at work, and those that work for it."""
    words = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        try:
            yield process, [int(process.stdout.readline()) for _ in range(file_parts.WORKER_COUNT)]
        finally:
            process.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_process_is_left(number: signal.Signals, code: int) -> None:
    with begun() as (process, _):
        process.send_signal(number)
        _, told = process.communicate()  # the end of both: nobody holds them any more
        assert process.returncode == code
        assert b"Traceback" not in told


def test_ctrl_c_while_processes_are_started_is_answered() -> None:
    done = subprocess.run([sys.executable, "-c", AT_A_FORK + PROGRAM], capture_output=True, timeout=600)
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_process_that_is_killed_is_told() -> None:
    with begun() as (process, held):
        os.kill(held[0], signal.SIGKILL)
        _, told = process.communicate()
        assert process.returncode == 1
        assert b"a process that read rows was killed" in told
