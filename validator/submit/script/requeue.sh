tell() { echo "lmf-recipes: $*" >&2; }
# The step of the last checkpoint that is whole: the Trainer writes this file last
newest() {
  for folder in "$output"/checkpoint-*; do
    if [ -f "$folder/trainer_state.json" ]; then echo "${folder##*-}"; fi
  done | sort -n | tail -n 1
}
# Whether that is the last step of the run
finished() {
  python3 -c 'import json, sys; state = json.load(sys.stdin); sys.exit(state["global_step"] < state["max_steps"])' \
    2>/dev/null <"$output/checkpoint-$(newest)/trainer_state.json"
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
  deadline=$(($(date +%s) + notice - 90)) known=$(newest)
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
trap 'near &' USR1
started=$(date +%s)
