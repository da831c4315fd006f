"""The llamafactory-cli command line, and its subprocess. Knows nothing of recipes beyond their path."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from validator.diagnostic import RecipeError

PORT = "29500"
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES"}


def environment(nodes: int, devices: int, engine: bool) -> dict[str, str]:
    """What LLaMA-Factory's launcher must find set (launcher.py): torchrun for several processes, and for a
    DeepSpeed engine even with one; NODE_RANK and MASTER_ADDR differ by node and are the user's to set."""
    if nodes * devices == 1 and not engine:
        return {}
    variables = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(devices)}
    return {**variables, "NNODES": str(nodes)} if nodes > 1 else variables


def commands(recipe: str, overrides: Sequence[str], nodes: int, devices: int, *, engine: bool) -> list[str]:
    """The command for each node, as a shell line."""
    base = environment(nodes, devices, engine)
    words = ["llamafactory-cli", "train", shlex.quote(recipe), *(shlex.quote(text) for text in overrides)]
    lines = []
    for rank in range(nodes):
        more = {"NODE_RANK": str(rank), "MASTER_ADDR": "ADDRESS_OF_NODE_0", "MASTER_PORT": PORT} if nodes > 1 else {}
        lines.append(" ".join([*(f"{key}={value}" for key, value in {**base, **more}.items()), *words]))
    return lines


def visible_devices(vendor: str) -> int | None:
    """How many accelerators this machine shows for the vendor; None where it cannot be told without a driver tool."""
    named = os.environ.get(_VISIBLE.get(vendor, ""))
    if named is not None:
        return sum(part.strip() not in ("", "-1") for part in named.split(","))
    command = {"nvidia": ["nvidia-smi", "-L"], "ascend": ["npu-smi", "info", "-l"]}.get(vendor)
    if command is None or shutil.which(command[0]) is None:
        return None
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return sum(line.startswith(("GPU ", "\tNPU ID", "NPU ID")) for line in shown.splitlines()) or None


def installed(names: Sequence[str]) -> dict[str, str]:
    """Releases of the packages that are installed, without importing them."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in names:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def preflight(nodes: int, devices: int, vendor: str) -> None:
    """Refuse what this machine cannot start. Raises RecipeError with one sentence."""
    if shutil.which("llamafactory-cli") is None:
        raise RecipeError('llamafactory-cli is not installed here; pip install "llamafactory-recipes[train]"')
    if nodes > 1 and "NODE_RANK" not in os.environ:
        rank = " (RANK is set, but LLaMA-Factory reads NODE_RANK)" if "RANK" in os.environ else ""
        raise RecipeError(f"a run on {nodes} nodes needs NODE_RANK and MASTER_ADDR in the environment{rank}")
    if nodes > 1 and "MASTER_ADDR" not in os.environ:
        raise RecipeError(f"a run on {nodes} nodes needs MASTER_ADDR, the address of node 0, in the environment")
    shown = visible_devices(vendor)
    if shown is not None and shown < devices and "NPROC_PER_NODE" not in os.environ:
        raise RecipeError(
            f"the recipe is for {devices} devices, this machine shows {shown}; name another machine in the header "
            "block, or set NPROC_PER_NODE to run it all the same"
        )


def run(recipe: Path, overrides: Sequence[str], variables: Mapping[str, str]) -> int:
    """Hand the recipe to llamafactory-cli, which inherits the terminal. Returns its exit code; 128 + n for signal n."""
    env = {**variables, **os.environ}
    try:
        code = subprocess.run(["llamafactory-cli", "train", str(recipe), *overrides], env=env, check=False).returncode
    except OSError as err:
        raise RecipeError(f"llamafactory-cli cannot be started: {err.strerror}") from None
    return code if code >= 0 else 128 - code
