"""The launch of a run on this machine: its command with absolute paths, the variables that depend on this host,
whether it can start here, and the files that it leaves; the lock of its output folder, and the trainer behind its
guard, to which signals are passed on once.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO

from validator.errors import RecipeError
from validator.knowledge import releases
from validator.machine import host, nvidia
from validator.machine.installed_packages import find_installed
from validator.processes import handle_end_signals
from validator.recipe import atomic_write, safe_read
from validator.run import checkpoints, launch_command, training_time
from validator.run.launch_command import RENDEZVOUS_VARIABLES, Launch, ProcessSpec
from validator.run.settings import RunSettings

_RESULT_NAMES = ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json", "training_loss.png",
            "trainer_log.jsonl")  # fmt: skip


@dataclass(frozen=True)
class LocalLaunch:
    """The start of a run on this machine. `device_env` selects devices and overrides the user's environment.
    `host_env`: defaults that depend on this host (OMP_NUM_THREADS, NCCL_P2P_DISABLE)."""

    launch: Launch
    recipe: Path
    overrides: tuple[str, ...]
    output: Path
    device_env: Mapping[str, str]
    host_env: Mapping[str, str]

    @property
    def process(self) -> ProcessSpec:
        return self.launch.process(self.recipe, self.overrides, self.host_env, self.device_env)

    def commands(self) -> list[str]:
        """Return the command of each node, or of this node if the environment has its rank."""
        env = {**self.launch.env, **self.device_env}
        return self.launch.commands(str(self.recipe), self.overrides, env, rendezvous_env(self.launch.nodes))


def build_launch(
    run: RunSettings, overrides: Sequence[str], device_env: Mapping[str, str] = MappingProxyType({})
) -> LocalLaunch:
    """Return how the recipe is started here. Raises RecipeError as `Launch.absolute_words` does, and if NNODES is set
    to another number of nodes, for which torchrun would wait."""
    launch = Launch(run)
    nnodes = os.environ.get("NNODES", str(launch.nodes))
    if launch.launcher == "torchrun" and nnodes != str(launch.nodes):
        raise RecipeError(f"the environment has NNODES={nnodes}, the run has {launch.nodes}; unset it")
    recipe, words = launch.absolute_words(overrides)
    host_env = launch_command.omp_threads(run, host.usable_cpus())
    machine = run.machine  # few cards need the driver to be asked
    if machine and launch_command.lacks_p2p(machine.device, machine.devices, machine.nodes):
        driver = nvidia.read_driver()
        host_env |= launch_command.p2p_disable_env(driver.release) if driver else {}
    return LocalLaunch(launch, recipe, words, checkpoints.output_dir(run), device_env, host_env)


def result_files(output: Path) -> list[Path]:
    """Return the files in a run's output folder that a user looks for first."""
    return [output / name for name in _RESULT_NAMES if safe_read.path_kind(output / name) == "file"]


def rendezvous_env(nodes: int) -> dict[str, str]:
    """Return the rank of this node and where nodes meet, as far as the environment says. Raises RecipeError if the rank
    is not one of `nodes`."""
    known = {name: os.environ[name] for name in RENDEZVOUS_VARIABLES if name in os.environ} if nodes > 1 else {}
    rank = known.get("NODE_RANK", "0")
    if not (rank.isdecimal() and int(rank) < nodes):
        raise RecipeError(f"NODE_RANK={rank}; of {nodes} nodes it is a whole number from 0 to {nodes - 1}")
    return known


def check_launchable(launch: Launch, nodes: int) -> None:
    """Raise RecipeError if the run cannot be started here: llamafactory-cli is missing, or one of several nodes does
    not know its rank or where to meet. With RDZV_ID LLaMA-Factory's launcher starts torchrun elastically, and nodes
    take their ranks when they meet (launcher.py)."""
    if shutil.which("llamafactory-cli") is None:
        if find_installed().versions(["llamafactory"]):
            raise RecipeError("llamafactory-cli is not on PATH; activate the environment that it is installed in")
        release = launch.run.releases.required_pairs[0][0]
        raise RecipeError(f"llamafactory-cli is not installed here: pip install llamafactory=={release}")
    known = rendezvous_env(nodes)
    elastic = launch.launcher != "accelerate" and "RDZV_ID" in os.environ
    if nodes > 1 and "NODE_RANK" not in known and not elastic:
        rank = " (RANK is set, but LLaMA-Factory reads NODE_RANK)" if "RANK" in os.environ else ""
        needed = f"a run on {nodes} nodes needs NODE_RANK and MASTER_ADDR in the environment{rank}"
        raise RecipeError(f"{needed}; `lmf-recipes submit` has a scheduler start all nodes")
    if nodes > 1 and "MASTER_ADDR" not in known:
        raise RecipeError(f"a run on {nodes} nodes needs MASTER_ADDR, the address of node 0, in the environment")


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
                own = "set another folder for this run: output_dir=DIR"
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
        """Return the exit code; None while the trainer runs."""
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


def run_training(prepared: LocalLaunch, grace: float | None = None, lock: int | None = None) -> int:
    """Run the recipe and return the exit code; 128 + n if signal n ended it within `grace` seconds, by default the
    longest time to write a checkpoint, and a minute. Raises RecipeError as `check_can_start` does."""
    check_can_start(prepared)
    if grace is None:
        grace = training_time.checkpoint_write_seconds(prepared.launch.run) + SHUTDOWN_SECONDS
    return run_supervised(prepared.process, grace, prepared.output, lock)


def check_can_start(prepared: LocalLaunch) -> None:
    """Raise RecipeError if the packages installed here are not of the recipe's releases, or if this machine cannot
    start it."""
    run = prepared.launch.run
    for problem in run.releases.excluded(find_installed().versions(releases.RELEASE_FIELDS)):
        raise RecipeError(problem)
    check_launchable(prepared.launch, prepared.launch.nodes)
