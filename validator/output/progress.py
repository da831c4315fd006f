"""A progress bar on standard error for work that takes longer than a second."""

from __future__ import annotations

import sys
import time

from validator.escaping import RawText

_WIDTH, _SECONDS_BEFORE_SHOWN, _SECONDS_BETWEEN_UPDATES = 30, 1.0, 0.2


class ProgressBar:
    """A bar on standard error that shows how many of about `total` rows are done. Call the instance with the number of
    rows done since the last call. Nothing is shown if standard error is not a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done = max(total, 1), 0
        self._shown = self._begun = time.monotonic()

    def __call__(self, rows: int) -> None:
        self._done += rows
        now = time.monotonic()
        if (
            sys.stderr.isatty()
            and now - self._begun > _SECONDS_BEFORE_SHOWN
            and now - self._shown > _SECONDS_BETWEEN_UPDATES
        ):
            self._shown = now
            passed = (self._done - 1) % self._total + 1  # near duplicates take a second look at all rows
            full = round(passed / self._total * _WIDTH)
            sys.stderr.write(RawText(f"\r{'█' * full}{'░' * (_WIDTH - full)} {self._done:,} rows"))

    def close(self) -> None:
        """Erase the bar from the terminal."""
        if self._shown > self._begun:
            sys.stderr.write(RawText("\r\x1b[K"))
