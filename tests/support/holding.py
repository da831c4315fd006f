"""Real runs that stop in the middle of a checkpoint until a test has done what it does at that moment.

A run with tests/support/ending on PYTHONPATH and a folder as HOLD in its environment, under torchrun, opens the FIFO of
a checkpoint's name there, if there is one, before it writes the last file of that checkpoint."""

from __future__ import annotations

import errno
import os
from pathlib import Path


class Hold:
    """What stops a run in the checkpoint of a step."""

    def __init__(self, folder: Path, step: int) -> None:
        self._fifo, self._end = folder / f"checkpoint-{step}", -1
        os.mkfifo(self._fifo)

    def taken(self) -> bool:
        """Whether a run has come to it; it then stays there."""
        try:
            self._end = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as err:
            if err.errno == errno.ENXIO:  # nobody reads yet
                return False
            raise
        return True

    def let_go(self) -> None:
        """The run, if it is still there, and those after it go on."""
        self._fifo.unlink()
        os.close(self._end)
