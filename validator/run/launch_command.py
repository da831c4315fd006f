"""How a run is started: which processes with which command and environment, or Ray, which USE_RAY puts in the place of
torchrun (llamafactory/train/tuner.py, _ray_training_function)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.escaping import shell_quote
from validator.knowledge import node_environment, releases
from validator.knowledge.devices import Device
from validator.knowledge.node_environment import node_needs
from validator.knowledge.tables import yaml_table
from validator.recipe.recipe_file import path_override
from validator.recipe.safe_read import parse_json

from . import model_files
from .named_paths import InputPath, find_inputs, outputs
from .settings import RunSettings

# Of each device of the whole cluster, however many workers train (train/trainer_utils.py, get_placement_group). That
# Ray waits for them without end was seen with ray 2.60: 10 CPUs on 2, and two times 10 on 19; on 20 they are there.
RAY_CPUS = 10


def uses_ray() -> bool:
    """True if the environment hands the run to Ray."""
    return node_environment.is_env_enabled("USE_RAY")


def ray_workers(run: RunSettings) -> int:
    """Return the number of processes that train."""
    return max(int(run.args.number("ray_num_workers")), 1)


def declared_ray_cpus(run: RunSettings) -> int | None:
    """Return the CPUs that the recipe tells Ray it has; None if Ray counts them itself."""
    count = _ray_init_options(run).get("num_cpus")
    return count if isinstance(count, int) else None


def joins_ray_cluster(run: RunSettings) -> bool:
    """True if the run joins an existing cluster; otherwise Ray starts a cluster for the run on this node."""
    return bool(_ray_init_options(run).get("address") or os.environ.get("RAY_ADDRESS"))


def _ray_init_options(run: RunSettings) -> Mapping[str, Any]:
    """Return the arguments of ray.init, written as a mapping or as JSON text (hparams/training_args.py)."""
    value = run.args.get("ray_init_kwargs")
    if isinstance(value, str):
        with suppress(RecipeError):
            value = parse_json(value)
    return value if isinstance(value, Mapping) else {}


DEFAULT_MASTER_PORT = "29500"
LLAMAFACTORY_CLI = ("llamafactory-cli", "train")
# Names that stand for their values in the words of a command, as the values differ by node.
RENDEZVOUS_VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def torchrun_env(nodes: int, devices: int, engine: bool) -> dict[str, str]:
    """Return the variables that make LLaMA-Factory's launcher start torchrun (launcher.py): for several processes, and
    for a DeepSpeed engine even with one. NODE_RANK and MASTER_ADDR differ by node and are the user's to set."""
    if nodes * devices == 1 and not engine:
        return {}
    variables = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(devices)}
    return {**variables, "NNODES": str(nodes)} if nodes > 1 else variables


def accelerate_words(file: str, nodes: int, devices: int) -> tuple[str, ...]:
    """Return the words that start LLaMA-Factory by `accelerate launch`. All numbers are given, as they override those
    of the file (accelerate, commands/launch.py)."""
    rank, address, port = RENDEZVOUS_VARIABLES
    several = ("--machine_rank", rank, "--main_process_ip", address, "--main_process_port", port) if nodes > 1 else ()
    count = ("--num_processes", str(nodes * devices), "--num_machines", str(nodes))
    return ("accelerate", "launch", "--config_file", file, *count, *several, "-m", "llamafactory.launcher")


def node_commands(
    recipe: str,
    overrides: Sequence[str],
    nodes: int,
    env: Mapping[str, str],
    launcher: Sequence[str] = LLAMAFACTORY_CLI,
    rendezvous: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return a shell line for each node, with the variables of `env` before the command. llamafactory-cli reads its
    rank and where nodes meet from variables, too. `rendezvous` are those that are known; with a rank only that node's
    line."""
    lines = []
    for rank in [rendezvous["NODE_RANK"]] if "NODE_RANK" in rendezvous else range(nodes):
        unknown = dict(zip(RENDEZVOUS_VARIABLES, (str(rank), "ADDRESS_OF_NODE_0", DEFAULT_MASTER_PORT), strict=True))
        place = {**unknown, **rendezvous} if nodes > 1 else {}
        before = {**env, **place} if launcher == LLAMAFACTORY_CLI else env
        words = map(shell_quote, [*(place.get(word, word) for word in launcher), recipe, *overrides])
        lines.append(" ".join([*(f"{key}={_shell_value(value)}" for key, value in before.items()), *words]))
    return lines


def _shell_value(value: str) -> str:
    """Quote a value for the shell, but leave `$((…))` for the shell to compute."""
    return value if value.startswith("$((") else shell_quote(value)


def rendezvous_env(nodes: int) -> dict[str, str]:
    """Return the rank of this node and where nodes meet, as far as the environment says. Raises RecipeError if the rank
    is not one of `nodes`."""
    known = {name: os.environ[name] for name in RENDEZVOUS_VARIABLES if name in os.environ} if nodes > 1 else {}
    rank = known.get("NODE_RANK", "0")
    if not (rank.isdecimal() and int(rank) < nodes):
        raise RecipeError(f"NODE_RANK={rank}; of {nodes} nodes it is a whole number from 0 to {nodes - 1}")
    return known


def check_nnodes(nodes: int) -> None:
    """Raise RecipeError if NNODES is set to another number of nodes, for which torchrun would wait."""
    if (given := os.environ.get("NNODES", str(nodes))) != str(nodes):
        raise RecipeError(f"the environment has NNODES={given}, the run has {nodes}; unset it")


class ProcessSpec(NamedTuple):
    """Words and whole environment of the process that starts a run."""

    words: list[str]
    env: dict[str, str]


def build_process_spec(
    recipe: Path,
    overrides: Sequence[str],
    env: Mapping[str, str],
    launcher: Sequence[str] = LLAMAFACTORY_CLI,
    device_env: Mapping[str, str] = MappingProxyType({}),
) -> ProcessSpec:
    """Return the process that starts the recipe. The user's environment overrides `env`, and `device_env` overrides
    both. MASTER_PORT is set for several nodes, as LLaMA-Factory would draw another port on each."""
    meeting = {"MASTER_PORT": DEFAULT_MASTER_PORT} if "NNODES" in env else {}
    env = {**meeting, **env, **os.environ, **device_env}
    place = {name: env.get(name, DEFAULT_MASTER_PORT) for name in RENDEZVOUS_VARIABLES}
    return ProcessSpec([*(place.get(word, word) for word in launcher), str(recipe), *overrides], env)


_OMP_THREADS = "OMP_NUM_THREADS"
# Cards with these words in their name: where a machine has several, accelerate stops even one process with a driver
# before this one, unless both variables are set (accelerate, state.py and utils/environment.py). Later drivers know
# that these cards have no peer access.
_NO_P2P_CARDS, P2P_MIN_DRIVER = "RTX 40", "550.40.07"
P2P_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


def vendor_env(device: Device, nodes: int = 1, wait: float = 0.0) -> dict[str, str]:
    """Return the environment that every node wants. `wait`: seconds that processes may wait for each other
    (`ddp_timeout`); HCCL ends the wait by its own limit, whatever the process group's is (torch_npu,
    ProcessGroupHCCL.cpp)."""
    wanted = node_needs(device)
    limits = {}
    if (waiting := wanted.waiting) and wait > waiting.usual:
        limits[waiting.name] = str(int(min(wait, waiting.most or wait)))
    return {**wanted.variables, **(wanted.variables_between if nodes > 1 else {}), **limits}


def omp_threads(run: RunSettings, cores: int | None = None) -> dict[str, str]:
    """Return OMP_NUM_THREADS if the optimizer updates the weights in main memory: each process gets its share of the
    node's cores, as torchrun would give each of several processes one thread (torch, distributed/run.py). A single
    process has all cores, and a worker of Ray those reserved for it. Without `cores` the node's shell counts them."""
    processes = run.machine.devices if run.machine else 1
    if processes == 1 or uses_ray() or not optimizer_runs_on_host(run):
        return {}
    return {_OMP_THREADS: f"$(($(nproc) / {processes}))" if cores is None else str(max(1, cores // processes))}


def optimizer_runs_on_host(run: RunSettings) -> bool:
    """Return whether the CPUs update the weights."""
    return bool(run.deepspeed and run.deepspeed.offload("offload_optimizer")) or bool(run.fsdp and run.fsdp.offload)


def p2p_disable_env(driver: str) -> dict[str, str]:
    """Return what accelerate wants set for cards without peer access, by the release of the driver."""
    return {} if releases.range_admits(f">={P2P_MIN_DRIVER}", driver) else dict.fromkeys(P2P_VARIABLES, "1")


def lacks_p2p(device: Device, count: int, nodes: int) -> bool:
    """Return whether accelerate may ask for the driver's release: for some cards, if the machine has several of them,
    of which a run may take one. Nodes with one card each keep InfiniBand."""
    products = yaml_table("devices").get(device.id, {}).get("products", ())
    return (count > 1 or nodes == 1) and any(_NO_P2P_CARDS in product for product in products)


WHITESPACE = re.compile(r"\s")


def nodes_and_devices(run: RunSettings) -> tuple[int, int]:
    """Return the nodes that a command is started on, and the devices of each; (1, 1) if no machine is named. Ray starts
    the processes of other nodes itself."""
    if run.machine is None:
        return 1, 1
    return 1 if uses_ray() and not run.accelerate else run.machine.nodes, run.machine.devices


def launch_commands(run: RunSettings, recipe: str, overrides: Sequence[str]) -> list[str]:
    """Return the command for each node as a shell line. `recipe` is the path that stands in it."""
    named = str(run.header.get("accelerate"))
    file = named if run.accelerate and Path(named).absolute() == Path(run.accelerate.path).absolute() else None
    return node_commands(recipe, overrides, nodes_and_devices(run)[0], launch_env(run), launcher_words(run, file))


def launch_env(run: RunSettings) -> dict[str, str]:
    """Return the variables that a run's processes want, those that differ by host left to the shell."""
    nodes, devices = nodes_and_devices(run)
    start: dict[str, str] = {}
    if not run.accelerate:  # which starts the processes itself; torchrun would start Ray in each of its own
        start = {"USE_RAY": "1"} if uses_ray() else torchrun_env(nodes, devices, run.deepspeed is not None)
    wait = run.args.number("ddp_timeout") if run.batch.world_size > 1 else 0.0
    vendor = vendor_env(run.machine.device, run.machine.nodes, wait) if run.machine else {}
    return {**start, **vendor, **omp_threads(run), **model_files.hub_env(run)}


def launcher_words(run: RunSettings, file: str | None = None) -> tuple[str, ...]:
    """Return the words before the recipe; `file` replaces the path of the accelerate file."""
    return (
        accelerate_words(file or run.accelerate.path, *nodes_and_devices(run)) if run.accelerate else LLAMAFACTORY_CLI
    )


def path_overrides(run: RunSettings) -> tuple[str, ...]:
    """Return overrides that lead from the working directory to files that the recipe finds beside itself."""
    return tuple(
        _override_of_input(each, unspaced_path)
        for each in find_inputs(run)
        if any(place and place.absolute() != Path(word).absolute() for word, place in each.pairs())
    )


def absolute_path_overrides(run: RunSettings, form: Callable[[Path], Path]) -> Iterator[str]:
    """Yield overrides that name what the recipe reads and writes in this form of its absolute paths. What is read is
    looked for beside the recipe too; what is written goes where the user stands."""
    for each in find_inputs(run):
        if not all(Path(word).is_absolute() for word in each.words):
            yield _override_of_input(each, form)
    for key, path in outputs(run):
        if not path.startswith(("/", "~")):
            yield path_override(key.name, str(form(Path(path).absolute())))


def _override_of_input(named: InputPath, form: Callable[[Path], Path]) -> str:
    words = (str(form(place.absolute())) if place else word for word, place in named.pairs())
    return path_override(named.key.name, ",".join(words))


def unspaced_path(path: Path) -> Path:
    """Return the path from the working directory, if only that is free of spaces."""
    here = Path.cwd()
    return path.relative_to(here) if WHITESPACE.search(str(here)) and path.is_relative_to(here) else path
