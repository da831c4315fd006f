"""A bar on the terminal for work that takes longer than a second."""

from __future__ import annotations

import sys
import time

from validator.printable import Exact

_WIDTH, _PATIENCE, _PAUSE = 30, 1.0, 0.2


class Progress:
    """Rows done of about so many; silent where the error stream is no terminal. Call it with the rows that are new."""

    def __init__(self, total: int) -> None:
        self._total, self._done = max(total, 1), 0
        self._shown = self._begun = time.monotonic()

    def __call__(self, rows: int) -> None:
        self._done += rows
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._begun > _PATIENCE and now - self._shown > _PAUSE:
            self._shown = now
            passed = (self._done - 1) % self._total + 1  # near duplicates take a second look at all rows
            full = round(passed / self._total * _WIDTH)
            sys.stderr.write(Exact(f"\r{'█' * full}{'░' * (_WIDTH - full)} {self._done:,} rows"))

    def close(self) -> None:
        """Take the bar away."""
        if self._shown > self._begun:
            sys.stderr.write(Exact("\r\x1b[K"))
