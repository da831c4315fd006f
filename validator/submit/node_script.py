"""What schedulers share of a job on a node: the set-up lines, the environment, and the options of the program that runs
the job there (`validator.on_node`). SkyPilot and Kubernetes start the whole script on each node; SLURM uses parts of
the script. Also lists the paths that a container mounts. Nodes need no lmf-recipes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from validator import on_node
from validator.escaping import shell_quote
from validator.knowledge.devices import Device
from validator.knowledge.node_environment import MAX_OPEN_FILES, node_needs
from validator.recipe import atomic_write, safe_read
from validator.run.launch_command import P2P_MIN_DRIVER, P2P_VARIABLES, lacks_p2p
from validator.submit.cluster_job import ClusterJob
from validator.submit.site_file import Site

_SCRIPT_FOLDER = Path(__file__).parent / "script"


def script_lines(name: str) -> list[str]:
    """Return the lines of `script/NAME.sh`, without empty ones."""
    text = (_SCRIPT_FOLDER / f"{name}.sh").read_text("utf-8")
    return [line for line in text.splitlines() if line]


def indent_lines(block: Iterable[str]) -> list[str]:
    """Return the lines with an indent of two spaces."""
    return [f"  {line}" for line in block]


def export_lines(variables: Mapping[str, str]) -> list[str]:
    """Return bash lines that export these environment variables."""
    return [f"export {name}={shell_quote(value)}" for name, value in variables.items()]


def array_lines(name: str, words: Iterable[str]) -> list[str]:
    """Return bash lines that set the array `name` to these words, one word on each line."""
    return [f"{name}=(", *(f"  {shell_quote(word)}" for word in words), ")"]


def site_setup_lines(site: Site, setup: Iterable[str], modules: Iterable[str] = ()) -> list[str]:
    """Return the set-up lines of the site file: first `module load` for each of `modules`, then the lines for all
    schedulers, then `setup`, the lines for this scheduler. `set -u` comes after these lines, because site set-up often
    reads unset variables."""
    lines = [*(f"module load {shell_quote(name)}" for name in modules), *site.setup, *setup]
    return ["set -eo pipefail", *lines, "set -u"] if lines else ["set -euo pipefail"]


class ContainerMounts(NamedTuple):
    """Paths that a container mounts from its node under the same names: `devices` are device files, `files` are other
    files and folders."""

    devices: tuple[str, ...]
    files: tuple[str, ...]


def container_mounts(device: Device, count: int, nodes: int = 1) -> ContainerMounts:
    """Return the device files and driver files that a container with the first `count` devices must mount; with several
    nodes (`nodes`), also the files for communication between nodes. The result is empty if the vendor's container
    runtime mounts all of these."""
    needs = node_needs(device)
    numbered_paths = (path.format(number) for path in needs.devices if "{}" in path for number in range(count))
    unnumbered_paths = (path for path in needs.devices if "{}" not in path)
    return ContainerMounts(
        (*numbered_paths, *unnumbered_paths), (*needs.files, *(needs.files_between if nodes > 1 else ()))
    )


def program_folder() -> Path:
    """Return the folder of the program that runs a job on its nodes."""
    return Path(on_node.__file__).parent


@cache
def program_files() -> Mapping[str, str]:
    """Return the text of each file of the program that runs a job on its nodes."""
    return {file.name: file.read_text("utf-8") for file in sorted(safe_read.glob_folder(program_folder(), "*.py"))}


def program_name() -> str:
    """Return the name of the folder with the program of a job. A job keeps the program that it was submitted with, so
    the name has a hash of the content."""
    return f"job_{hashlib.sha256(repr(program_files()).encode()).hexdigest()[:8]}"


def write_program(folder: Path) -> bool:
    """Write the program of a job into `folder`, each file of it whole or not at all, as far as it is not there yet.
    Return False if the folder is there already. Raises RecipeError if a file cannot be written."""
    is_new = safe_read.path_kind(folder) is None
    atomic_write.make_folder(folder)
    for name, text in program_files().items():
        if safe_read.path_kind(folder / name) is None:
            atomic_write.replace_file(folder / name, text)
    return is_new


def program_options(work: ClusterJob, engine: str, wait_s: float, notice_s: int = 0) -> list[str]:
    """Return the options of the program of a job (`on_node/main.py`), such as `--recipe=PATH`. `wait_s`: the seconds
    that nodes wait for each other. `notice_s`: the seconds before the time limit at which the scheduler warns."""
    needs = node_needs(work.device)
    options: dict[str, object] = {"engine": engine, "recipe": work.recipe, "output": work.output}
    options |= {"machine": work.machine, "max-open-files": MAX_OPEN_FILES}
    if work.nodes > 1:
        options |= {"nodes": work.nodes, "wait": f"{wait_s:g}"}
    if notice_s and work.can_resume:
        options["notice"] = notice_s
    if needs.setup:
        files = tuple(file.replace("$HOME", "~") for file in needs.setup.files)
        options |= {"vendor-file": files, "vendor-unless": needs.setup.unless}
    if lacks_p2p(work.device, work.devices, work.nodes):
        options |= {"peers-driver": P2P_MIN_DRIVER, "peers-variable": P2P_VARIABLES}
    if work.can_resume and work.resume_overrides:
        options["resuming"] = work.resume_overrides
    flags = {
        "resumes": work.can_resume,
        "anew": work.can_resume and work.discards_old_checkpoints,
        "own-folders": work.separate_output_dirs,
        "hccl": needs.collectives == "hccl" and work.nodes > 1,
        "npus": needs.slurm == "npu" and work.devices < work.device.server_devices,
    }
    pairs = (
        (name, each) for name, value in options.items() for each in (value if isinstance(value, tuple) else (value,))
    )
    return [*(f"--{name}={value}" for name, value in pairs), *(f"--{name}" for name, is_set in flags.items() if is_set)]


def torchrun_env_lines(work: ClusterJob) -> list[str]:
    """Return the bash lines that make LLaMA-Factory's launcher start torchrun elastically, so that nodes meet and take
    their ranks (launcher.py). The launcher also reads RDZV_ID, MASTER_ADDR and MASTER_PORT, which other lines set. The
    list is empty for other launchers.

    The lines switch off restarts by torchrun, whatever the user's environment says. After the loss of a process the
    nodes would wait for each other without end, a returning node would end the others (PAR211), and nothing would be
    cleaned up. The scheduler restarts all nodes instead. A run on fewer nodes than predicted would be
    another run (PAR210)."""
    if work.launcher != "torchrun":
        return []
    return [
        "# torchrun must not restart by itself: restarts can hang, and skip the clean-up of a start",
        "unset MIN_NNODES MAX_NNODES MAX_RESTARTS",
        f"export FORCE_TORCHRUN=1 NNODES={work.nodes} NPROC_PER_NODE={work.devices}",
    ]


def site_export_lines(site: Site) -> list[str]:
    """Return bash lines that export the environment variables of the site file. `$NAME` and `${NAME}` in a value are
    those of the node, as in `PATH: /opt/tools/bin:$PATH`; all else is taken as it is written."""
    expanding = {name: re.sub(r'(["\\`]|\$(?![A-Za-z_{]))', r"\\\1", value) for name, value in site.environment.items()}
    return [f'export {name}="{value}"' for name, value in expanding.items()]


# Switches that keep the hub's libraries to what was downloaded before, which was here and not on a node.
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def build_node_script(
    work: ClusterJob, site: Site, engine: str, program: str, setup: Iterable[str], rendezvous_lines: Iterable[str],
    timeout_h: float | None = None,
) -> str:  # fmt: skip
    """Return the whole script for one node, from the set-up lines to the start of the program of the job, whose folder
    is `program` on the node.

    `engine` is the scheduler, `setup` holds the set-up lines for it. `rendezvous_lines` set RDZV_ID, NODE_RANK,
    MASTER_ADDR and MASTER_PORT. `timeout_h` is the number of hours after which the script itself ends the run (None:
    the scheduler does)."""
    timeout = ["timeout", str(round(timeout_h * 3600))] if timeout_h else []
    words = [*timeout, *work.starter, str(work.recipe), *work.overrides]
    # Switches of this machine do not count for the nodes.
    variables = {name: value for name, value in work.environment.items() if name not in _OFFLINE_VARIABLES}
    lines = [
        *site_setup_lines(site, setup),
        "",
        *rendezvous_lines,
        *torchrun_env_lines(work),
        *export_lines(variables),
        *site_export_lines(site),
        "",
        *array_lines("job", program_options(work, engine, 60 * site.start_wait_minutes)),
        *array_lines("command", words),
        f'exec python3 {shell_quote(program)} node "${{job[@]}}" -- "${{command[@]}}"',
    ]
    return "".join(f"{line}\n" for line in lines)
