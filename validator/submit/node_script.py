"""The bash script that each node runs, for all schedulers: the set-up of the vendor's devices and the launch of the
run. SkyPilot and Kubernetes start the whole script on each node; SLURM uses parts of the script. Also lists the paths
that a container mounts.

Longer pieces of bash are files in script/. The script works without lmf-recipes on the nodes. Variables that the user,
the image or the site has set are kept."""

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
    """Return the lines of `script/NAME.sh`. Each `@key@` in the file is replaced by the value of that key in `values`,
    and empty lines are left out. The caller sets the bash variables that these lines read in earlier lines of the
    script."""
    text = (_SCRIPT_FOLDER / f"{name}.sh").read_text("utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    return [line for line in text.splitlines() if line]


def _python_function(name: str, file: Path, argument: str) -> list[str]:
    """Return bash lines that define the function `name`, which runs a Python file with one argument. `argument` is this
    argument in bash, such as `"$1"`. The text of the file becomes part of the script. The file may import only Python's
    standard library."""
    text = file.read_text("utf-8").splitlines()
    short = [line for before, line in zip(["", *text], text, strict=False) if before or line]  # no two blank lines
    return [f"{name}() {{", f"  python3 - {argument} <<'PYTHON'", *short, "PYTHON", "}"]


def local_address_lines() -> list[str]:
    """Return bash lines that define the function `reach`. `reach ADDRESS` prints the address that this node uses to
    reach the node at ADDRESS."""
    return _python_function("reach", _SCRIPT_FOLDER / "reach.py", '"$1"')


def quarantine_function_lines() -> list[str]:
    """Return bash lines that define the function `set_aside`, which renames half-written checkpoints in the folder
    `$output`, so that the run continues from an older checkpoint."""
    return ["# A checkpoint that was being written when the run was stopped gets another name",
            *_python_function("set_aside", Path(checkpoint_integrity.__file__), '"$output"')]  # fmt: skip


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


def device_setup_lines(device: Device, count: int = 1, nodes: int = 1) -> list[str]:
    """Return the bash lines that prepare a node's devices and network: limits, the vendor's environment file, P2P
    switches, and with several nodes the addresses. The lines run after the site's set-up and before the run, with or
    without `set -eu`. With several nodes, MASTER_ADDR must be set."""
    needs, lines = node_needs(device), script_lines("limits", max_open_files=MAX_OPEN_FILES)
    if needs.setup:  # the vendor's file appends to variables that may not be set, which `set -u` forbids
        lines += script_lines("vendor", files=" ".join(needs.setup.files), unless=needs.setup.unless)
    if lacks_p2p(device, count, nodes):
        lines += script_lines("peers", driver=P2P_MIN_DRIVER, variables=" ".join(f"{name}=1" for name in P2P_VARIABLES))
    return lines + _own_address_lines(device) if nodes > 1 else lines


_HCCL_ADDRESS = '  if [ -n "${HCCL_SOCKET_IFNAME:-}" ]; then unset HCCL_IF_IP; else export HCCL_IF_IP="$address"; fi'


def _own_address_lines(device: Device) -> list[str]:
    """Return bash lines that tell torchrun, Gloo and HCCL which address and interface of this node reach the first
    node.

    Under an elastic launch the first process announces its host name, which other nodes may not resolve, unless an
    address is set (torch, elastic/rendezvous/api.py; torchrun reads each option from PET_…, too). Gloo, which transfers
    the parameters that FSDP keeps in main memory, uses the address of the host name. HCCL uses the first interface by
    name, which may lead elsewhere on another node (CANN, HCCL_IF_IP). NCCL finds its interface by itself.

    An address in the job's environment belongs to another node and is overwritten. The lines retry for a minute,
    because a container may start before the cluster can resolve the first node's name."""
    own_interface = node_needs(device).collectives == "hccl"
    return [
        "# The address by which this node and the first one meet: names and first interfaces may lead elsewhere",
        *local_address_lines(),
        *script_lines("meet", hccl=_HCCL_ADDRESS if own_interface else ""),
    ]


def node_setup_lines(work: ClusterJob) -> list[str]:
    """Return the bash lines that prepare a node for the run: devices, network and rendezvous. torchrun finds the node
    that hosts the rendezvous store by comparing addresses, which fails if the first node has several (torch,
    elastic/rendezvous/utils.py). The lines therefore state whether this node is the host."""
    lines = device_setup_lines(work.device, work.devices, work.nodes)
    if work.launcher == "torchrun" and work.nodes > 1:
        lines.append("# The first node is where they meet, by whatever address")
        lines.append('export PET_RDZV_CONF="is_host=$((NODE_RANK == 0))"')
    return lines


def torchrun_env_lines(work: ClusterJob) -> list[str]:
    """Return the bash lines that make LLaMA-Factory's launcher start torchrun elastically, so that nodes meet and take
    their ranks (launcher.py). The launcher also reads RDZV_ID, MASTER_ADDR and MASTER_PORT, which other lines set. The
    list is empty for other launchers.

    The lines switch off restarts by torchrun, whatever the user's environment says. After the loss of a process the
    nodes would wait for each other without end, a returning node would end the others (PAR211), and the clean-up of
    this script would be skipped. The scheduler restarts all nodes instead. A run on fewer nodes than predicted would be
    another run (PAR210)."""
    if work.launcher != "torchrun":
        return []
    return [
        "# torchrun must not restart by itself: restarts can hang, and skip the clean-up below",
        "unset MIN_NNODES MAX_NNODES MAX_RESTARTS",
        f"export FORCE_TORCHRUN=1 NNODES={work.nodes} NPROC_PER_NODE={work.devices}",
    ]


def launch_line(work: ClusterJob) -> str:
    """Return the shell command that starts the run, with its arguments from the bash array `arguments`."""
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
    """Return the whole script for one node, from the set-up lines to the launch of LLaMA-Factory.

    `setup` holds the set-up lines for this scheduler. `rendezvous_lines` set RDZV_ID, NODE_RANK, MASTER_ADDR and
    MASTER_PORT. `timeout_h` is the number of hours after which the script itself ends the run (None: the scheduler
    does). `is_pid_1` is true if the script is the first process of a container, which receives SIGTERM."""
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
