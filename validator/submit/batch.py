"""The body of a batch script of SLURM: what the first node does, and what each node does."""

from __future__ import annotations

from validator.quoting import join
from validator.submit import node, shell
from validator.submit.site import Slurm
from validator.submit.work import Work
from validator.train import environment


def meeting(work: Work) -> list[str]:
    """Where the nodes meet. Jobs on one node do not meet at one port; ports from 32768 are given away by the kernel."""
    address = [*environment.reach(), *shell.script("address")] if work.nodes > 1 else ["address=127.0.0.1"]
    port = "$((10000 + SLURM_JOB_ID % 20000))"
    return [
        *address,
        f"export RDZV_ID=$SLURM_JOB_ID MASTER_ADDR=$address MASTER_PORT={port}",
        *shell.launcher(work),
    ]


def left(work: Work) -> list[str]:
    """What earlier starts have left: put in order, and gone on from. On nodes with folders of their own each does the
    first for itself."""
    if not work.resumes:
        return []
    again = 'if [ -n "$before" ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then arguments+=("${resuming[@]}"); fi'
    return [*(() if work.local else _order(work)), "before=$(newest)", *([again] if work.resuming else ())]


def _order(work: Work) -> list[str]:
    return [*(shell.script("earlier") if work.overwrites else ()), *shell.set_aside(), "set_aside"]


def requeue(work: Work, notice: int) -> list[str]:
    """How the job is queued again: after a failure, or before its limit, of which SLURM gives so many seconds
    notice."""
    if not work.resumes:
        return []
    what = "# Before the limit, and where the training fails, the job is queued again"
    return [what, f"notice={notice}", *shell.script("requeue")]


def each(work: Work) -> list[str]:
    """What each node does, as a text for its bash."""
    shared = shell.script("shared") if work.nodes > 1 and not work.local else ['rm -f "$output/.$RDZV_ID-$NODE_RANK"']
    lines = [
        "set -euo pipefail",
        *shell.script("linger"),
        'NODE_RANK=$SLURM_NODEID arguments=("$@")',
        *shell.script("seen"),
        *shared,
        *(_order(work) if work.local and work.resumes else ()),
        *node.setup(work),
        f"command -v {work.starter[0]} >/dev/null ||",
        f'  fail "{work.starter[0]} is not in the path of $SLURMD_NODENAME; setup in the site file takes lines for it"',
        *node.examine(work),
        f"exec {node.start(work)}",
    ]
    return ["# What each node does", "read -r -d '' node <<'NODE' || true", *lines, "NODE"]


def start(work: Work, slurm: Slurm) -> list[str]:
    """Start the nodes, wait for them, and end as they do."""
    options = ["--kill-on-bad-exit=1", *(["--label"] if work.nodes > 1 else []), *_container(work, slurm)]
    return [
        *(shell.script("npus") if _takes_part(work) else ()),
        "# srun does not take the number of CPUs from the job by itself (SLURM 22.05 and later)",
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"',
        f'srun {join(options)} bash -c "$node" node "${{arguments[@]}}" &',
        *shell.script("wait"),
        *(shell.script("failed") if work.resumes else ()),
        'exit "$code"',
    ]


def _container(work: Work, slurm: Slurm) -> list[str]:
    """Options of pyxis. Devices of some vendors are mounted by name: all that a server has, of which SLURM leaves the
    job its own."""
    if not slurm.container:
        return []
    vendor = environment.mounts(work.device, work.device.server_devices or work.devices, work.nodes)
    mounts = [*slurm.mounts, *(f"{path}:{path}" for path in (*vendor.devices, *vendor.files))]
    return [f"--container-image={slurm.container}", *([f"--container-mounts={','.join(mounts)}"] if mounts else [])]


def _takes_part(work: Work) -> bool:
    return work.device.vendor == "ascend" and work.devices < work.device.server_devices
