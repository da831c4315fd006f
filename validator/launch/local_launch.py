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
from validator.run import launch_command
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
from validator.run.settings import RunSettings

_RESULT_NAMES = ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json", "training_loss.png",
            "trainer_log.jsonl")  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """How a run is started. `launcher`: the words before the recipe. `env`: defaults, which the user's own environment
    overrides. `device_env` selects devices and overrides the user's. `host_env`: defaults that depend on this host
    (OMP_NUM_THREADS, NCCL_P2P_DISABLE)."""

    recipe: Path
    overrides: tuple[str, ...]
    env: Mapping[str, str]
    output: Path | None
    launcher: tuple[str, ...] = launch_command.LLAMAFACTORY_CLI
    device_env: Mapping[str, str] = field(default_factory=dict)
    host_env: Mapping[str, str] = field(default_factory=dict)

    @property
    def process(self) -> launch_command.ProcessSpec:
        env = {**self.env, **self.host_env}
        return launch_command.build_process_spec(self.recipe, self.overrides, env, self.launcher, self.device_env)


def build_launch(
    run: RunSettings, overrides: Sequence[str], device_env: Mapping[str, str] = MappingProxyType({})
) -> Launch:
    """Return how the recipe is started here, with overrides that make its paths absolute. Under torchrun
    LLaMA-Factory's launcher splits the command line at spaces: a path with a space is then given from the working
    directory. Raises RecipeError if that has a space, too, or if NNODES is not the run's number of nodes."""
    env = launch_env(run)
    spawns = "NPROC_PER_NODE" in env
    if not (run.accelerate or launch_command.uses_ray()) and (
        spawns or node_environment.is_env_enabled("FORCE_TORCHRUN")
    ):
        launch_command.check_nnodes(nodes_and_devices(run)[0])
    way = unspaced_path if spawns else Path.absolute
    recipe = way(Path(run.workspace.recipe).absolute())
    words = (*overrides, *absolute_path_overrides(run, way))
    spaced = [word for word in (str(recipe), *words) if WHITESPACE.search(word)]
    if spawns and spaced:
        raise RecipeError(f"`{spaced[0]}` holds a space, at which LLaMA-Factory's launcher splits; use a path without")
    output = run.args.get("output_dir")
    folder = safe_read.expand_home(output).absolute() if isinstance(output, str) else None
    host_env = launch_command.omp_threads(run, host.usable_cpus())
    machine = run.machine  # few cards need the driver to be asked
    if machine and launch_command.lacks_p2p(machine.device, machine.devices, machine.nodes):
        driver = nvidia.read_driver()
        host_env |= launch_command.p2p_disable_env(driver.release) if driver else {}
    return Launch(recipe, words, env, folder, launcher_words(run), device_env, host_env)


def result_files(output: Path) -> list[Path]:
    """Return the files in a run's output folder that a user looks for first."""
    return [output / name for name in _RESULT_NAMES if safe_read.path_kind(output / name) == "file"]


def check_launchable(nodes: int, release: str, launcher: Sequence[str] = LLAMAFACTORY_CLI) -> None:
    """Raise RecipeError if the run cannot be started here: llamafactory-cli is missing (`release` is the one to
    install), or one of several nodes does not know its rank or where to meet. With RDZV_ID LLaMA-Factory's launcher
    starts torchrun elastically, and nodes take their ranks when they meet (launcher.py)."""
    if shutil.which("llamafactory-cli") is None:
        if find_installed().versions(["llamafactory"]):
            raise RecipeError("llamafactory-cli is not on PATH; activate the environment that it is installed in")
        raise RecipeError(f"llamafactory-cli is not installed here: pip install llamafactory=={release}")
    known = rendezvous_env(nodes)
    elastic = launcher == LLAMAFACTORY_CLI and "RDZV_ID" in os.environ
    if nodes > 1 and "NODE_RANK" not in known and not elastic:
        rank = " (RANK is set, but LLaMA-Factory reads NODE_RANK)" if "RANK" in os.environ else ""
        needed = f"a run on {nodes} nodes needs NODE_RANK and MASTER_ADDR in the environment{rank}"
        raise RecipeError(f"{needed}; `lmf-recipes submit` has a scheduler start all nodes")
    if nodes > 1 and "MASTER_ADDR" not in known:
        raise RecipeError(f"a run on {nodes} nodes needs MASTER_ADDR, the address of node 0, in the environment")
