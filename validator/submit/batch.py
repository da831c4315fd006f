"""The body of a batch script: what the first node does, what each node does, and what happens before the limit."""

from __future__ import annotations

import shlex

from validator.submit import shell
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

_WORDS = """\
tell() { echo "lmf-recipes: $*" >&2; }
# The step of the last checkpoint that is whole: the Trainer writes this file last
newest() {
  for folder in "$output"/checkpoint-*; do
    if [ -f "$folder/trainer_state.json" ]; then echo "${folder##*-}"; fi
  done | sort -n | tail -n 1
}"""

_ENDING = """\
# Whether the last checkpoint is that of the last step
finished() {
  python3 - "$output/checkpoint-$(newest)/trainer_state.json" 2>/dev/null <<'PYTHON'
import json, sys
state = json.load(open(sys.argv[1]))
sys.exit(state["global_step"] < state["max_steps"])
PYTHON
}
# Seconds between the last two checkpoints, else since the start
apart() {
  stat -c %Y "$output"/checkpoint-*/trainer_state.json | sort -n | tail -n 2 |
    awk -v start="$started" '{ before = last; last = $1 } END { print last - (before > start ? before : start) }'
}
# Queue the job again, which ends it, unless the run has ended or has come no further since this start
again() {
  local last
  last=$(newest)
  if finished; then return; fi
  if [ "$last" = "$before" ]; then
    tell "$1, and no checkpoint was written since this start: not queued again"
    return
  fi
  tell "$1: queued again, to go on from checkpoint-$last (SLURM waits two minutes with that)"
  sleep 10
  scontrol requeue "$SLURM_JOB_ID" && sleep 300
  tell "not queued again; submit it anew, and it goes on from checkpoint-$last"
}
# SLURM tells of the limit so early that another checkpoint is written. After the last that comes before the limit, and
# in any case at the deadline, the job is queued again. The processes get no signal: told to save, they would not all do
# so at the same step.
near() {
  local deadline known now last
  deadline=$(($(date +%s) + NOTICE - 90)) known=$(newest)
  while now=$(date +%s) && [ "$now" -lt "$deadline" ]; do
    last=$(newest)
    if [ "$last" != "$known" ]; then
      known=$last
      if finished || [ $((now + $(apart))) -gt "$deadline" ]; then break; fi
    fi
    sleep 5
  done
  again "the limit is near"
}
started=$(date +%s)
trap 'near &' USR1"""

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
# A node that dies ends the training long before SLURM knows of it.
_FAILED = """\
if [ "$code" -ne 0 ] && [ "$(newest)" != "$before" ]; then again "the training ended with exit code $code"; fi"""

# SLURM sets a variable for devices called gpu; for others the job has to.
_NUMBERS = """\
# Which NPUs of the node are this job's
numbers=$(scontrol show job -d "$SLURM_JOB_ID" | sed -n 's/.*GRES=npu[^ ]*(IDX:\\([0-9,-]*\\)).*/\\1/p' | head -n 1)
if [ -z "${ASCEND_RT_VISIBLE_DEVICES:-}" ] && [ -n "$numbers" ]; then
  export ASCEND_RT_VISIBLE_DEVICES
  ASCEND_RT_VISIBLE_DEVICES=$(for part in ${numbers//,/ }; do seq "${part%-*}" "${part#*-}"; done | paste -sd,)
fi"""


def words(work: Work) -> list[str]:
    """Functions of the script."""
    return _WORDS.splitlines() if work.resumes else []


def meeting(work: Work) -> list[str]:
    """Where the nodes meet. Jobs on one node do not meet at one port."""
    port = "$((10000 + SLURM_JOB_ID % 20000))"
    if work.nodes == 1:
        return shell.meeting(work, "$SLURM_JOB_ID", "127.0.0.1", port)
    return [*_ADDRESS.splitlines(), *shell.meeting(work, "$SLURM_JOB_ID", "$address", port)]


def left(work: Work) -> list[str]:
    """What earlier starts have left: put in order, and gone on from."""
    if not work.resumes:
        return []
    here = [] if work.local else ["# What earlier starts have left", *_order()]
    again = ['if [ -n "$before" ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then arguments+=("${resuming[@]}"); fi']
    return [*here, "before=$(newest)", *again]


def _order() -> list[str]:
    """Once for each folder."""
    return [
        'if [ "$overwrites" = true ] && [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ]; then',
        *(f"  {line}" for line in shell.earlier()),
        "else",
        *shell.aside(),
        "fi",
    ]


def node(work: Work) -> list[str]:
    """What each node does, as a text for its bash."""
    lines = [
        "set -euo pipefail",
        *_SEEN.splitlines(),
        *(_SHARED.splitlines() if work.nodes > 1 and not work.local else ['rm -f "$output/.$RDZV_ID-$SLURM_NODEID"']),
        *(_order() if work.local and work.resumes else ()),
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


def ending(work: Work, notice: int) -> list[str]:
    """What happens before the limit, of which SLURM tells so many seconds before."""
    return _ENDING.replace("NOTICE", str(notice)).splitlines() if work.resumes else []


def start(work: Work, slurm: Slurm) -> list[str]:
    """Start the nodes, wait for them, and end as they do."""
    options = ["--kill-on-bad-exit=1", *(["--label"] if work.nodes > 1 else []), *_container(work, slurm)]
    return [
        *(_NUMBERS.splitlines() if _takes_part(work) else ()),
        "# srun does not take the number of CPUs from the job by itself (SLURM 22.05 and later)",
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"',
        f'srun {shlex.join(options)} bash -c "$node" node "${{arguments[@]}}" &',
        *_START.splitlines(),
        *(_FAILED.splitlines() if work.resumes else ()),
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
