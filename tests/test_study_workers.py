"""Processes that read parts of a large file: none is left, and Ctrl-C is answered at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from robustness.report import runs

from validator import orphans
from validator.study import workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
# Work without end, so that no machine is too fast for a test.
PROGRAM = """
import time
from validator import edge
from validator.study import workers
edge.run(lambda: list(workers.results(time.sleep, [(3600,)] * 100)))
"""
# Ctrl-C in what Python does after each fork, where it is lost unless it is made to wait.
AT_A_FORK = """
import os, signal
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
"""


def begun() -> tuple[subprocess.Popen[bytes], list[int]]:
    """A process at work, and those that work for it."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while len(held := orphans.children(process.pid)) < workers.COUNT:
        assert process.poll() is None
        time.sleep(0.05)
    return process, held


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_process_is_left(number: signal.Signals, code: int) -> None:
    process, held = begun()
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == code
    assert b"Traceback" not in told
    while any(map(runs, held)):  # the kernel takes its time
        time.sleep(0.05)


def test_ctrl_c_while_processes_are_started_is_answered() -> None:
    done = subprocess.run([sys.executable, "-c", AT_A_FORK + PROGRAM], capture_output=True, timeout=600)
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_process_that_is_killed_is_told() -> None:
    process, held = begun()
    orphans.send(held[0], signal.SIGKILL)
    _, told = process.communicate()
    assert process.returncode == 1
    assert b"a process that read rows was killed" in told
