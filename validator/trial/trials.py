"""Simulations of one command: from the cache, else by a process that is started for the first of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from validator.diagnostic import RecipeError
from validator.simulate.answer import PACKAGES, Answer
from validator.simulate.cell import Cell
from validator.tables import releases
from validator.trial import kept
from validator.trial.process import Simulator

_NEEDED = ("torch", "transformers", "peft", "llamafactory")


def lacking() -> list[str]:
    """The packages that simulations need and this Python lacks. Nothing is imported for it."""
    return [name for name in _NEEDED if find_spec(name) is None]


class Trials:
    """`tell` shows progress. `more`: how many simulations may follow a run's first; what is kept costs nothing."""

    def __init__(self, tell: Callable[[str], None], more: int = 0) -> None:
        self.tell, self._more, self._left, self._releases = tell, more, 0, releases.installed(PACKAGES)
        self._answers: dict[str, Answer | RecipeError] = {}
        self._simulator: Simulator | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None,
                 _trace: TracebackType | None) -> None:  # fmt: skip
        self._end()

    def begin(self) -> None:
        """The allowance of a run: with sequences of two lengths at most, and for changes to it."""
        self._left = self._more + 2

    def answer(self, cell: Cell) -> Answer:
        """Raises RecipeError with the reason where there is none, also when the allowance is spent."""
        path = kept.place(cell, self._releases)
        if str(path) not in self._answers:
            self._answers[str(path)] = kept.read(path) or self._simulated(cell, path)
        there = self._answers[str(path)]
        if isinstance(there, RecipeError):
            raise there
        return there

    def _simulated(self, cell: Cell, path: Path) -> Answer | RecipeError:
        """The answer, which is kept at the path, or why there is none; the process is then of no use any more."""
        if not self._left:
            return RecipeError("is not simulated: no further simulation is made")
        self._left -= 1
        self.tell(f"simulating a `{cell.model.get('model_type')}` model at {cell.seq_len} tokens; this takes seconds …")
        started = time.monotonic()
        try:
            self._simulator = self._simulator or Simulator()
            there = self._simulator.ask(cell)
        except RecipeError as err:
            self._end()
            return err
        self.tell(f"simulated in {time.monotonic() - started:.0f} s")
        kept.keep(path, there)
        return there

    def _end(self) -> None:
        if self._simulator:
            self._simulator.close()
        self._simulator = None
