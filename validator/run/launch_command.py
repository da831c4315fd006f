"""How a run is started: the program that starts its processes, the command and environment variables, and whether a
space in a path breaks the command. For Ray, which USE_RAY puts in the place of torchrun (llamafactory/train/tuner.py,
_ray_training_function), also the number of CPUs that it reserves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from validator.errors import RecipeError
from validator.escaping import shell_quote
from validator.knowledge import releases
from validator.knowledge.devices import Device
from validator.knowledge.node_environment import is_env_enabled, node_needs
from validator.knowledge.tables import yaml_table

from . import model_files
from .named_paths import absolute_path_overrides, unspaced_path
from .settings import RunSettings

# Of each device of the whole cluster, however many workers train (train/trainer_utils.py, get_placement_group). That
# Ray waits for them without end was seen with ray 2.60: 10 CPUs on 2, and two times 10 on 19; on 20 they are there.
RAY_CPUS = 10


def uses_ray() -> bool:
    """True if the environment variable USE_RAY makes LLaMA-Factory train with Ray."""
    return is_env_enabled("USE_RAY")


def ray_workers(run: RunSettings) -> int:
    """Return the number of processes that train under Ray (`ray_num_workers`)."""
    return max(int(run.args.number("ray_num_workers")), 1)


def declared_ray_cpus(run: RunSettings) -> int | None:
    """Return the number of CPUs that the recipe declares to Ray (`num_cpus` in `ray_init_kwargs`); None if Ray counts
    the CPUs itself."""
    count = (run.args.mapping("ray_init_kwargs") or {}).get("num_cpus")
    return count if isinstance(count, int) else None


def joins_ray_cluster(run: RunSettings) -> bool:
    """True if Ray joins a cluster that runs already (`address` in the recipe, or RAY_ADDRESS). Otherwise Ray starts a
    cluster for the run on this node."""
    options = run.args.mapping("ray_init_kwargs") or {}
    return bool(options.get("address") or os.environ.get("RAY_ADDRESS"))


Launcher = Literal["python", "torchrun", "accelerate", "ray"]
DEFAULT_MASTER_PORT = "29500"
# In the words of a command these names stand for their values, which differ by node.
RENDEZVOUS_VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_LLAMAFACTORY_CLI = ("llamafactory-cli", "train")
_ACCELERATE_MODULE = "llamafactory.launcher"  # started as a module it trains, and starts nothing


class ProcessSpec(NamedTuple):
    """The process that starts a run: the words of its command line, and its complete environment."""

    words: list[str]
    env: dict[str, str]


@dataclass(frozen=True, eq=False)
class Launch:
    """How a run is started: one command on each of `nodes` nodes, which starts one process for each of the node's
    `devices`."""

    run: RunSettings

    @cached_property
    def launcher(self) -> Launcher:
        """The program that starts the training processes, by the first rule that applies. "accelerate": the recipe's
        header block names an accelerate file. "ray": USE_RAY is set. "torchrun": the run has several processes, or uses
        DeepSpeed, or FORCE_TORCHRUN is set (launcher.py; for DeepSpeed on one device, which stops without it, `env`
        sets FORCE_TORCHRUN). Else "python": llamafactory-cli itself is the one process that trains."""
        if self.run.accelerate:
            return "accelerate"
        if uses_ray():
            return "ray"
        is_single = self.nodes * self.devices == 1 and not self.run.uses_deepspeed
        return "python" if is_single and not is_env_enabled("FORCE_TORCHRUN") else "torchrun"

    @property
    def nodes(self) -> int:
        """Number of nodes on which a user starts the command; 1 if no machine is named. With Ray this is 1, because Ray
        starts the processes of the other nodes itself."""
        starts_ray = uses_ray() and not self.run.accelerate
        return 1 if starts_ray or self.run.machine is None else self.run.machine.nodes

    @property
    def devices(self) -> int:
        """Number of devices of each node; 1 if no machine is named."""
        return self.run.machine.devices if self.run.machine else 1

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command before the recipe. For accelerate they include the numbers of processes and nodes,
        which override those of its file (accelerate, commands/launch.py)."""
        if self.run.accelerate is None:
            return _LLAMAFACTORY_CLI
        rank, address, port = RENDEZVOUS_VARIABLES
        place = ("--machine_rank", rank, "--main_process_ip", address, "--main_process_port", port)
        count = ("--num_processes", str(self.nodes * self.devices), "--num_machines", str(self.nodes))
        numbers = (*count, *(place if self.nodes > 1 else ()))
        return ("accelerate", "launch", "--config_file", self.run.accelerate.path, *numbers, "-m", _ACCELERATE_MODULE)

    @property
    def start_env(self) -> dict[str, str]:
        """The environment variables that tell LLaMA-Factory which launcher to start, with how many processes. NODE_RANK
        and MASTER_ADDR are not included: they differ by node, and the user sets them."""
        if self.launcher == "ray":
            return {"USE_RAY": "1"}
        if self.launcher != "torchrun":
            return {}
        several = {"NNODES": str(self.nodes)} if self.nodes > 1 else {}
        return {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(self.devices), **several}

    def node_env(self, cores: int | None = None) -> dict[str, str]:
        """Return the environment variables that the processes of every node need: those for the vendor of the devices,
        and OMP_NUM_THREADS for an optimizer in main memory. `cores`: CPU cores of a node; None lets the node's shell
        count them."""
        machine = self.run.machine
        wait = self.run.args.number("ddp_timeout") if self.run.batch.world_size > 1 else 0.0
        return {**(vendor_env(machine.device, machine.nodes, wait) if machine else {}), **omp_threads(self.run, cores)}

    @property
    def env(self) -> dict[str, str]:
        """All environment variables that the run's processes need. Values that differ by host are left for the host's
        shell to compute."""
        return {**self.start_env, **self.node_env(), **model_files.hub_env(self.run)}

    def split_problem(self, words: Iterable[str]) -> str | None:
        """Return, as text for a message, which of the words contains a space and so breaks torchrun's command line;
        None if no word does or the run does not start torchrun. LLaMA-Factory joins torchrun's command line with spaces
        and splits it again (launcher.py)."""
        spaced = next((word for word in words if re.search(r"\s", word)), None) if self.launcher == "torchrun" else None
        return spaced and f"`{spaced}` holds a space, at which LLaMA-Factory splits the torchrun command"

    def absolute_words(self, overrides: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
        """Return the recipe's path, and the overrides (`key=value`) of the command line. Overrides that make the
        recipe's own paths absolute are appended. If torchrun is started, a path with a space is written relative to the
        working directory. Raises RecipeError if the relative path has a space, too."""
        form = unspaced_path if self.launcher == "torchrun" else Path.absolute
        recipe = form(Path(self.run.workspace.recipe).absolute())
        words = (*overrides, *absolute_path_overrides(self.run, form))
        if problem := self.split_problem((str(recipe), *words)):
            raise RecipeError(f"{problem}; use a path without")
        return recipe, words

    def commands(
        self,
        recipe: str,
        overrides: Sequence[str],
        env: Mapping[str, str],
        rendezvous: Mapping[str, str] = MappingProxyType({}),
        words: Sequence[str] = (),
    ) -> list[str]:
        """Return a shell line for each node, with the variables of `env` before the command. `rendezvous`: the node's
        rank and the address and port where the nodes meet (RENDEZVOUS_VARIABLES), as far as they are known;
        placeholders stand for the others. If NODE_RANK is known, only the line of that node is returned. `words`: the
        words before the recipe; if empty, `self.words`."""
        lines = []
        for rank in [rendezvous["NODE_RANK"]] if "NODE_RANK" in rendezvous else range(self.nodes):
            unknown = zip(RENDEZVOUS_VARIABLES, (str(rank), "ADDRESS_OF_NODE_0", DEFAULT_MASTER_PORT), strict=True)
            place = {**dict(unknown), **rendezvous} if self.nodes > 1 else {}
            # llamafactory-cli reads its rank and where nodes meet from variables
            before = env if self.launcher == "accelerate" else {**env, **place}
            command_words = (place.get(word, word) for word in words or self.words)
            variables = (f"{key}={_shell_value(value)}" for key, value in before.items())
            lines.append(" ".join([*variables, *map(shell_quote, (*command_words, recipe, *overrides))]))
        return lines

    def printed_commands(self, recipe: str, overrides: Sequence[str]) -> list[str]:
        """Return a shell line for each node as a person would write it. `recipe`: the recipe's path, written into the
        line unchanged. `overrides`: `key=value` words. The accelerate file is written as in the recipe's header block
        if that path is valid from the working directory."""
        accelerate_path, words = str(self.run.header.get("accelerate")), self.words
        if (file := self.run.accelerate) and Path(accelerate_path).absolute() == Path(file.path).absolute():
            words = tuple(accelerate_path if word == file.path else word for word in words)
        return self.commands(recipe, overrides, self.env, words=words)

    def process(
        self,
        recipe: Path,
        overrides: Sequence[str],
        host_env: Mapping[str, str] = MappingProxyType({}),
        device_env: Mapping[str, str] = MappingProxyType({}),
    ) -> ProcessSpec:
        """Return the command line and environment of the process that starts the run. Of a variable that is set several
        times, the last of these values counts: the variables of this launch, `host_env`, the user's environment,
        `device_env`. MASTER_PORT is set if the run has several nodes, because otherwise LLaMA-Factory would draw a
        different port on each node."""
        meeting = {"MASTER_PORT": DEFAULT_MASTER_PORT} if "NNODES" in self.start_env else {}
        env = {**meeting, **self.env, **host_env, **os.environ, **device_env}
        place = {name: env.get(name, DEFAULT_MASTER_PORT) for name in RENDEZVOUS_VARIABLES}
        return ProcessSpec([*(place.get(word, word) for word in self.words), str(recipe), *overrides], env)


def _shell_value(value: str) -> str:
    """Return the value quoted for the shell. An arithmetic expression `$((…))` stays unquoted, so that the shell
    computes it."""
    return value if value.startswith("$((") else shell_quote(value)


# Cards with these words in their name: where a machine has several, accelerate stops even one process with a driver
# before this one, unless both variables are set (accelerate, state.py and utils/environment.py). Later drivers know
# that these cards have no peer access.
_NO_P2P_CARDS, P2P_MIN_DRIVER = "RTX 40", "550.40.07"
P2P_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


def vendor_env(device: Device, nodes: int = 1, wait: float = 0.0) -> dict[str, str]:
    """Return the environment variables that devices of this vendor need on every node. `wait`: seconds that processes
    may wait for each other (`ddp_timeout`). HCCL ends the wait at a limit of its own, whatever the process group's
    timeout is (torch_npu, ProcessGroupHCCL.cpp), so its variable is raised if `wait` is longer than its default."""
    needs = node_needs(device)
    limits = {}
    if (waiting := needs.waiting) and wait > waiting.usual:
        limits[waiting.name] = str(int(min(wait, waiting.most or wait)))
    return {**needs.variables, **(needs.variables_between if nodes > 1 else {}), **limits}


def omp_threads(run: RunSettings, cores: int | None = None) -> dict[str, str]:
    """Return OMP_NUM_THREADS if the optimizer updates weights in main memory; otherwise an empty mapping. Each process
    gets its share of the node's cores, because torchrun would give each of several processes one thread (torch,
    distributed/run.py). A single process has all cores, and a Ray worker the cores that are reserved for it. `cores`:
    cores of the node; None lets the node's shell count them."""
    processes = run.machine.devices if run.machine else 1
    if processes == 1 or uses_ray() or not optimizer_runs_on_host(run):
        return {}
    return {"OMP_NUM_THREADS": f"$(($(nproc) / {processes}))" if cores is None else str(max(1, cores // processes))}


def optimizer_runs_on_host(run: RunSettings) -> bool:
    """Return whether the CPUs update the weights, because DeepSpeed or FSDP offloads the optimizer."""
    return bool(run.deepspeed and run.deepspeed.offload("offload_optimizer")) or bool(run.fsdp and run.fsdp.offload)


def p2p_disable_env(driver: str) -> dict[str, str]:
    """Return the environment variables that accelerate requires for GPUs without peer-to-peer access. Empty if the
    driver's release is new enough to know that these GPUs have no peer-to-peer access."""
    return {} if releases.range_admits(f">={P2P_MIN_DRIVER}", driver) else dict.fromkeys(P2P_VARIABLES, "1")


def lacks_p2p(device: Device, count: int, nodes: int) -> bool:
    """Return whether the device may be a GPU without peer-to-peer access (RTX 40 series), for which accelerate checks
    the driver's release. `count`: devices per node that the run uses. A run on one device of a single node counts, too,
    because the machine may have several devices. Nodes with one GPU each do not count, so that they keep InfiniBand."""
    products = yaml_table("devices").get(device.id, {}).get("products", ())
    return (count > 1 or nodes == 1) and any(_NO_P2P_CARDS in product for product in products)
