"""The bash that each node runs, shared by all schedulers: set-up by the vendor of the devices, the launch of the run,
and the whole script where a scheduler starts one on each node (SkyPilot, Kubernetes); and what a container mounts.

Longer pieces are files in script/. Nodes need not have lmf-recipes. Settings of the user, the image or the site win."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from validator.escaping import shell_join, shell_quote
from validator.knowledge.devices import Device
from validator.knowledge.node_environment import MAX_OPEN_FILES, node_needs
from validator.run import checkpoint_integrity
from validator.run.launch_command import P2P_MIN_DRIVER, P2P_VARIABLES, RENDEZVOUS_VARIABLES, lacks_p2p
from validator.submit.cluster_job import ClusterJob
from validator.submit.site_file import Site

_SCRIPT_FOLDER = Path(__file__).parent / "script"


def script_lines(name: str, **values: object) -> list[str]:
    """Return the lines of a file in script/, with each value in place of its name between two @. A line that becomes
    empty is left out. The bash variables that the file reads are set above it."""
    text = (_SCRIPT_FOLDER / f"{name}.sh").read_text("utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    return [line for line in text.splitlines() if line]


def _python_function(name: str, file: Path, argument: str) -> list[str]:
    """Return a bash function that runs a Python file with an argument. The file uses Python's standard library only."""
    text = file.read_text("utf-8").splitlines()
    short = [line for before, line in zip(["", *text], text, strict=False) if before or line]  # no two blank lines
    return [f"{name}() {{", f"  python3 - {argument} <<'PYTHON'", *short, "PYTHON", "}"]


def local_address_lines() -> list[str]:
    """Return a bash function that prints the address by which this node reaches another one."""
    return _python_function("reach", _SCRIPT_FOLDER / "reach.py", '"$1"')


def quarantine_function_lines() -> list[str]:
    """Return a bash function that renames half-written checkpoints in `output`, so that the run goes on from an older
    one."""
    return ["# A checkpoint that was being written when the run was stopped gets another name",
            *_python_function("set_aside", Path(checkpoint_integrity.__file__), '"$output"')]  # fmt: skip


def indent_lines(block: Iterable[str]) -> list[str]:
    """Return the lines of a block, indented."""
    return [f"  {line}" for line in block]


def export_lines(variables: Mapping[str, str]) -> list[str]:
    """Return lines that set environment variables."""
    return [f"export {name}={shell_quote(value)}" for name, value in variables.items()]


def array_lines(name: str, words: Iterable[str]) -> list[str]:
    """Return lines that set a bash array, one word a line."""
    return [f"{name}=(", *(f"  {shell_quote(word)}" for word in words), ")"]


def site_setup_lines(site: Site, setup: Iterable[str], modules: Iterable[str] = ()) -> list[str]:
    """Return the site's set-up lines for all schedulers, and `setup` for one. They seldom work under `set -u`, so that
    comes after them."""
    lines = [*(f"module load {shell_quote(name)}" for name in modules), *site.setup, *setup]
    return ["set -eo pipefail", *lines, "set -u"] if lines else ["set -euo pipefail"]


class ContainerMounts(NamedTuple):
    """Paths of devices, and of files and folders, that a container takes from its node under the same names."""

    devices: tuple[str, ...]
    files: tuple[str, ...]


def container_mounts(device: Device, count: int, nodes: int = 1) -> ContainerMounts:
    """Return what a container with the first `count` devices mounts where no runtime of the vendor does it."""
    wanted = node_needs(device)
    numbered = (path.format(number) for path in wanted.devices if "{}" in path for number in range(count))
    others = (path for path in wanted.devices if "{}" not in path)
    return ContainerMounts((*numbered, *others), (*wanted.files, *(wanted.files_between if nodes > 1 else ())))


def device_setup_lines(device: Device, count: int = 1, nodes: int = 1) -> list[str]:
    """Return what devices and network need, to run after the site's own lines and before the run. `set -eu` may be on.
    MASTER_ADDR is set where several nodes meet."""
    needs, lines = node_needs(device), script_lines("limits", max_open_files=MAX_OPEN_FILES)
    if needs.setup:  # the vendor's file appends to variables that may not be set, which `set -u` forbids
        lines += script_lines("vendor", files=" ".join(needs.setup.files), unless=needs.setup.unless)
    if lacks_p2p(device, count, nodes):
        lines += script_lines("peers", driver=P2P_MIN_DRIVER, variables=" ".join(f"{name}=1" for name in P2P_VARIABLES))
    return lines + _own_address_lines(device) if nodes > 1 else lines


_HCCL_ADDRESS = '  if [ -n "${HCCL_SOCKET_IFNAME:-}" ]; then unset HCCL_IF_IP; else export HCCL_IF_IP="$address"; fi'


def _own_address_lines(device: Device) -> list[str]:
    """Return lines that tell torchrun, Gloo and HCCL by which address this node and the first one reach each other.

    Under an elastic launch the first process tells the others its node's own name, which they may not know, unless an
    address is given (torch, elastic/rendezvous/api.py; each option of torchrun is read from PET_…, too). Gloo, which
    carries what FSDP keeps in main memory, takes the address that the node's own name has; HCCL the first interface by
    name, which on another node may lead elsewhere (CANN, HCCL_IF_IP). NCCL finds its way by itself. An address that the
    job has brought along is of another node, and does not count. Where a container starts before the cluster knows the
    first node's name, it waits a minute."""
    own_interface = node_needs(device).collectives == "hccl"
    return [
        "# The address by which this node and the first one meet: names and first interfaces may lead elsewhere",
        *local_address_lines(),
        *script_lines("meet", hccl=_HCCL_ADDRESS if own_interface else ""),
    ]


def node_setup_lines(work: ClusterJob) -> list[str]:
    """Return what the run needs of each node. torchrun compares addresses to find the node that keeps the rendezvous
    store, and finds none if the first node has several (torch, elastic/rendezvous/utils.py)."""
    lines = device_setup_lines(work.device, work.devices, work.nodes)
    if work.launcher == "torchrun" and work.nodes > 1:
        lines.append("# The first node is where they meet, by whatever address")
        lines.append('export PET_RDZV_CONF="is_host=$((NODE_RANK == 0))"')
    return lines


def torchrun_env_lines(work: ClusterJob) -> list[str]:
    """Return what LLaMA-Factory's launcher reads, beside RDZV_ID, MASTER_ADDR and MASTER_PORT, to start torchrun
    elastically, so that nodes meet and take their ranks (launcher.py).

    torchrun starts nothing again by itself, whatever the user's environment says: after the loss of a process the nodes
    wait for each other without end, a node that comes back ends the others (PAR211), and what this script puts in order
    would not be. The scheduler starts all nodes again. Fewer nodes than were judged are another run (PAR210)."""
    if work.launcher != "torchrun":
        return []
    return [
        "# torchrun must not restart by itself: restarts can hang, and skip the clean-up below",
        "unset MIN_NNODES MAX_NNODES MAX_RESTARTS",
        f"export FORCE_TORCHRUN=1 NNODES={work.nodes} NPROC_PER_NODE={work.devices}",
    ]


def launch_line(work: ClusterJob) -> str:
    """Return the command that starts the run."""
    words = [f'"${word}"' if word in RENDEZVOUS_VARIABLES else shell_quote(word) for word in work.starter]
    return " ".join([*words, '"${arguments[@]}"'])


# Switches that keep the hub's libraries to what was downloaded before, which was here and not on a node.
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_KEEP_OUTPUT = "overwrite_output_dir=false"


def build_node_script(
    work: ClusterJob,
    site: Site,
    setup: Iterable[str],
    rendezvous_lines: Iterable[str],
    timeout_h: float | None = None,
    *,
    is_pid_1: bool = False,
) -> str:
    """Return the whole script, from the site's lines and the scheduler's `setup` to LLaMA-Factory.

    `rendezvous_lines` set RDZV_ID, NODE_RANK, MASTER_ADDR and MASTER_PORT. `timeout_h`: hours after which the node ends
    the run, where its scheduler would not. `is_pid_1`: the script is the first process of a container, and the one that
    gets SIGTERM."""
    starts_clean = work.discards_old_checkpoints and work.can_resume
    start = f"{f'timeout {round(timeout_h * 3600)} ' if timeout_h else ''}{launch_line(work)}"
    # Switches of this machine do not count for the nodes.
    dropped = {name for name in _OFFLINE_VARIABLES if name not in site.environment}
    variables = {name: value for name, value in work.environment.items() if name not in dropped}
    # What earlier starts have left is put in order by the first node, or by each that has a folder of its own.
    clean_up = [*(script_lines("anew") if starts_clean else ()), "set_aside"]
    if not work.separate_output_dirs:
        clean_up = ['if [ "$NODE_RANK" -eq 0 ]; then', *indent_lines(clean_up), "fi"]
    lines = [
        *site_setup_lines(site, setup),
        "",
        *rendezvous_lines,
        *torchrun_env_lines(work),
        *node_setup_lines(work),
        *export_lines(variables),
        "",
        f"output={shell_quote(str(work.output))}",
        *array_lines("arguments", [str(work.recipe), *work.overrides, *([_KEEP_OUTPUT] if starts_clean else [])]),
        *script_lines("doctor", machine=work.machine),
        "",
        *quarantine_function_lines(),
        *clean_up,
    ]
    resuming = [word for word in work.resume_overrides if not (starts_clean and word == _KEEP_OUTPUT)]
    if work.can_resume and resuming:
        has_checkpoint = 'compgen -G "$output/checkpoint-*/trainer_state.json" >/dev/null'
        lines.append(f"if {has_checkpoint}; then arguments+=({shell_join(resuming)}); fi")
    lines += [*script_lines("ending"), f"{start} &", "wait $!"] if is_pid_1 else [f"exec {start}"]
    return "".join(f"{line}\n" for line in lines)
