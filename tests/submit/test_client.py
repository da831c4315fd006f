"""What an engine's client has begun ends by itself, whatever signal comes meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import signal, sys
from validator.submit import scheduler_client
for number in (1, 15): signal.signal(number, signal.SIG_DFL)
signal.signal(2, signal.default_int_handler)
scheduler_client.run_interactive([sys.argv[1]], "get it")
print("taken")
"""
CLIENT = f"""#!{sys.executable}
import os, signal, sys
# Not by print, which a signal may find at work.
for number in (1, 15): signal.signal(number, lambda number, _frame: os.write(1, b"heard %d\\n" % number))
os.write(1, b"begun\\n")
sys.stdin.readline()
os.write(1, b"ended\\n")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal(number: int, tmp_path: Path) -> None:
    """That of a terminal's Ctrl-C the client gets from there."""
    client = tmp_path / "sky"
    client.write_text(CLIENT)
    client.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(client)], text=True, start_new_session=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:  # fmt: skip
        assert program.stdout
        assert program.stdout.readline() == "begun\n"
        program.send_signal(number)
        if number != signal.SIGINT:
            assert program.stdout.readline() == f"heard {number}\n"
        said, _ = program.communicate("\n", timeout=600)
    assert (program.returncode, said) == (128 + number, "ended\n")
