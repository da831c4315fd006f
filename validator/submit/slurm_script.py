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
    """Seconds before the limit, hours, in which another checkpoint is written; ten minutes where that is not known. No
    more than a third of the time."""
    wanted = 600.0 if work.every is None or math.isinf(work.every) else work.every + work.saving + 60
    return int(min(wanted, limit * SECONDS_PER_HOUR / 3))


# The earliest that SLURM sends a signal, seconds before the limit (sbatch, --signal).
_MAX_NOTICE_SECONDS = 65535
_SITE_OPTIONS = ("partition", "account", "qos", "constraint", "reservation")


def directive_lines(work: ClusterJob, slurm: Slurm, hours: float, several: int = 0) -> list[str]:
    """The lines of a job of at most so many hours; of an array, where it is one of `several`."""
    words = [shell_quote(word) for word in _directives(work, slurm, hours, several)]
    return [f"#SBATCH {word}" for word in (*words, *slurm.options)]


def _directives(work: ClusterJob, slurm: Slurm, hours: float, several: int) -> Iterator[str]:
    yield f"--job-name={work.name}"
    if several:
        yield f"--array=0-{several - 1}"
    yield from (f"--nodes={work.nodes}", "--ntasks-per-node=1")
    if devices := _device_option(work, slurm):
        yield devices
    yield "--exclusive" if slurm.exclusive else f"--cpus-per-task={work.cpus}"
    yield f"--mem={work.memory_gib}G" if work.memory_gib and not slurm.exclusive else "--mem=0"
    yield f"--time={slurm_time(hours)}"
    if work.resumes:
        yield f"--signal=B:USR1@{min(requeue_notice_s(work, hours), _MAX_NOTICE_SECONDS)}"
    yield "--requeue" if work.resumes else "--no-requeue"
    yield from ("--open-mode=append", f"--output={log_path(work, slurm, several)}")
    yield from (f"--{name}={value}" for name in _SITE_OPTIONS if (value := getattr(slurm, name)))


def _device_option(work: ClusterJob, slurm: Slurm) -> str:
    """The site's form, else the name that most sites give to the vendor's devices."""
    if work.device.vendor == "cpu":
        return ""
    form = (slurm.devices or node_needs(work.device).slurm + ":{devices}").replace("{devices}", str(work.devices))
    return form if form.startswith("-") else f"--gres={form}"


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
    """Where the nodes meet. Jobs on one node do not meet at one port; ports from 32768 are given away by the kernel."""
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


def prepare_output_lines(work: ClusterJob) -> list[str]:
    """What earlier starts have left: put in order, and gone on from. On nodes with folders of their own each does the
    first for itself."""
    if not work.resumes:
        return []
    again = 'if [ -n "$before" ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then arguments+=("${resuming[@]}"); fi'
    return [*(() if work.local else _clean_up_lines(work)), "before=$(newest)", *([again] if work.resuming else ())]


def _clean_up_lines(work: ClusterJob) -> list[str]:
    return [
        *(node_script.script_lines("earlier") if work.overwrites else ()),
        *node_script.set_aside_lines(),
        "set_aside",
    ]


def requeue_lines(work: ClusterJob, notice: int) -> list[str]:
    """How the job is queued again: after a failure, or before its limit, of which SLURM gives so many seconds
    notice."""
    if not work.resumes:
        return []
    what = "# Before the limit, and where the training fails, the job is queued again"
    return [what, f"notice={notice}", *node_script.script_lines("requeue")]


def node_lines(work: ClusterJob) -> list[str]:
    """What each node does, as a text for its bash."""
    shared = (
        node_script.script_lines("shared")
        if work.nodes > 1 and not work.local
        else ['rm -f "$output/.$RDZV_ID-$NODE_RANK"']
    )
    lines = [
        "set -euo pipefail",
        *node_script.script_lines("linger"),
        'NODE_RANK=$SLURM_NODEID arguments=("$@")',
        *node_script.script_lines("seen"),
        *shared,
        *(_clean_up_lines(work) if work.local and work.resumes else ()),
        *node_script.node_setup_lines(work),
        f"command -v {work.starter[0]} >/dev/null ||",
        f'  fail "{work.starter[0]} is not in the path of $SLURMD_NODENAME; setup in the site file takes lines for it"',
        *node_script.doctor_lines(work),
        f"exec {node_script.launch_line(work)}",
    ]
    return ["# What each node does", "read -r -d '' node <<'NODE' || true", *lines, "NODE"]


def srun_lines(work: ClusterJob, slurm: Slurm) -> list[str]:
    """Start the nodes, wait for them, and end as they do."""
    options = ["--kill-on-bad-exit=1", *(["--label"] if work.nodes > 1 else []), *_container_options(work, slurm)]
    return [
        *(node_script.script_lines("npus") if _takes_part_of_server(work) else ()),
        "# srun does not take the number of CPUs from the job by itself (SLURM 22.05 and later)",
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"',
        f'srun {shell_join(options)} bash -c "$node" node "${{arguments[@]}}" &',
        *node_script.script_lines("wait"),
        *(node_script.script_lines("failed") if work.resumes else ()),
        'exit "$code"',
    ]


def _container_options(work: ClusterJob, slurm: Slurm) -> list[str]:
    """Options of pyxis. Devices of some vendors are mounted by name: all that a server has, of which SLURM leaves the
    job its own."""
    if not slurm.container:
        return []
    vendor = node_setup.container_mounts(work.device, work.device.server_devices or work.devices, work.nodes)
    mounts = [*slurm.mounts, *(f"{path}:{path}" for path in (*vendor.devices, *vendor.files))]
    return [f"--container-image={slurm.container}", *([f"--container-mounts={','.join(mounts)}"] if mounts else [])]


def _takes_part_of_server(work: ClusterJob) -> bool:
    return work.device.vendor == "ascend" and work.devices < work.device.server_devices
