"""The body of a batch script: what the first node does, and what each node does."""

from __future__ import annotations

import shlex

from validator.submit import requeue, shell
from validator.submit.site import Slurm
from validator.submit.work import Work
from validator.train import environment

# A name can lead to the loopback address on its own node, be known to SLURM alone, or be that of several nodes.
_ADDRESS = """\
# Nodes meet at the first one, which this is, by the address from which it reaches the second
second=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 2p)
second=$(scontrol show node "$second" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
address=$(python3 - "$second" <<'PYTHON'
import socket, sys
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.connect((sys.argv[1], 9))  # nothing is sent
print(end.getsockname()[0])
PYTHON
)
case $address in 127.*) own=$(hostname -I | cut -d ' ' -f 1) address=${own:-$address} ;; esac"""

_SEEN = """\
tell() { echo "lmf-recipes: $*" >&2; }
fail() { tell "$@"; exit 1; }
[ -r "$recipe" ] || fail "$SLURMD_NODENAME does not see $recipe; put it where all nodes do"
mkdir -p "$output" && touch "$output/.$RDZV_ID-$SLURM_NODEID" || fail "$SLURMD_NODENAME cannot write to $output"
"""

_SHARED = """\
# The first node counts those that write to the same folder; a network file system may show them late
if [ "$SLURM_NODEID" -eq 0 ]; then
  for attempt in {1..30}; do
    seen=$(find "$output" -maxdepth 1 -name ".$RDZV_ID-*" | wc -l)
    [ "$seen" -lt "$SLURM_JOB_NUM_NODES" ] || break
    sleep 2
  done
  rm -f "$output/.$RDZV_ID"-*
  [ "$seen" -ge "$SLURM_JOB_NUM_NODES" ] ||
    fail "$seen of $SLURM_JOB_NUM_NODES nodes share $output; name a folder that all see, or set save_on_each_node: true"
fi"""

_START = """\
training=$!
code=0
wait "$training" || code=$?
# A signal ends the wait, not the training
if [ "$code" -eq $((128 + $(kill -l USR1))) ]; then code=0; wait "$training" || code=$?; fi"""
# SLURM sets a variable for devices called gpu; for others the job has to.
_NUMBERS = """\
# Which NPUs of the node are this job's
numbers=$(scontrol show job -d "$SLURM_JOB_ID" | sed -n 's/.*GRES=npu[^ ]*(IDX:\\([0-9,-]*\\)).*/\\1/p' | head -n 1)
if [ -z "${ASCEND_RT_VISIBLE_DEVICES:-}" ] && [ -n "$numbers" ]; then
  export ASCEND_RT_VISIBLE_DEVICES
  ASCEND_RT_VISIBLE_DEVICES=$(for part in ${numbers//,/ }; do seq "${part%-*}" "${part#*-}"; done | paste -sd,)
fi"""


def meeting(work: Work) -> list[str]:
    """Where the nodes meet. Jobs on one node do not meet at one port."""
    port = "$((10000 + SLURM_JOB_ID % 20000))"
    if work.nodes == 1:
        return shell.meeting(work, "$SLURM_JOB_ID", "127.0.0.1", port)
    return [*_ADDRESS.splitlines(), *shell.meeting(work, "$SLURM_JOB_ID", "$address", port)]


def node(work: Work) -> list[str]:
    """What each node does, as a text for its bash."""
    lines = [
        "set -euo pipefail",
        *_SEEN.splitlines(),
        *(_SHARED.splitlines() if work.nodes > 1 and not work.local else ['rm -f "$output/.$RDZV_ID-$SLURM_NODEID"']),
        *(requeue.order(work) if work.local else ()),
        *environment.setup_lines(work.device, work.devices, work.nodes),
        *(_host() if work.torchrun and work.nodes > 1 else ()),
        f"command -v {work.starter[0]} >/dev/null ||",
        f'  fail "{work.starter[0]} is not in the path of $SLURMD_NODENAME; setup in the site file takes lines for it"',
        *shell.prologue(work, "$@"),
        "exec " + shell.start(work, '"$SLURM_NODEID"', "$@"),
    ]
    return ["# What each node does", "read -r -d '' node <<'NODE' || true", *lines, "NODE"]


def _host() -> list[str]:
    """torchrun compares addresses to see which node keeps the store where all meet, and none does where the first has
    several (torch, elastic/rendezvous/utils.py)."""
    return [
        "# The first node is where they meet, by whatever address",
        'export PET_RDZV_CONF="is_host=$((SLURM_NODEID == 0))"',
    ]


def start(work: Work, slurm: Slurm) -> list[str]:
    """Start the nodes, wait for them, and end as they do."""
    options = ["--kill-on-bad-exit=1", *(["--label"] if work.nodes > 1 else []), *_container(work, slurm)]
    return [
        *(_NUMBERS.splitlines() if _takes_part(work) else ()),
        "# srun does not take the number of CPUs from the job by itself (SLURM 22.05 and later)",
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"',
        f'srun {shlex.join(options)} bash -c "$node" node "${{arguments[@]}}" &',
        *_START.splitlines(),
        *requeue.after(work),
        'exit "$code"',
    ]


def _container(work: Work, slurm: Slurm) -> list[str]:
    """Options of pyxis. Devices of some vendors are mounted by name."""
    if not slurm.container:
        return []
    vendor = environment.mounts(work.device, work.devices, work.nodes)
    mounts = [*slurm.mounts, *(f"{path}:{path}" for path in (*vendor.devices, *vendor.files))]
    return [f"--container-image={slurm.container}", *([f"--container-mounts={','.join(mounts)}"] if mounts else [])]


def _takes_part(work: Work) -> bool:
    return work.device.vendor == "ascend" and work.devices < work.device.server_devices
