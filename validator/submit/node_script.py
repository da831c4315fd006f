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
# All nodes or none: torchrun's own restarts can hang, and pass over what is put in order here
unset MIN_NNODES MAX_NNODES MAX_RESTARTS"""


def script_lines(name: str) -> list[str]:
    """A fixed piece of bash. Variables that it reads are set above it."""
    return node_setup.read_script(_SCRIPT_FOLDER / f"{name}.sh")


def site_setup_lines(site: Site, own: Iterable[str], modules: Iterable[str] = ()) -> list[str]:
    """The site's lines for all engines, and those of one. Those of others seldom bear `set -u`, so that comes after
    them."""
    lines = [*(f"module load {shell_quote(name)}" for name in modules), *site.setup, *own]
    return ["set -eo pipefail", *lines, "set -u"] if lines else ["set -euo pipefail"]


def export_lines(variables: Mapping[str, str]) -> list[str]:
    """Variables for all that is started."""
    return [f"export {name}={shell_quote(value)}" for name, value in variables.items()]


def array_lines(name: str, words: Iterable[str]) -> list[str]:
    """A variable of several words, one in a line."""
    return [f"{name}=(", *(f"  {shell_quote(word)}" for word in words), ")"]


def torchrun_env_lines(work: ClusterJob) -> list[str]:
    """With RDZV_ID, MASTER_ADDR and MASTER_PORT what LLaMA-Factory's launcher reads to start torchrun elastically,
    where nodes meet and take their ranks (launcher.py).

    torchrun starts nothing again by itself, whatever the user's environment says: after the loss of a process the nodes
    wait for each other without end, a node that comes back ends the others (PAR211), and what this script puts in order
    would not be. The engine starts all nodes again. Fewer nodes than were judged are another run (PAR210)."""
    size = f"NNODES={work.nodes} NPROC_PER_NODE={work.devices}"
    return [*_ALL_NODES_OR_NONE.splitlines(), f"export FORCE_TORCHRUN=1 {size}"] if work.torchrun else []


def set_aside_lines() -> list[str]:
    """A function: what is half-written in `output` gets another name, and the run goes on from what was before."""
    return ["# A checkpoint that was being written when the run was stopped gets another name",
            *node_setup.python_function("set_aside", Path(checkpoint_integrity.__file__), '"$output"')]  # fmt: skip


_RENDEZVOUS_VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def node_setup_lines(work: ClusterJob) -> list[str]:
    """What devices and network want. torchrun compares addresses to see which node keeps the store where all meet, and
    none does where the first has several (torch, elastic/rendezvous/utils.py)."""
    host = [
        "# The first node is where they meet, by whatever address",
        'export PET_RDZV_CONF="is_host=$((NODE_RANK == 0))"',
    ]
    lines = node_setup.device_setup_lines(work.device, work.devices, work.nodes)
    return [*lines, *(host if work.torchrun and work.nodes > 1 else ())]


def doctor_lines(work: ClusterJob) -> list[str]:
    """Is this node fit for the run? Where lmf-recipes is installed."""
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
    """What starts the run."""
    words = [f'"${word}"' if word in _RENDEZVOUS_VARIABLES else shell_quote(word) for word in work.starter]
    return " ".join([*words, '"${arguments[@]}"'])


# Switches that keep the hub's libraries to what was downloaded before, which was here and not on a node.
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_KEEP_OUTPUT = "overwrite_output_dir=false"


def build_node_script(
    work: ClusterJob,
    site: Site,
    own: Iterable[str],
    place: Iterable[str],
    limit: float | None = None,
    *,
    first: bool = False,
) -> str:
    """From the site's lines, and the engine's `own` of them, to LLaMA-Factory. `place` sets RDZV_ID and what `node`
    reads. `limit`: hours after which the node ends the run, where its engine would not. `first`: the script is the
    first process of a container, and the one that is told to end."""
    anew = work.overwrites and work.resumes
    start = f"{f'timeout {round(limit * 3600)} ' if limit else ''}{launch_line(work)}"
    lines = [
        *site_setup_lines(site, own),
        "",
        *place,
        *torchrun_env_lines(work),
        *node_setup_lines(work),
        *export_lines(_node_variables(work, site)),
        "",
        f"output={shell_quote(str(work.output))}",
        *array_lines("arguments", [str(work.recipe), *work.overrides, *([_KEEP_OUTPUT] if anew else [])]),
        *doctor_lines(work),
        "",
        *_prepare_output_lines(work, anew),
        *_resume_lines(work, anew),
        *([*script_lines("ending"), f"{start} &", "wait $!"] if first else [f"exec {start}"]),
    ]
    return "".join(f"{line}\n" for line in lines)


def _node_variables(work: ClusterJob, site: Site) -> dict[str, str]:
    """Those of the run, but for switches of this machine."""
    return {
        name: value
        for name, value in work.environment.items()
        if name in site.environment or name not in _OFFLINE_VARIABLES
    }


def _prepare_output_lines(work: ClusterJob, anew: bool) -> list[str]:
    """What earlier starts have left is put in order: by the first node, or by each where each has a folder of its
    own."""
    order = [*(script_lines("anew") if anew else ()), "set_aside"]
    alone = ['if [ "$NODE_RANK" -eq 0 ]; then', *node_setup.indent_lines(order), "fi"]
    return [*set_aside_lines(), *(order if work.local else alone)]


def _resume_lines(work: ClusterJob, anew: bool) -> list[str]:
    """Overrides with which the run goes on from a checkpoint of its own, beside those that it always has."""
    words = [word for word in work.resuming if not (anew and word == _KEEP_OUTPUT)] if work.resumes else []
    own = 'compgen -G "$output/checkpoint-*/trainer_state.json" >/dev/null'
    return [f"if {own}; then arguments+=({shell_join(words)}); fi"] if words else []
