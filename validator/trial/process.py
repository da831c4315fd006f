"""The process that simulates: torch is imported and changed there, and it can be ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from validator import orphans
from validator.diagnostic import RecipeError
from validator.simulate.answer import Answer
from validator.simulate.cell import Cell

# Seconds for one answer; the first one waits for the imports, too.
LIMIT = 600
# Nothing is asked of a hub, and a few threads more would not make fake tensors faster.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
_SAFE = "PYTHONSAFEPATH"


class Simulator:
    """Answers one cell after another."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._mine, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _safe_path():
            self._process.start()
        theirs.close()

    def ask(self, cell: Cell) -> Answer:
        """The answer. Raises RecipeError with the reason where there is none, and when it takes too long."""
        try:
            self._mine.send(cell)
            if not self._mine.poll(LIMIT):
                self.close()
                raise RecipeError(f"is not simulated: no answer within {LIMIT} seconds")
            answer = self._mine.recv()
        except (EOFError, OSError):
            raise RecipeError(f"is not simulated: {self._end()}") from None
        if not isinstance(answer, Answer):
            raise RecipeError(f"is not simulated: {answer}")
        return answer

    def _end(self) -> str:
        """How a process that is gone ended."""
        self._process.join()
        if self._process.exitcode == -signal.SIGKILL:
            return "the process was killed; is there memory for it?"
        return f"the process ended with exit code {self._process.exitcode}"

    def close(self) -> None:
        """Ends the process."""
        self._mine.close()
        self._process.kill()
        self._process.join()


@contextmanager
def _safe_path() -> Iterator[None]:
    """A Python that is started within imports nothing from the working folder, where it otherwise looks first."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE]
        else:
            os.environ[_SAFE] = before


def _serve(connection: Connection) -> None:
    """Answers until nobody asks any more. What libraries print is dropped: standard output is the caller's."""
    orphans.follow()
    os.environ.update(_ENVIRONMENT)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    while True:
        try:
            cell = connection.recv()
        except EOFError:
            return
        try:
            from validator.simulate import ask  # after the environment, which the packages read when they are imported

            connection.send(ask.answer(cell))
        except (Exception, SystemExit) as err:  # also of a package that cannot be imported
            first = (str(err).strip() or repr(err)).splitlines()[0]
            connection.send(f"{type(err).__name__}: {first}"[:300])
