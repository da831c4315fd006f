"""A trainer that runs behind a guard: signals that this program gets, it gets once, and may finish a save.

The trainer is in a session of its own. A terminal's Ctrl-C would else reach it at the same time as this program, in
the middle of a save; in a mere process group it would be stopped as soon as it asks something at the terminal. It still
writes there and reads from there, as the terminal is not its own: for others' terminals the kernel knows no background.
What Ctrl-Z stops and `fg` continues is this program, which has the rest stopped and continued."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from validator import orphans
from validator.diagnostic import RecipeError
from validator.train.launch import Process

# The guard sees no folder but that of this package, whatever the variables say.
_GUARD = "import sys; sys.path.insert(0, sys.argv.pop(1)); from validator.train.guard import main; main()"
_PACKAGES = Path(__file__).parents[2]
# Seconds between two signals that count as two: `timeout --signal=INT` sends each to the process and to its group.
_TWICE = 0.1
# Seconds until what was killed is gone.
_GONE = 10.0


def run(process: Process, grace: float, output: Path) -> int:
    """Run it with this terminal. Returns its exit code, 128 + n for signal n, which may be one that this process got:
    then the trainer has ended within `grace` seconds, after the save into `output` that was under way. Raises
    RecipeError where it cannot be started."""
    trainer = Trainer(process, grace, output)
    with trainer.signalled():
        return trainer.wait()


class Trainer:
    """It is started, ends within `grace` seconds once it is told to, and ends with this process at the latest. Without
    `output` a save is not waited for. `asked`: the first signal that this process got; 0: none. Raises RecipeError
    where it cannot be started."""

    asked = 0

    def __init__(
        self, process: Process, grace: float, output: Path | None = None, stdout: IO[str] | None = None
    ) -> None:
        name = process.words[0]
        if shutil.which(name, path=process.env.get("PATH", os.defpath)) is None:
            raise RecipeError(f"{name} cannot be started: it is not on PATH")
        self._others = orphans.children(os.getpid())
        orphans.adopt()
        theirs, self._orders = os.pipe()
        told = [str(theirs), str(grace), str(output or "")]
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-c", _GUARD, str(_PACKAGES), *told, *process.words],
            env=process.env, stdout=stdout, pass_fds=(theirs,), start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def order(self, number: int) -> None:
        """Have the signal sent: INT, TERM and HUP end the trainer when a save is over, KILL at once; STOP and CONT are
        for all its processes."""
        with suppress(BrokenPipeError):
            os.write(self._orders, bytes([number]))

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._guard.poll()

    def wait(self) -> int:
        """The exit code, when no process is left."""
        code = self._guard.wait()
        os.close(self._orders)
        orphans.end(self._others, _GONE)  # those that a killed guard has left
        orphans.adopt(False)
        return code if code >= 0 else 128 - code

    @contextmanager
    def signalled(self) -> Iterator[None]:
        """In this block it gets the signals that this process gets, unless `nohup` or the like wants them ignored."""
        came: dict[int, float] = {}

        def end(number: int, _frame: FrameType | None) -> None:
            self.asked = self.asked or number
            same = time.monotonic() - came.get(number, 0.0) < _TWICE
            self.order(signal.SIGKILL if number == signal.SIGINT and came and not same else number)
            came.setdefault(number, time.monotonic())

        def stop(_number: int, _frame: FrameType | None) -> None:
            self.order(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self.order(signal.SIGCONT)

        handlers = {signal.SIGINT: end, signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGTSTP: stop}
        wanted = {number: handler for number, handler in handlers.items() if signal.getsignal(number) != signal.SIG_IGN}
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
