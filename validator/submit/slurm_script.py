"""The text of a SLURM batch script: `#SBATCH` lines, rendezvous of the nodes, what each node does, and queueing the
job again before its time limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from validator.escaping import shell_join, shell_quote
from validator.knowledge.node_environment import node_needs
from validator.recipe import safe_read
from validator.submit import node_script, node_setup
from validator.submit.cluster_job import ClusterJob
from validator.submit.site_file import Slurm

SECONDS_PER_HOUR = 3600


def requeue_notice_s(work: ClusterJob, limit: float) -> int:
    """Seconds before the time limit (`limit`, hours) that are enough to write another checkpoint; ten minutes if that
    is not known; a third of the limit at most."""
    wanted = (
        600.0
        if work.checkpoint_interval_s is None or math.isinf(work.checkpoint_interval_s)
        else work.checkpoint_interval_s + work.checkpoint_write_s + 60
    )
    return int(min(wanted, limit * SECONDS_PER_HOUR / 3))


# The earliest that SLURM sends a signal, seconds before the limit (sbatch, --signal).
_MAX_NOTICE_SECONDS = 65535
_SITE_OPTIONS = ("partition", "account", "qos", "constraint", "reservation")


def directive_lines(work: ClusterJob, slurm: Slurm, hours: float, several: int = 0) -> list[str]:
    """Return the `#SBATCH` lines of a job of at most so many hours; `several`: the number of jobs in its array."""
    words = [shell_quote(word) for word in _sbatch_options(work, slurm, hours, several)]
    return [f"#SBATCH {word}" for word in (*words, *slurm.options)]


def _sbatch_options(work: ClusterJob, slurm: Slurm, hours: float, several: int) -> Iterator[str]:
    yield f"--job-name={work.name}"
    if several:
        yield f"--array=0-{several - 1}"
    yield from (f"--nodes={work.nodes}", "--ntasks-per-node=1")
    if resource := node_needs(work.device).slurm:
        # The site's form, else the name that most sites give to the vendor's devices.
        devices = (slurm.devices or f"{resource}:{{devices}}").replace("{devices}", str(work.devices))
        yield devices if devices.startswith("-") else f"--gres={devices}"
    yield "--exclusive" if slurm.exclusive else f"--cpus-per-task={work.cpus}"
    yield f"--mem={work.memory_gib}G" if work.memory_gib and not slurm.exclusive else "--mem=0"
    yield f"--time={slurm_time(hours)}"
    if work.can_resume:
        yield f"--signal=B:USR1@{min(requeue_notice_s(work, hours), _MAX_NOTICE_SECONDS)}"
    yield "--requeue" if work.can_resume else "--no-requeue"
    yield from ("--open-mode=append", f"--output={log_path(work, slurm, several)}")
    yield from (f"--{name}={value}" for name in _SITE_OPTIONS if (value := getattr(slurm, name)))


def slurm_time(hours: float) -> str:
    """Days, hours and minutes as SLURM writes them, rounded up."""
    minutes = max(math.ceil(round(hours * 60, 6)), 1)
    days, rest = divmod(minutes, 24 * 60)
    return (f"{days}-" if days else "") + f"{rest // 60:02}:{rest % 60:02}:00"


def log_path(work: ClusterJob, slurm: Slurm, several: int = 0) -> Path:
    """The file that each job logs to, with SLURM's own signs for its name and number."""
    folder = safe_read.expand_home(slurm.logs).absolute() if slurm.logs else work.output.parent
    return folder / ("%x-%A_%a.out" if several else "%x-%j.out")


def rendezvous_lines(work: ClusterJob) -> list[str]:
    """Return lines that say where the nodes meet. The port depends on the job, as a node may run several; ports from
    32768 on are given away by the kernel."""
    address = (
        [*node_setup.local_address_lines(), *node_script.script_lines("address")]
        if work.nodes > 1
        else ["address=127.0.0.1"]
    )
    port = "$((10000 + SLURM_JOB_ID % 20000))"
    return [
        *address,
        f"export RDZV_ID=$SLURM_JOB_ID MASTER_ADDR=$address MASTER_PORT={port}",
        *node_script.torchrun_env_lines(work),
    ]


_SET_ASIDE_OLD_RESULTS = [
    'if [ "$overwrites" = true ]; then',
    *node_setup.indent_lines(node_script.script_lines("anew")),
    "fi",
]


def clean_up_lines(work: ClusterJob) -> list[str]:
    """Return lines that set aside half-written checkpoints, and what earlier runs left if the recipe discards that."""
    old = _SET_ASIDE_OLD_RESULTS if work.discards_old_checkpoints else []
    return [*old, *node_script.quarantine_function_lines(), "set_aside"]


def resume_lines(work: ClusterJob) -> list[str]:
    """Return lines that put the output folder in order and choose the overrides to resume with. Nodes with output
    folders of their own put them in order themselves."""
    if not work.can_resume:
        return []
    again = 'if [ -n "$before" ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then arguments+=("${resuming[@]}"); fi'
    clean_up = [] if work.separate_output_dirs else clean_up_lines(work)
    return [*clean_up, "before=$(newest)", *([again] if work.resume_overrides else ())]


def requeue_lines(work: ClusterJob, notice: int) -> list[str]:
    """Return lines that queue the job again after a failure, or `notice` seconds before its limit, when SLURM sends a
    signal."""
    if not work.can_resume:
        return []
    what = "# Before the limit, and where the training fails, the job is queued again"
    return [what, f"notice={notice}", *node_script.script_lines("requeue")]


_CHECK_ACCESS = """\
# srun ends all nodes as soon as one fails, and loses what that one has just written
trap 'code=$?; [ "$code" -eq 0 ] || sleep 5' EXIT
NODE_RANK=$SLURM_NODEID arguments=("$@")
tell() { echo "lmf-recipes: $*" >&2; }
fail() { tell "$@"; exit 1; }
[ -r "$recipe" ] || fail "$SLURMD_NODENAME does not see $recipe; put it where all nodes do"
mkdir -p "$output" && touch "$output/.$RDZV_ID-$NODE_RANK" || fail "$SLURMD_NODENAME cannot write to $output\""""


def node_lines(work: ClusterJob) -> list[str]:
    """Return a bash variable that holds the script of each node."""
    shares_folder = work.nodes > 1 and not work.separate_output_dirs
    lines = [
        "set -euo pipefail",
        *_CHECK_ACCESS.splitlines(),
        *(node_script.script_lines("shared") if shares_folder else ['rm -f "$output/.$RDZV_ID-$NODE_RANK"']),
        *(clean_up_lines(work) if work.separate_output_dirs and work.can_resume else ()),
        *node_script.node_setup_lines(work),
        f"command -v {work.starter[0]} >/dev/null ||",
        f'  fail "{work.starter[0]} is not in the path of $SLURMD_NODENAME; setup in the site file takes lines for it"',
        *node_script.doctor_lines(work),
        f"exec {node_script.launch_line(work)}",
    ]
    return ["# What each node does", "read -r -d '' node <<'NODE' || true", *lines, "NODE"]


_WAIT_FOR_TRAINING = """\
training=$!
code=0
wait "$training" || code=$?
# A signal ends the wait, not the training
if [ "$code" -eq $((128 + $(kill -l USR1))) ]; then code=0; wait "$training" || code=$?; fi"""
_REQUEUE_AFTER_FAILURE = """\
# A node that dies ends the training long before SLURM knows of it
if [ "$code" -ne 0 ] && [ "$(newest)" != "$before" ]; then again "the training ended with exit code $code"; fi"""


def srun_lines(work: ClusterJob, slurm: Slurm) -> list[str]:
    """Return lines that start the nodes, wait for them, and end as they do."""
    options = ["--kill-on-bad-exit=1", *(["--label"] if work.nodes > 1 else []), *_container_options(work, slurm)]
    is_part_of_server = node_needs(work.device).slurm == "npu" and work.devices < work.device.server_devices
    return [
        *(node_script.script_lines("npus") if is_part_of_server else ()),
        "# srun does not take the number of CPUs from the job by itself (SLURM 22.05 and later)",
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"',
        f'srun {shell_join(options)} bash -c "$node" node "${{arguments[@]}}" &',
        *_WAIT_FOR_TRAINING.splitlines(),
        *(_REQUEUE_AFTER_FAILURE.splitlines() if work.can_resume else ()),
        'exit "$code"',
    ]


def _container_options(work: ClusterJob, slurm: Slurm) -> list[str]:
    """Return options of pyxis. Some vendors' devices are mounted by name: all of a server, of which SLURM leaves the
    job its own."""
    if not slurm.container:
        return []
    vendor = node_setup.container_mounts(work.device, work.device.server_devices or work.devices, work.nodes)
    mounts = [*slurm.mounts, *(f"{path}:{path}" for path in (*vendor.devices, *vendor.files))]
    return [f"--container-image={slurm.container}", *([f"--container-mounts={','.join(mounts)}"] if mounts else [])]
