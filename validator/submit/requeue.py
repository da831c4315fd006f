"""How a job of SLURM goes on: from the checkpoint of an earlier start, and by being queued again before its limit."""

from __future__ import annotations

from validator.submit import shell
from validator.submit.work import Work

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

# A node that dies ends the training long before SLURM knows of it.
_FAILED = """\
if [ "$code" -ne 0 ] && [ "$(newest)" != "$before" ]; then again "the training ended with exit code $code"; fi"""


def words(work: Work) -> list[str]:
    """Functions of the script."""
    return _WORDS.splitlines() if work.resumes else []


def left(work: Work) -> list[str]:
    """What earlier starts have left: put in order, and gone on from. On nodes with folders of their own each does the
    first for itself."""
    if not work.resumes:
        return []
    here = [] if work.local else ["# What earlier starts have left", *order(work)]
    again = ['if [ -n "$before" ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then arguments+=("${resuming[@]}"); fi']
    return [*here, "before=$(newest)", *again]


def order(work: Work) -> list[str]:
    """Checkpoints put in order, once for each folder."""
    if not work.resumes:
        return []
    return [
        'if [ "$overwrites" = true ] && [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ]; then',
        *(f"  {line}" for line in shell.earlier()),
        "else",
        *shell.aside(),
        "fi",
    ]


def ending(work: Work, notice: int) -> list[str]:
    """What happens before the limit, of which SLURM tells so many seconds before."""
    return _ENDING.replace("NOTICE", str(notice)).splitlines() if work.resumes else []


def after(work: Work) -> list[str]:
    """What happens where the training ended with an error."""
    return _FAILED.splitlines() if work.resumes else []
