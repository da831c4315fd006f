"""Starts the trainer behind a guard, holds the lock of its output folder, passes signals on once, and waits.

The trainer is in a session of its own. A terminal's Ctrl-C would else reach it at the same time as this program, in
the middle of a save; in a mere process group it would be stopped as soon as it asks something at the terminal. It
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
from validator.launch import local_launch, process_tree
from validator.launch.local_launch import Launch
from validator.machine.installed_packages import find_installed
from validator.recipe import atomic_write
from validator.run import checkpoints, launch_command, training_time
from validator.run.launch_command import ProcessSpec
from validator.run.prediction import Job


@contextmanager
def lock_output_dir(folder: Path) -> Iterator[None]:
    """Have the output folder, which is made, to ourselves. Raises RecipeError where another run has it. Where the file
    system locks no folders, as on a network, it may be shared; what else is wrong with it, the run says."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            if not atomic_write.try_lock(opened):
                own = "give this one a folder of its own: output_dir=DIR"
                raise RecipeError(f"another run writes to `{folder}`; wait for its end, or {own}")
        yield
    finally:
        os.close(opened)


# The guard sees no folder but that of this package, whatever the variables say.
_GUARD_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from validator.launch.guard import main; main()"
_PACKAGE_PARENT = Path(__file__).parents[2]
# Seconds between two signals that count as two: `timeout --signal=INT` sends each to the process and to its group.
_REPEAT_SECONDS = 0.1
# Seconds until what was killed is gone.
_KILL_SECONDS = 10.0


def run_supervised(process: ProcessSpec, grace: float, output: Path) -> int:
    """Run it with this terminal. Returns its exit code, 128 + n for signal n, which may be one that this process got:
    then the trainer has ended within `grace` seconds, after the save into `output` that was under way. Raises
    RecipeError where it cannot be started."""
    trainer = TrainingProcess(process, grace, output)
    with trainer.signalled():
        return trainer.wait()


class TrainingProcess:
    """It is started, ends within `grace` seconds once it is told to, and ends with this process at the latest. Without
    `output` a save is not waited for. `asked`: the first signal that this process got; 0: none. Raises RecipeError
    where it cannot be started."""

    asked = 0

    def __init__(
        self, process: ProcessSpec, grace: float, output: Path | None = None, stdout: IO[str] | None = None
    ) -> None:
        name = process.words[0]
        if shutil.which(name, path=process.env.get("PATH", os.defpath)) is None:
            raise RecipeError(f"{name} cannot be started: it is not on PATH")
        self._others = process_tree.child_pids(os.getpid())
        process_tree.become_subreaper()
        theirs, self._orders = os.pipe()
        told = [str(theirs), str(grace), str(output or "")]
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-c", _GUARD_CODE, str(_PACKAGE_PARENT), *told, *process.words],
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
        process_tree.kill_children(self._others, _KILL_SECONDS)  # those that a killed guard has left
        process_tree.become_subreaper(False)
        return code if code >= 0 else 128 - code

    @contextmanager
    def signalled(self) -> Iterator[None]:
        """In this block it gets the signals that this process gets, unless `nohup` or the like wants them ignored."""
        came: dict[int, float] = {}

        def end(number: int, _frame: FrameType | None) -> None:
            self.asked = self.asked or number
            same = time.monotonic() - came.get(number, 0.0) < _REPEAT_SECONDS
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


# Seconds to end in beside a save: torchrun takes 30 of them where a process does not heed it.
SHUTDOWN_SECONDS = 60.0


def run_training(job: Job, prepared: Launch, seconds: float | None = None) -> int:
    """Run llamafactory-cli, or accelerate, and return its exit code; 128 + n where signal n ended it within `seconds`,
    by default those of `grace`. Raises RecipeError as `admitted` does."""
    check_can_start(job, prepared)
    output = prepared.output or Path(checkpoints.DEFAULT_OUTPUT_DIR).absolute()
    return run_supervised(prepared.process, grace_seconds(job) if seconds is None else seconds, output)


def grace_seconds(job: Job) -> float:
    """Seconds in which a run that is told to end has ended: what a checkpoint takes at most to be written, and a
    minute."""
    return training_time.checkpoint_write_seconds(job) + SHUTDOWN_SECONDS


def check_can_start(job: Job, prepared: Launch) -> None:
    """Raises RecipeError where the packages installed here are not of the recipe's releases, or this machine cannot
    start it."""
    for problem in releases.outside_range(job.header, find_installed().among(releases.RELEASE_FIELDS)):
        raise RecipeError(problem)
    local_launch.check_launchable(
        launch_command.nodes_and_devices(job)[0], releases.required_pairs(job.header)[0][0], prepared.starter
    )
