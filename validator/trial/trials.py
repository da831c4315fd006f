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

_PRECISIONS = {"pure_bf16": " in bf16", "engine": " under DeepSpeed", "fp32": " in fp32"}
_NEEDED = ("torch", "transformers", "peft", "llamafactory")


def lacking() -> list[str]:
    """The packages that simulations need and this Python lacks. Nothing is imported for it."""
    return [name for name in _NEEDED if find_spec(name) is None]


class Trials:
    """`tell` shows progress. `more`: how many simulations may follow a run's first; what is kept costs nothing. `made`:
    how many there were. `spent`: one was refused because no more were allowed."""

    def __init__(self, tell: Callable[[str], None], more: int = 0) -> None:
        self.tell, self._more, self._left, self._releases = tell, more, 0, releases.installed(PACKAGES)
        self.made, self.spent = 0, False
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
        return _known(self._answers[str(path)])

    def told(self, cell: Cell) -> Answer:
        """As `answer`, but nothing is simulated for it."""
        return _known(self._answers.get(str(kept.place(cell, self._releases))) or _none())

    def _simulated(self, cell: Cell, path: Path) -> Answer | RecipeError:
        """The answer, which is kept at the path, or why there is none; the process is then of no use any more."""
        if not self._left:
            self.spent = True
            return _none()
        self._left, self.made = self._left - 1, self.made + 1
        self.tell(f"simulating a `{cell.model.get('model_type')}` model, {_run(cell)}; this takes seconds …")
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


def _known(there: Answer | RecipeError) -> Answer:
    if isinstance(there, RecipeError):
        raise there
    return there


def _none() -> RecipeError:
    return RecipeError("is not simulated: no further simulation is made")


def _run(cell: Cell) -> str:
    """What tells the simulations of one model apart, in words."""
    tokens = f"{cell.seq_len} tokens" if cell.micro_batch == 1 else f"{cell.micro_batch} x {cell.seq_len} tokens"
    ending = "" if cell.grad_ckpt else ", all activations kept"
    return f"{cell.method}{_PRECISIONS.get(cell.precision_mode, '')} at {tokens}{ending}"
