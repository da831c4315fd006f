"""Launches a run on this machine: builds the command with absolute paths and the environment variables that depend on
this host, and checks whether the run can start here. Locks the output folder, starts the trainer behind a guard, and
passes each signal on once. Also lists the files that the run leaves.

The trainer runs in a session of its own. Otherwise Ctrl-C at the terminal would reach the trainer at the same time as
this program, possibly in the middle of a save. A process group of its own would not be enough: the kernel would stop
the trainer as soon as it reads from the terminal. In its own session the trainer can still write to the terminal and
read from it, because the kernel stops background processes only at their own session's terminal."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO

from validator.errors import RecipeError
from validator.knowledge import releases
from validator.machine import host, nvidia
from validator.machine.installed_packages import InstalledPackages, find_installed
from validator.on_node.output_lock import LockedError, OutputLock, slurm_job, take_lock
from validator.processes import communicate_in_turns, handle_end_signals
from validator.recipe import safe_read
from validator.run import checkpoints, launch_command, needed_packages, training_time
from validator.run.launch_command import RENDEZVOUS_VARIABLES, Launch, ProcessSpec
from validator.run.settings import RunSettings

_RESULT_NAMES = ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json", "training_loss.png",
            "trainer_log.jsonl")  # fmt: skip


@dataclass(frozen=True)
class LocalLaunch:
    """All that is needed to start a run on this machine. `device_env` holds variables that select devices, which
    override the user's environment. `host_env` holds defaults that depend on this host (OMP_NUM_THREADS,
    NCCL_P2P_DISABLE)."""

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
        """Return one shell command for each node. If the environment has NODE_RANK, return the command of that node
        only."""
        env = {**self.launch.env, **self.device_env}
        return self.launch.commands(str(self.recipe), self.overrides, env, rendezvous_env(self.launch.nodes))


def build_launch(
    run: RunSettings, overrides: Sequence[str], device_env: Mapping[str, str] = MappingProxyType({})
) -> LocalLaunch:
    """Return what is needed to start the recipe on this machine. Raises RecipeError if a space in a path would split
    the torchrun command. Also raises RecipeError if NNODES in the environment differs from the run's number of nodes,
    because torchrun would then wait for other nodes."""
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
    """Return those files in a run's output folder that a user looks for first, such as weights and the loss plot."""
    return [output / name for name in _RESULT_NAMES if safe_read.path_kind(output / name) == "file"]


def rendezvous_env(nodes: int) -> dict[str, str]:
    """Return the variables in the environment that tell the rank of this node and the address where nodes meet
    (NODE_RANK, MASTER_ADDR, MASTER_PORT). For one node the result is empty. Raises RecipeError if NODE_RANK is not a
    whole number below `nodes`."""
    variables = {name: os.environ[name] for name in RENDEZVOUS_VARIABLES if name in os.environ} if nodes > 1 else {}
    rank = variables.get("NODE_RANK", "0")
    if not (rank.isdecimal() and int(rank) < nodes):
        raise RecipeError(f"NODE_RANK={rank}; of {nodes} nodes it is a whole number from 0 to {nodes - 1}")
    return variables


def check_launchable(launch: Launch, nodes: int) -> None:
    """Raise RecipeError if the run cannot be started on this machine: llamafactory-cli is missing, or the environment
    of a run on several nodes lacks NODE_RANK or MASTER_ADDR. If RDZV_ID is set, NODE_RANK is not needed:
    LLaMA-Factory's launcher starts torchrun elastically, and nodes take their ranks when they meet (launcher.py)."""
    if shutil.which("llamafactory-cli") is None:
        if find_installed().versions(["llamafactory"]):
            raise RecipeError("llamafactory-cli is not on PATH; activate the environment that it is installed in")
        vendor = launch.run.machine.device.vendor if launch.run.machine else ""
        missing = missing_requirements(launch.run, find_installed())
        remedy = needed_packages.llamafactory_install(vendor, missing)
        raise RecipeError(f"llamafactory-cli is not installed here: {remedy}")
    variables = rendezvous_env(nodes)
    elastic = launch.launcher != "accelerate" and "RDZV_ID" in os.environ
    if nodes > 1 and "NODE_RANK" not in variables and not elastic:
        rank = " (RANK is set, but LLaMA-Factory reads NODE_RANK)" if "RANK" in os.environ else ""
        needed = f"a run on {nodes} nodes needs NODE_RANK and MASTER_ADDR in the environment{rank}"
        raise RecipeError(f"{needed}; `lmf-recipes submit` has a scheduler start all nodes")
    if nodes > 1 and "MASTER_ADDR" not in variables:
        raise RecipeError(f"a run on {nodes} nodes needs MASTER_ADDR, the address of node 0, in the environment")


def missing_requirements(run: RunSettings | None, packages: InstalledPackages) -> list[str]:
    """Return pip requirements for torch, LLaMA-Factory and what else a run would stop without, or, if `run` is None,
    DeepSpeed, as far as these are not installed. Packages that need more than pip are left out."""
    release = run.releases.required_pairs[0][0] if run else releases.newest_pair()[0]
    asked = {"torch": "torch", "llamafactory": f"llamafactory=={release}"}
    if run is None:
        asked["deepspeed"] = f"deepspeed{needed_packages.suitable_releases('deepspeed')}"
    else:
        for each in needed_packages.needed_packages(run):
            is_there = each.module and packages.has_module(each.module)
            if each.dies != needed_packages.NEVER and not each.install and not is_there:
                asked.setdefault(each.package, needed_packages.pip_requirement(each, run))
    installed = packages.versions(asked)
    return [requirement for package, requirement in asked.items() if package not in installed]


@contextmanager
def lock_output_dir(folder: Path, report: Callable[[str], None]) -> Iterator[OutputLock | None]:
    """Create the output folder and lock it against other runs. Yield the lock, which the guard of the trainer keeps as
    well; None if nothing can be written there, which the run itself then reports. `report` is told if the folder was
    left by a run that is gone, or is just being left. Raises RecipeError if another run goes on there."""
    try:
        lock = take_lock(folder, report, slurm_job())
    except LockedError as err:
        raise RecipeError(str(err)) from None
    try:
        yield lock
    finally:
        if lock:
            lock.release()


# The guard sees no folder but that of this package, whatever the variables say.
_GUARD_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from validator.launch.guard import main; main()"
_PACKAGE_PARENT = Path(__file__).parents[2]
# Seconds between two signals that count as two: `timeout --signal=INT` sends each to the process and to its group.
_REPEAT_SECONDS = 0.1


def run_supervised(process: ProcessSpec, grace: float, output: Path, lock: OutputLock | None = None) -> int:
    """Run the trainer at this terminal, and return its exit code, or 128 + n if signal n ended it. After a signal to
    this process the trainer ends within `grace` seconds, but first completes a save into `output` that is in progress.
    `lock` is what `lock_output_dir` yields. Raises RecipeError if the trainer's command is not on PATH."""
    trainer = TrainingProcess(process, grace, output, lock=lock)
    with trainer.forward_signals():
        return trainer.wait()


class TrainingProcess:
    """A trainer that runs behind a guard (see guard.py). The trainer ends within `grace` seconds after a signal, and no
    later than this process. Without `output`, the guard does not wait for a save in progress. `first_signal` is the
    number of the first signal that this process received; 0 if there was none. Raises RecipeError if the trainer's
    command is not on PATH."""

    first_signal = 0

    def __init__(
        self, process: ProcessSpec, grace: float, output: Path | None = None, *, lock: OutputLock | None = None,
        stdout: IO[str] | None = None,
    ) -> None:  # fmt: skip
        name = process.words[0]
        if shutil.which(name, path=process.env.get("PATH", os.defpath)) is None:
            raise RecipeError(f"{name} cannot be started: it is not on PATH")
        read_end, self._commands = os.pipe()
        held = (str(lock.file), lock.token) if lock else ("", "")
        guard_args = [str(read_end), str(grace), str(output or ""), *held]
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-c", _GUARD_CODE, str(_PACKAGE_PARENT), *guard_args, *process.words],
            env=process.env, stdout=stdout, pass_fds=(read_end,), start_new_session=True,
        )  # fmt: skip
        os.close(read_end)

    def send_signal(self, number: int) -> None:
        """Ask the guard to send a signal to the trainer. SIGINT, SIGTERM and SIGHUP end the trainer after a save in
        progress; SIGKILL ends it at once."""
        with suppress(BrokenPipeError):
            os.write(self._commands, bytes([number]))

    def poll(self) -> int | None:
        """Return the exit code; None while the trainer runs."""
        return self._guard.poll()

    def wait(self) -> int:
        """Wait until every process of the trainer has ended, and return the exit code. If the trainer failed and the
        reader of its output has ended, the code is 141 (`NO_READER`)."""
        communicate_in_turns(self._guard)
        os.close(self._commands)
        code = self._guard.returncode
        code = code if code >= 0 else 128 - code
        return NO_READER if 0 < code < 128 and _has_lost_reader() else code

    @contextmanager
    def forward_signals(self) -> Iterator[None]:
        """Within the `with` block, pass the signals that would end this process (SIGINT, SIGTERM, SIGHUP) on to the
        trainer. A second Ctrl-C kills the trainer."""
        came: dict[int, float] = {}

        def end(number: int, _frame: FrameType | None) -> None:
            self.first_signal = self.first_signal or number
            same = time.monotonic() - came.get(number, 0.0) < _REPEAT_SECONDS
            self.send_signal(signal.SIGKILL if number == signal.SIGINT and came and not same else number)
            came.setdefault(number, time.monotonic())

        with handle_end_signals(end):
            yield


# What a shell says of a program that SIGPIPE ended. Python's programs end with 1 or 120 instead.
NO_READER = 141


def _has_lost_reader() -> bool:
    """True if standard output or standard error is a pipe or a socket whose reader has ended."""
    poll = select.poll()
    for stream in (1, 2):
        if not os.isatty(stream):
            poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


# Seconds to end in beside a save: torchrun takes 30 of them where a process does not heed it.
SHUTDOWN_SECONDS = 60.0


def run_training(prepared: LocalLaunch, grace: float | None = None, lock: OutputLock | None = None) -> int:
    """Run llamafactory-cli or accelerate for the recipe. Return its exit code, or 128 + n if signal n ended it. `grace`
    is the number of seconds from a signal until the trainer is killed; by default the longest time to write a
    checkpoint, plus 60 seconds. `lock` is what `lock_output_dir` yields. Ask `check_can_start`
    first."""
    if grace is None:
        grace = training_time.checkpoint_write_seconds(prepared.launch.run) + SHUTDOWN_SECONDS
    return run_supervised(prepared.process, grace, prepared.output, lock)


def check_can_start(prepared: LocalLaunch, nodes: int | None = None) -> None:
    """Raise RecipeError if an installed package is outside the releases that the recipe names, or if this machine
    cannot start the run (llamafactory-cli is missing, or a node's rank or address is unknown). `nodes`: the number of
    nodes that are started; None for those of the run."""
    run = prepared.launch.run
    for problem in run.releases.excluded(find_installed().versions(releases.ALL_FIELDS)):
        raise RecipeError(problem)
    check_launchable(prepared.launch, nodes or prepared.launch.nodes)
