"""A run's command line and environment, derived from its settings and the user's environment without a look at this
machine: as shell lines for a person, as words and variables for a process. Answers who starts the processes
(torchrun, accelerate or Ray), what the nodes of a vendor need set, and which overrides lead to the recipe's files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from validator.errors import RecipeError
from validator.escaping import shell_quote
from validator.knowledge import releases
from validator.knowledge.devices import Device
from validator.knowledge.node_environment import node_needs
from validator.knowledge.tables import yaml_table
from validator.recipe.recipe_file import path_override
from validator.run import hub_downloads, launcher
from validator.run.named_paths import InputPath, find_inputs, outputs
from validator.run.prediction import Job

DEFAULT_MASTER_PORT = "29500"
LLAMAFACTORY_CLI = ("llamafactory-cli", "train")
# In a command each stands for its value, which differs by node.
_RENDEZVOUS_VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def torchrun_env(nodes: int, devices: int, engine: bool) -> dict[str, str]:
    """What LLaMA-Factory's launcher must find set (launcher.py): torchrun for several processes, and for a
    DeepSpeed engine even with one; NODE_RANK and MASTER_ADDR differ by node and are the user's to set."""
    if nodes * devices == 1 and not engine:
        return {}
    variables = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(devices)}
    return {**variables, "NNODES": str(nodes)} if nodes > 1 else variables


def accelerate_words(file: str, nodes: int, devices: int) -> tuple[str, ...]:
    """The words that start LLaMA-Factory by `accelerate launch`. All numbers are given, so that those of the file do
    not count (accelerate, commands/launch.py)."""
    rank, address, port = _RENDEZVOUS_VARIABLES
    several = ("--machine_rank", rank, "--main_process_ip", address, "--main_process_port", port) if nodes > 1 else ()
    count = ("--num_processes", str(nodes * devices), "--num_machines", str(nodes))
    return ("accelerate", "launch", "--config_file", file, *count, *several, "-m", "llamafactory.launcher")


def node_commands(
    recipe: str,
    overrides: Sequence[str],
    nodes: int,
    variables: Mapping[str, str],
    starter: Sequence[str] = LLAMAFACTORY_CLI,
    known: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """The command for each node, as a shell line, with these variables before it. llamafactory-cli reads its place
    among the nodes from variables, too. `known` is what `place` tells: with a rank the command of that node alone."""
    lines = []
    for rank in [known["NODE_RANK"]] if "NODE_RANK" in known else range(nodes):
        unknown = dict(zip(_RENDEZVOUS_VARIABLES, (str(rank), "ADDRESS_OF_NODE_0", DEFAULT_MASTER_PORT), strict=True))
        place = {**unknown, **known} if nodes > 1 else {}
        before = {**variables, **place} if starter == LLAMAFACTORY_CLI else variables
        words = map(shell_quote, [*(place.get(word, word) for word in starter), recipe, *overrides])
        lines.append(" ".join([*(f"{key}={_shell_value(value)}" for key, value in before.items()), *words]))
    return lines


def _shell_value(value: str) -> str:
    """A value for the shell, which is to count what stands as an arithmetic expression."""
    return value if value.startswith("$((") else shell_quote(value)


def rendezvous_env(nodes: int) -> dict[str, str]:
    """What the environment tells of this node's place among several. Raises RecipeError where its rank is none."""
    known = {name: os.environ[name] for name in _RENDEZVOUS_VARIABLES if name in os.environ} if nodes > 1 else {}
    rank = known.get("NODE_RANK", "0")
    if not (rank.isdecimal() and int(rank) < nodes):
        raise RecipeError(f"NODE_RANK={rank}; of {nodes} nodes it is a whole number from 0 to {nodes - 1}")
    return known


def check_nnodes(nodes: int) -> None:
    """Raise RecipeError where the environment has another number of nodes, for which torchrun would wait."""
    if (given := os.environ.get("NNODES", str(nodes))) != str(nodes):
        raise RecipeError(f"the environment has NNODES={given}, the run has {nodes}; unset it")


class ProcessSpec(NamedTuple):
    """Words and whole environment of the starter."""

    words: list[str]
    env: dict[str, str]


def build_process_spec(
    recipe: Path,
    overrides: Sequence[str],
    variables: Mapping[str, str],
    starter: Sequence[str] = LLAMAFACTORY_CLI,
    chosen: Mapping[str, str] = MappingProxyType({}),
) -> ProcessSpec:
    """The starter with the recipe. What the user has set wins over `variables`, and `chosen` over both. Nodes
    meet at one port, where LLaMA-Factory would draw one on each."""
    meeting = {"MASTER_PORT": DEFAULT_MASTER_PORT} if "NNODES" in variables else {}
    env = {**meeting, **variables, **os.environ, **chosen}
    place = {name: env.get(name, DEFAULT_MASTER_PORT) for name in _RENDEZVOUS_VARIABLES}
    return ProcessSpec([*(place.get(word, word) for word in starter), str(recipe), *overrides], env)


_OMP_THREADS = "OMP_NUM_THREADS"
# Cards with these words in their name: where a machine has several, accelerate stops even one process with a driver
# before this one, unless both variables are set (accelerate, state.py and utils/environment.py). Later drivers know
# that these cards have no peer access.
_NO_P2P_CARDS, P2P_MIN_DRIVER = "RTX 40", "550.40.07"
P2P_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


def vendor_env(device: Device, nodes: int = 1, wait: float = 0.0) -> dict[str, str]:
    """The environment that every node wants. `wait`: seconds that processes may wait for each other (`ddp_timeout`):
    HCCL ends the wait by its own limit, whatever the process group's is (torch_npu, ProcessGroupHCCL.cpp)."""
    wanted = node_needs(device)
    limits = {}
    if (waiting := wanted.waiting) and wait > waiting.usual:
        limits[waiting.name] = str(int(min(wait, waiting.most or wait)))
    return {**wanted.variables, **(wanted.variables_between if nodes > 1 else {}), **limits}


def omp_threads(job: Job, cores: int | None = None) -> dict[str, str]:
    """Threads for each process of a node with so many cores, where the optimizer's states are in main memory: torchrun
    gives each of several processes one, on which alone the update runs (torch, distributed/run.py). One process has
    all by itself, and a worker of Ray those reserved for it. Without `cores` the node's shell is to count them."""
    processes = job.machine.devices if job.machine else 1
    if processes == 1 or launcher.uses_ray() or not optimizer_runs_on_host(job):
        return {}
    return {_OMP_THREADS: f"$(($(nproc) / {processes}))" if cores is None else str(max(1, cores // processes))}


def optimizer_runs_on_host(job: Job) -> bool:
    """Whether processors update the weights."""
    return bool(job.deepspeed and job.deepspeed.offload("offload_optimizer")) or bool(job.fsdp and job.fsdp.offload)


def p2p_disable_env(driver: str) -> dict[str, str]:
    """What accelerate wants set for peerless cards with this release of the driver."""
    return {} if releases.range_admits(f">={P2P_MIN_DRIVER}", driver) else dict.fromkeys(P2P_VARIABLES, "1")


def lacks_p2p(device: Device, count: int, nodes: int) -> bool:
    """Whether accelerate may ask for the driver's release. It counts the cards of the machine, of which a run may take
    one; nodes with a card each keep InfiniBand."""
    products = yaml_table("devices").get(device.id, {}).get("products", ())
    return (count > 1 or nodes == 1) and any(_NO_P2P_CARDS in product for product in products)


WHITESPACE = re.compile(r"\s")


def nodes_and_devices(job: Job) -> tuple[int, int]:
    """Nodes that a command is started on, and devices of each; one of one where no machine is named. Ray starts the
    processes of the other nodes itself."""
    if job.machine is None:
        return 1, 1
    return 1 if launcher.uses_ray() and not job.accelerate else job.machine.nodes, job.machine.devices


def launch_commands(job: Job, recipe: str, overrides: Sequence[str]) -> list[str]:
    """The command for each node, as a shell line. `recipe` is the path that stands in it."""
    named = str(job.header.get("accelerate"))
    file = named if job.accelerate and Path(named).absolute() == Path(job.accelerate.path).absolute() else None
    return node_commands(recipe, overrides, nodes_and_devices(job)[0], launch_env(job), launcher_words(job, file))


def launch_env(job: Job) -> dict[str, str]:
    return {**_launcher_env(job), **_vendor_env_of_run(job), **omp_threads(job), **hub_downloads.hub_env(job)}


def _launcher_env(job: Job) -> dict[str, str]:
    """What makes LLaMA-Factory start the processes: none for accelerate, which does; torchrun would start Ray in each
    of its own (launcher.py)."""
    if job.accelerate:
        return {}
    return {"USE_RAY": "1"} if launcher.uses_ray() else torchrun_env(*nodes_and_devices(job), job.deepspeed is not None)


def _vendor_env_of_run(job: Job) -> dict[str, str]:
    wait = job.args.number("ddp_timeout") if job.batch.world_size > 1 else 0.0
    return vendor_env(job.machine.device, job.machine.nodes, wait) if job.machine else {}


def launcher_words(job: Job, file: str | None = None) -> tuple[str, ...]:
    """The words before the recipe; `file` is the path of the accelerate file, if it shall not be the whole one."""
    return (
        accelerate_words(file or job.accelerate.path, *nodes_and_devices(job)) if job.accelerate else LLAMAFACTORY_CLI
    )


def path_overrides(job: Job) -> tuple[str, ...]:
    """Overrides that lead from the working directory to what the recipe reads elsewhere, such as beside itself."""
    return tuple(
        _override_of_input(each, unspaced_path)
        for each in find_inputs(job)
        if any(place and place.absolute() != Path(word).absolute() for word, place in each.pairs())
    )


def absolute_path_overrides(job: Job, form: Callable[[Path], Path]) -> Iterator[str]:
    """Yield overrides that name what the recipe reads and writes in this form of its absolute paths. What is read is
    looked for beside the recipe too; what is written goes where the user stands."""
    for each in find_inputs(job):
        if not all(Path(word).is_absolute() for word in each.words):
            yield _override_of_input(each, form)
    for key, path in outputs(job):
        if not path.startswith(("/", "~")):
            yield path_override(key.name, str(form(Path(path).absolute())))


def _override_of_input(named: InputPath, form: Callable[[Path], Path]) -> str:
    words = (str(form(place.absolute())) if place else word for word, place in named.pairs())
    return path_override(named.key.name, ",".join(words))


def unspaced_path(path: Path) -> Path:
    """The path from the working directory, where only that way to it is without a space."""
    here = Path.cwd()
    return path.relative_to(here) if WHITESPACE.search(str(here)) and path.is_relative_to(here) else path
