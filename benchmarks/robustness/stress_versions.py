"""The fast tests on each Python that is on PATH, with the oldest and the newest packages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from robustness.report import Row

_SCRIPT = Path(__file__).parents[2] / "tools" / "try_pythons.py"
_LINE = re.compile(r"(.+): (\d+) passed, (\d+) failed")


def rows() -> Iterator[Row]:
    """A row for each environment that could be made."""
    with subprocess.Popen([sys.executable, _SCRIPT], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if told := _LINE.match(line):
                passed, failed = int(told[2]), int(told[3])
                yield Row(told[1], "the fast tests pass", passed + failed, failed)
