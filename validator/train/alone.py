"""One run at a time in an output folder: a second would take a checkpoint that is being written for one that was cut
off, and rename it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from validator.diagnostic import RecipeError


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Have the output folder, which is made, to ourselves. Raises RecipeError where another run has it. Where the file
    system locks no folders, as on a network, it may be shared; what else is wrong with it, the run says."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        _lock(folder, opened)
        yield
    finally:
        os.close(opened)


def _lock(folder: Path, opened: int) -> None:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        own = "give this one a folder of its own: output_dir=DIR"
        raise RecipeError(f"another run writes to `{folder}`; wait for its end, or {own}") from None
    except OSError:
        return
