"""The bash that each node runs, shared by all schedulers: pieces kept as files in script/, the launch of the run, and
the whole script where a scheduler starts one on each node (SkyPilot, Kubernetes). Nodes need not have lmf-recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from validator.escaping import shell_join, shell_quote
from validator.run import checkpoint_integrity
from validator.submit import node_setup
from validator.submit.cluster_job import ClusterJob
from validator.submit.site_file import Site

_SCRIPT_FOLDER = Path(__file__).parent / "script"

_ALL_NODES_OR_NONE = """\
# torchrun must not restart by itself: restarts can hang, and skip the clean-up below
unset MIN_NNODES MAX_NNODES MAX_RESTARTS"""


def script_lines(name: str) -> list[str]:
    """Return the lines of a file in script/. The variables that it reads are set above it."""
    return node_setup.read_script(_SCRIPT_FOLDER / f"{name}.sh")


def site_setup_lines(site: Site, setup: Iterable[str], modules: Iterable[str] = ()) -> list[str]:
    """Return the site's set-up lines for all schedulers, and `setup` for one. They seldom work under `set -u`, so that
    comes after them."""
    lines = [*(f"module load {shell_quote(name)}" for name in modules), *site.setup, *setup]
    return ["set -eo pipefail", *lines, "set -u"] if lines else ["set -euo pipefail"]


def export_lines(variables: Mapping[str, str]) -> list[str]:
    """Return lines that set environment variables."""
    return [f"export {name}={shell_quote(value)}" for name, value in variables.items()]


def array_lines(name: str, words: Iterable[str]) -> list[str]:
    """Return lines that set a bash array, one word a line."""
    return [f"{name}=(", *(f"  {shell_quote(word)}" for word in words), ")"]


def torchrun_env_lines(work: ClusterJob) -> list[str]:
    """Return what LLaMA-Factory's launcher reads, beside RDZV_ID, MASTER_ADDR and MASTER_PORT, to start torchrun
    elastically, so that nodes meet and take their ranks (launcher.py).

    torchrun starts nothing again by itself, whatever the user's environment says: after the loss of a process the nodes
    wait for each other without end, a node that comes back ends the others (PAR211), and what this script puts in order
    would not be. The engine starts all nodes again. Fewer nodes than were judged are another run (PAR210)."""
    size = f"NNODES={work.nodes} NPROC_PER_NODE={work.devices}"
    return [*_ALL_NODES_OR_NONE.splitlines(), f"export FORCE_TORCHRUN=1 {size}"] if work.torchrun else []


def quarantine_function_lines() -> list[str]:
    """Return a bash function that renames half-written checkpoints in `output`, so that the run goes on from an older
    one."""
    return ["# A checkpoint that was being written when the run was stopped gets another name",
            *node_setup.python_function("set_aside", Path(checkpoint_integrity.__file__), '"$output"')]  # fmt: skip


_RENDEZVOUS_VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def node_setup_lines(work: ClusterJob) -> list[str]:
    """Return what devices and network need. torchrun compares addresses to find the node that keeps the rendezvous
    store, and finds none if the first node has several (torch, elastic/rendezvous/utils.py)."""
    host = [
        "# The first node is where they meet, by whatever address",
        'export PET_RDZV_CONF="is_host=$((NODE_RANK == 0))"',
    ]
    lines = node_setup.device_setup_lines(work.device, work.devices, work.nodes)
    return [*lines, *(host if work.torchrun and work.nodes > 1 else ())]


def doctor_lines(work: ClusterJob) -> list[str]:
    """Return lines that end the job where `lmf-recipes doctor`, if it is installed, finds the node unfit."""
    return [
        "# Is this node fit for the run? The doctor ends with 1 where it is not; any other end is its own",
        "if command -v lmf-recipes >/dev/null; then",
        f'  if lmf-recipes doctor --machine {work.machine} "${{arguments[@]}}"; then code=0; else code=$?; fi',
        '  if [ "$code" -eq 1 ]; then',
        '    echo "lmf-recipes: not started for the errors above; if they are wrong, take doctor out of the job" >&2',
        "    exit 1",
        "  fi",
        "fi",
    ]


def launch_line(work: ClusterJob) -> str:
    """Return the command that starts the run."""
    words = [f'"${word}"' if word in _RENDEZVOUS_VARIABLES else shell_quote(word) for word in work.starter]
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
    variables = {
        name: value
        for name, value in work.environment.items()
        if name in site.environment or name not in _OFFLINE_VARIABLES
    }
    # What earlier starts have left is put in order by the first node, or by each that has a folder of its own.
    clean_up = [*(script_lines("anew") if starts_clean else ()), "set_aside"]
    if not work.separate_output_dirs:
        clean_up = ['if [ "$NODE_RANK" -eq 0 ]; then', *node_setup.indent_lines(clean_up), "fi"]
    resuming = [word for word in work.resume_overrides if not (starts_clean and word == _KEEP_OUTPUT)]
    has_checkpoint = 'compgen -G "$output/checkpoint-*/trainer_state.json" >/dev/null'
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
        *doctor_lines(work),
        "",
        *quarantine_function_lines(),
        *clean_up,
        *(
            [f"if {has_checkpoint}; then arguments+=({shell_join(resuming)}); fi"]
            if work.can_resume and resuming
            else []
        ),
        *([*script_lines("ending"), f"{start} &", "wait $!"] if is_pid_1 else [f"exec {start}"]),
    ]
    return "".join(f"{line}\n" for line in lines)
