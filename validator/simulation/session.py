"""Runs the simulations of one command. Answers come from the user's cache folder, or from a child process that is
started for the first simulation. The number of simulations is limited, and the process ends with the session."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from validator import __version__, processes
from validator.errors import RecipeError
from validator.recipe import atomic_write, known_folders, safe_read
from validator.simulation.simulated_memory import DECISIVE_PACKAGES, SimulatedStep, step_from_json
from validator.simulation.simulation_request import SimulationRequest

_REQUIRED_PACKAGES = ("torch", "transformers", "peft", "llamafactory")
# Seconds for one answer; the first one waits for the imports, too.
ANSWER_TIMEOUT_SECONDS = 600
# The child process imports nothing from the working folder, where Python looks first by default, and asks no hub for
# anything; more threads would not make fake tensors faster.
_CHILD_ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def missing_packages() -> list[str]:
    """Return the packages that simulations need and that are not installed. The check imports no package."""
    return [name for name in _REQUIRED_PACKAGES if find_spec(name) is None]


def installed_releases(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed release of each of these packages, without importing them. Packages that are not installed
    are left out."""
    releases = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            releases[package] = version(package)
    return releases


def cached_step_path(request: SimulationRequest, releases: Mapping[str, str]) -> Path:
    """Return the path of the cached answer to a request. The path depends on the request, the releases of the packages,
    and the release of this program. If the user has no home folder, the path is below /dev/null, where nothing can be
    read or written."""
    key = json.dumps([asdict(request), dict(releases), __version__], sort_keys=True, default=str)
    base = known_folders.user_folder("XDG_CACHE_HOME", ".cache") or Path(os.devnull)
    return base / "lmf-recipes" / "simulations" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def read_cached_step(path: Path) -> SimulatedStep | None:
    """Read a cached simulation result. Return None if the file is missing or not usable."""
    try:
        return step_from_json(safe_read.read_json(str(path)))
    except (RecipeError, ValueError, KeyError, TypeError, AttributeError):
        return None


class SimulatorProcess:
    """A child process that answers simulation requests one after another."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._mine, theirs = context.Pipe()
        self._process = context.Process(target=_serve_requests, args=(theirs,), daemon=True)
        own_environment = dict(os.environ)
        os.environ.update(_CHILD_ENVIRONMENT)
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(own_environment)
        theirs.close()

    def ask(self, request: SimulationRequest) -> SimulatedStep:
        """Send a request to the process and return the answer. Raises RecipeError with the reason if the simulation
        fails, the process ends, or no answer comes within 600 seconds."""
        try:
            self._mine.send(request)
            if not self._mine.poll(ANSWER_TIMEOUT_SECONDS):
                self.close()
                raise RecipeError(f"is not simulated: no answer within {ANSWER_TIMEOUT_SECONDS} seconds")
            answer = self._mine.recv()
        except (EOFError, OSError):
            self._process.join()
            killed = self._process.exitcode == -signal.SIGKILL
            end = "was killed; is there memory for it?" if killed else f"ended with exit code {self._process.exitcode}"
            raise RecipeError(f"is not simulated: the process {end}") from None
        if not isinstance(answer, SimulatedStep):
            raise RecipeError(f"is not simulated: {answer}")
        return answer

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self._mine.close()
        self._process.kill()
        self._process.join()


def _serve_requests(connection: Connection) -> None:
    """Answer requests in the child process until the parent closes the connection. Output of libraries is discarded,
    because standard output belongs to the parent."""
    processes.die_with_parent()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            from . import worker  # torch and LLaMA-Factory, which only this process imports

            connection.send(worker.simulate_step(request))
        except (Exception, SystemExit) as err:  # also of a package that cannot be imported
            first = (str(err).strip() or repr(err)).splitlines()[0]
            connection.send(f"{type(err).__name__}: {first}"[:300])


class SimulationSession:
    """The simulations of one command and their allowance. `tell` is called with progress messages. `more` is the number
    of simulations that a run may need beyond its first two sequence lengths; cached answers do not count. `made` counts
    the simulations so far. `spent` is true if a simulation was refused because the allowance was used up."""

    def __init__(self, tell: Callable[[str], None], more: int = 0) -> None:
        self.tell, self._more, self._left = tell, more, 0
        self.made, self.spent = 0, False
        self._releases = installed_releases(DECISIVE_PACKAGES)
        self._answers: dict[Path, SimulatedStep | RecipeError] = {}
        self._simulator: SimulatorProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None,
                 _trace: TracebackType | None) -> None:  # fmt: skip
        self._end()

    def begin(self) -> None:
        """Reset the allowance for a new run: two simulations for its sequence lengths, plus `more` for variants of the
        run."""
        self._left = self._more + 2

    def answer(self, request: SimulationRequest, simulate: bool = True) -> SimulatedStep:
        """Return the answer to a request from this session, from the cache, or from a new simulation. If `simulate` is
        false, only answers of this session are returned. Raises RecipeError with the reason if the simulation fails, or
        if no further simulation is allowed."""
        path = cached_step_path(request, self._releases)
        if path not in self._answers and simulate:
            self._answers[path] = read_cached_step(path) or self._simulated(request, path)
        answer = self._answers.get(path) or _not_allowed()
        if isinstance(answer, RecipeError):
            raise answer
        return answer

    def _simulated(self, request: SimulationRequest, path: Path) -> SimulatedStep | RecipeError:
        """Simulate the request, write the answer to the cache and return it. If the simulation fails, end the child
        process and return the error. If the allowance is used up, return an error without a simulation."""
        if not self._left:
            self.spent = True
            return _not_allowed()
        self._left, self.made = self._left - 1, self.made + 1
        self.tell(f"simulating a `{request.model.get('model_type')}` model, {request.summary}; this takes seconds …")
        started = time.monotonic()
        try:
            self._simulator = self._simulator or SimulatorProcess()
            answer = self._simulator.ask(request)
        except RecipeError as err:
            self._end()
            return err
        self.tell(f"simulated in {time.monotonic() - started:.0f} s")
        with suppress(RecipeError):  # a folder that cannot be written to only costs the next command its time
            atomic_write.make_folder(path.parent)
            atomic_write.replace_file(path, json.dumps(answer._asdict()))
        return answer

    def _end(self) -> None:
        if self._simulator:
            self._simulator.close()
        self._simulator = None


def _not_allowed() -> RecipeError:
    return RecipeError("is not simulated: no further simulation is made")
