"""On PYTHONPATH of processes that train together on the CPU.

They end as soon as Python is through. After that gloo's threads may still end them by SIGABRT (in about one of twenty
runs with torch 2.13), which no run on a GPU meets. And they stop in the middle of a checkpoint where a test holds them
(tests/support/holding.py)."""

import atexit
import contextlib
import os
import sys
from pathlib import Path


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if hasattr(sys, "last_type") else 0)


def _hold(event: str, words: tuple[object, ...]) -> None:
    """Before the last file of a checkpoint is written: as long as the FIFO of the checkpoint's name has a writer."""
    if event == "open" and words[1] == "w" and str(words[0]).endswith("/trainer_state.json"):
        fifo = Path(os.environ["HOLD"], Path(str(words[0])).parent.name)
        if fifo.is_fifo():
            with contextlib.suppress(FileNotFoundError):
                fifo.read_bytes()


if "LOCAL_RANK" in os.environ:
    atexit.register(_end)
    if "HOLD" in os.environ:
        sys.addaudithook(_hold)
