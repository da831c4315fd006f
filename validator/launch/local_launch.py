"""The launch of a run on this machine: its command with absolute paths, the variables that depend on this host,
whether it can start here, and the files that it leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from validator.errors import RecipeError
from validator.machine import host, nvidia
from validator.machine.installed_packages import find_installed
from validator.recipe import safe_read
from validator.run import checkpoints, launch_command
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
