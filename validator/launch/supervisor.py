"""Starts the trainer behind a guard, locks its output folder, passes signals on once, and waits.

The trainer is in a session of its own. Otherwise a terminal's Ctrl-C would reach it at the same time as this program,
in the middle of a save; in a mere process group it would be stopped as soon as it asks something at the terminal. It
can still write to the terminal and read from it: the kernel has background rules for a session's own terminal only."""

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

from validator.errors import RecipeError
from validator.knowledge import releases
from validator.launch import local_launch
from validator.launch.local_launch import LocalLaunch
from validator.machine.installed_packages import find_installed
from validator.processes import handle_end_signals
from validator.recipe import atomic_write
from validator.run import training_time
from validator.run.launch_command import ProcessSpec
from validator.run.settings import RunSettings


@contextmanager
def lock_output_dir(folder: Path) -> Iterator[int | None]:
    """Make the output folder and lock it against other runs. Yield its file descriptor: the folder stays locked until
    every process that has inherited the descriptor ends. Raises RecipeError if another run has locked it. A folder on a
    file system without locks is shared, and None is yielded if it cannot be made or opened: the run says why."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        yield None
        return
    try:
        with suppress(OSError):
            if not atomic_write.try_lock(opened):
                own = "give this one a folder of its own: output_dir=DIR"
                raise RecipeError(f"another run writes to `{folder}`; wait for its end, or {own}")
        yield opened
    finally:
        os.close(opened)


# The guard sees no folder but that of this package, whatever the variables say.
_GUARD_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from validator.launch.guard import main; main()"
_PACKAGE_PARENT = Path(__file__).parents[2]
# Seconds between two signals that count as two: `timeout --signal=INT` sends each to the process and to its group.
_REPEAT_SECONDS = 0.1


def run_supervised(process: ProcessSpec, grace: float, output: Path, lock: int | None = None) -> int:
    """Run the process at this terminal, and return its exit code, or 128 + n for signal n. On a signal to this process
    the trainer ends within `grace` seconds, after a save into `output` that is in progress. `lock` is the descriptor of
    `lock_output_dir`. Raises RecipeError if the process cannot be started."""
    trainer = TrainingProcess(process, grace, output, lock=lock)
    with trainer.forward_signals():
        return trainer.wait()


class TrainingProcess:
    """A trainer behind its guard. It ends within `grace` seconds after it is told to, and with this process at the
    latest. Without `output` a save is not waited for. `first_signal` is the first one that this process got; 0: none.
    Raises RecipeError if it cannot be started."""

    first_signal = 0

    def __init__(
        self, process: ProcessSpec, grace: float, output: Path | None = None, *, lock: int | None = None,
        stdout: IO[str] | None = None,
    ) -> None:  # fmt: skip
        name = process.words[0]
        if shutil.which(name, path=process.env.get("PATH", os.defpath)) is None:
            raise RecipeError(f"{name} cannot be started: it is not on PATH")
        theirs, self._commands = os.pipe()
        told = [str(theirs), str(grace), str(output or "")]
        inherited = (theirs,) if lock is None else (theirs, lock)
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-c", _GUARD_CODE, str(_PACKAGE_PARENT), *told, *process.words],
            env=process.env, stdout=stdout, pass_fds=inherited, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def send_signal(self, number: int) -> None:
        """Have the guard send a signal: INT, TERM and HUP end the trainer when a save is over, KILL at once."""
        with suppress(BrokenPipeError):
            os.write(self._commands, bytes([number]))

    def poll(self) -> int | None:
        """The exit code; None while the trainer runs."""
        return self._guard.poll()

    def wait(self) -> int:
        """Wait until no process is left, and return the exit code."""
        code = self._guard.wait()
        os.close(self._commands)
        return code if code >= 0 else 128 - code

    @contextmanager
    def forward_signals(self) -> Iterator[None]:
        """Pass the signals that would end this process on to the trainer. A second Ctrl-C kills it."""
        came: dict[int, float] = {}

        def end(number: int, _frame: FrameType | None) -> None:
            self.first_signal = self.first_signal or number
            same = time.monotonic() - came.get(number, 0.0) < _REPEAT_SECONDS
            self.send_signal(signal.SIGKILL if number == signal.SIGINT and came and not same else number)
            came.setdefault(number, time.monotonic())

        with handle_end_signals(end):
            yield


# Seconds to end in beside a save: torchrun takes 30 of them where a process does not heed it.
SHUTDOWN_SECONDS = 60.0


def run_training(run: RunSettings, prepared: LocalLaunch, grace: float | None = None, lock: int | None = None) -> int:
    """Run llamafactory-cli, or accelerate, and return its exit code; 128 + n if signal n ended it within `grace`
    seconds, by default those of `grace_seconds`. Raises RecipeError as `check_can_start` does."""
    check_can_start(run, prepared)
    return run_supervised(prepared.process, grace_seconds(run) if grace is None else grace, prepared.output, lock)


def grace_seconds(run: RunSettings) -> float:
    """Seconds in which a run that is told to end has ended: the longest time to write a checkpoint, and a minute."""
    return training_time.checkpoint_write_seconds(run) + SHUTDOWN_SECONDS


def check_can_start(run: RunSettings, prepared: LocalLaunch) -> None:
    """Raises RecipeError where the packages installed here are not of the recipe's releases, or this machine cannot
    start it."""
    for problem in run.releases.excluded(find_installed().versions(releases.RELEASE_FIELDS)):
        raise RecipeError(problem)
    local_launch.check_launchable(prepared.launch, prepared.launch.nodes)
