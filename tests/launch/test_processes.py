"""Child processes: no signal waits for their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from validator import processes

# Ends when its standard input does, or by SIGALRM after a minute.
CHILD = "import signal, sys; signal.alarm(60); sys.stdin.read()"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells when the wait has begun")
def test_a_signal_that_does_not_wake_the_wait_is_handled() -> None:
    """A signal that another thread gets leaves the wait asleep, as does one that comes just before the wait begins."""
    read_end, write_end = os.pipe()
    state = Path("/proc/self/task", str(threading.get_native_id()), "stat")

    def send_when_waiting() -> None:
        while state.read_text().rpartition(")")[2].split()[0] != "S":
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with processes.handle_end_signals(lambda _number, _frame: os.close(write_end)):
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=read_end)
        os.close(read_end)
        thread = threading.Thread(target=send_when_waiting)
        thread.start()
        processes.communicate_in_turns(child)
        thread.join()
    assert child.returncode == 0
