"""The command line that starts LLaMA-Factory, and its environment. Knows nothing of recipes beyond their path."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.here.installed import installed
from validator.quoting import quote

PORT = "29500"
CLI = ("llamafactory-cli", "train")
# In a command each stands for its value, which differs by node.
_PLACE = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment(nodes: int, devices: int, engine: bool) -> dict[str, str]:
    """What LLaMA-Factory's launcher must find set (launcher.py): torchrun for several processes, and for a
    DeepSpeed engine even with one; NODE_RANK and MASTER_ADDR differ by node and are the user's to set."""
    if nodes * devices == 1 and not engine:
        return {}
    variables = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(devices)}
    return {**variables, "NNODES": str(nodes)} if nodes > 1 else variables


def accelerate(file: str, nodes: int, devices: int) -> tuple[str, ...]:
    """The words that start LLaMA-Factory by `accelerate launch`. All numbers are given, so that those of the file do
    not count (accelerate, commands/launch.py)."""
    rank, address, port = _PLACE
    several = ("--machine_rank", rank, "--main_process_ip", address, "--main_process_port", port) if nodes > 1 else ()
    count = ("--num_processes", str(nodes * devices), "--num_machines", str(nodes))
    return ("accelerate", "launch", "--config_file", file, *count, *several, "-m", "llamafactory.launcher")


def commands(
    recipe: str,
    overrides: Sequence[str],
    nodes: int,
    variables: Mapping[str, str],
    starter: Sequence[str] = CLI,
    known: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """The command for each node, as a shell line, with these variables before it. llamafactory-cli reads its place
    among the nodes from variables, too. `known` is what `place` tells: with a rank the command of that node alone."""
    lines = []
    for rank in [known["NODE_RANK"]] if "NODE_RANK" in known else range(nodes):
        unknown = dict(zip(_PLACE, (str(rank), "ADDRESS_OF_NODE_0", PORT), strict=True))
        place = {**unknown, **known} if nodes > 1 else {}
        before = {**variables, **place} if starter == CLI else variables
        words = map(quote, [*(place.get(word, word) for word in starter), recipe, *overrides])
        lines.append(" ".join([*(f"{key}={_word(value)}" for key, value in before.items()), *words]))
    return lines


def _word(value: str) -> str:
    """A value for the shell, which is to count what stands as an arithmetic expression."""
    return value if value.startswith("$((") else quote(value)


def place(nodes: int) -> dict[str, str]:
    """What the environment tells of this node's place among several. Raises RecipeError where its rank is none."""
    known = {name: os.environ[name] for name in _PLACE if name in os.environ} if nodes > 1 else {}
    rank = known.get("NODE_RANK", "0")
    if not (rank.isdecimal() and int(rank) < nodes):
        raise RecipeError(f"NODE_RANK={rank}; of {nodes} nodes it is a whole number from 0 to {nodes - 1}")
    return known


def agreed(nodes: int) -> None:
    """Raise RecipeError where the environment has another number of nodes, for which torchrun would wait."""
    if (given := os.environ.get("NNODES", str(nodes))) != str(nodes):
        raise RecipeError(f"the environment has NNODES={given}, the run has {nodes}; unset it")


def ready(nodes: int, release: str, starter: Sequence[str] = CLI) -> None:
    """Refuse what cannot be started here. Raises RecipeError with one sentence; `release` of LLaMA-Factory is the one
    to install.

    With RDZV_ID its launcher starts torchrun elastically, where nodes meet and take their ranks (launcher.py)."""
    if shutil.which("llamafactory-cli") is None:
        if installed().among(["llamafactory"]):
            raise RecipeError("llamafactory-cli is not on PATH; activate the environment that it is installed in")
        raise RecipeError(f"llamafactory-cli is not installed here: pip install llamafactory=={release}")
    known = place(nodes)
    elastic = starter == CLI and "RDZV_ID" in os.environ
    if nodes > 1 and "NODE_RANK" not in known and not elastic:
        rank = " (RANK is set, but LLaMA-Factory reads NODE_RANK)" if "RANK" in os.environ else ""
        needed = f"a run on {nodes} nodes needs NODE_RANK and MASTER_ADDR in the environment{rank}"
        raise RecipeError(f"{needed}; `lmf-recipes submit` has a scheduler start all nodes")
    if nodes > 1 and "MASTER_ADDR" not in known:
        raise RecipeError(f"a run on {nodes} nodes needs MASTER_ADDR, the address of node 0, in the environment")


class Process(NamedTuple):
    """Words and whole environment of the starter."""

    words: list[str]
    env: dict[str, str]


def process(
    recipe: Path,
    overrides: Sequence[str],
    variables: Mapping[str, str],
    starter: Sequence[str] = CLI,
    chosen: Mapping[str, str] = MappingProxyType({}),
) -> Process:
    """The starter with the recipe. What the user has set wins over `variables`, and `chosen` over both. Nodes
    meet at one port, where LLaMA-Factory would draw one on each."""
    meeting = {"MASTER_PORT": PORT} if "NNODES" in variables else {}
    env = {**meeting, **variables, **os.environ, **chosen}
    place = {name: env.get(name, PORT) for name in _PLACE}
    return Process([*(place.get(word, word) for word in starter), str(recipe), *overrides], env)
