"""The launch of a run on this machine: its command with absolute paths, the variables that depend on this host,
whether it can start here, and the files that it leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from validator.errors import RecipeError
from validator.knowledge import node_environment
from validator.machine import host, nvidia
from validator.machine.installed_packages import find_installed
from validator.recipe import safe_read
from validator.run import launch_command, launcher
from validator.run.launch_command import (
    LLAMAFACTORY_CLI,
    WHITESPACE,
    absolute_path_overrides,
    launch_env,
    launcher_words,
    nodes_and_devices,
    rendezvous_env,
    unspaced_path,
)
from validator.run.prediction import Job

_RESULT_NAMES = ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json", "training_loss.png",
            "trainer_log.jsonl")  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """What llamafactory-cli gets, or accelerate: `starter` are the words before the recipe. `variables` are added to
    the environment; what the user has set wins, but over `chosen`, which leave the run some of the devices. `counted`
    are those that depend on this machine: what the shell would count, what its driver lacks."""

    recipe: Path
    overrides: tuple[str, ...]
    variables: Mapping[str, str]
    output: Path | None
    starter: tuple[str, ...] = launch_command.LLAMAFACTORY_CLI
    chosen: Mapping[str, str] = field(default_factory=dict)
    counted: Mapping[str, str] = field(default_factory=dict)

    @property
    def process(self) -> launch_command.ProcessSpec:
        variables = {**self.variables, **self.counted}
        return launch_command.build_process_spec(self.recipe, self.overrides, variables, self.starter, self.chosen)


def _host_p2p_env(job: Job) -> dict[str, str]:
    """By the driver of this machine, which is asked for few cards."""
    asked = job.machine is not None and launch_command.lacks_p2p(
        job.machine.device, job.machine.devices, job.machine.nodes
    )
    driver = nvidia.read_driver() if asked else None
    return launch_command.p2p_disable_env(driver.release) if driver else {}


def build_launch(job: Job, overrides: Sequence[str], chosen: Mapping[str, str] = MappingProxyType({})) -> Launch:
    """The recipe as it is, with overrides that make its paths absolute; `chosen` are variables that choose devices.
    Under torchrun LLaMA-Factory's launcher splits the command line at spaces: a path that holds one is then given from
    the working directory. Raises RecipeError where that holds one, too, or the environment names another number of
    nodes."""
    variables = launch_env(job)
    spawns = "NPROC_PER_NODE" in variables
    if not (job.accelerate or launcher.uses_ray()) and (spawns or node_environment.is_env_enabled("FORCE_TORCHRUN")):
        launch_command.check_nnodes(nodes_and_devices(job)[0])
    way = unspaced_path if spawns else Path.absolute
    recipe = way(Path(job.workspace.recipe).absolute())
    words = (*overrides, *absolute_path_overrides(job, way))
    spaced = [word for word in (str(recipe), *words) if WHITESPACE.search(word)]
    if spawns and spaced:
        raise RecipeError(f"`{spaced[0]}` holds a space, at which LLaMA-Factory's launcher splits; use a path without")
    output = job.args.get("output_dir")
    folder = safe_read.expand_home(output).absolute() if isinstance(output, str) else None
    counted = {**launch_command.omp_threads(job, host.usable_cpus()), **_host_p2p_env(job)}
    return Launch(recipe, words, variables, folder, launcher_words(job), chosen, counted)


def result_files(output: Path) -> list[Path]:
    """What a finished run has left in its output folder, of what a user looks for first."""
    return [output / name for name in _RESULT_NAMES if safe_read.path_kind(output / name) == "file"]


def check_launchable(nodes: int, release: str, starter: Sequence[str] = LLAMAFACTORY_CLI) -> None:
    """Refuse what cannot be started here. Raises RecipeError with one sentence; `release` of LLaMA-Factory is the one
    to install.

    With RDZV_ID its launcher starts torchrun elastically, where nodes meet and take their ranks (launcher.py)."""
    if shutil.which("llamafactory-cli") is None:
        if find_installed().versions(["llamafactory"]):
            raise RecipeError("llamafactory-cli is not on PATH; activate the environment that it is installed in")
        raise RecipeError(f"llamafactory-cli is not installed here: pip install llamafactory=={release}")
    known = rendezvous_env(nodes)
    elastic = starter == LLAMAFACTORY_CLI and "RDZV_ID" in os.environ
    if nodes > 1 and "NODE_RANK" not in known and not elastic:
        rank = " (RANK is set, but LLaMA-Factory reads NODE_RANK)" if "RANK" in os.environ else ""
        needed = f"a run on {nodes} nodes needs NODE_RANK and MASTER_ADDR in the environment{rank}"
        raise RecipeError(f"{needed}; `lmf-recipes submit` has a scheduler start all nodes")
    if nodes > 1 and "MASTER_ADDR" not in known:
        raise RecipeError(f"a run on {nodes} nodes needs MASTER_ADDR, the address of node 0, in the environment")
