#!/bin/bash
#SBATCH --job-name=qwen7b-lora
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=16
#SBATCH --mem=96G
#SBATCH --time=07:30:00
#SBATCH --signal=B:USR1@680
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/me/saves/%x-%j.out

# Written by `lmf-recipes submit`. Change what you like; `sbatch FILE` takes it as well.
# qwen7b-lora on 1xa100-80g: predicted time 4.0 h (2.0 to 7.5), limit 7.5 h

# What the site asks for
set -eo pipefail
set -u

# The run
export recipe=/home/me/qwen7b-lora.yaml output=/home/me/saves/qwen7b
arguments=(
  /home/me/qwen7b-lora.yaml
  learning_rate=1e-4
  output_dir=/home/me/saves/qwen7b
)
export overwrites=false
resuming=(overwrite_output_dir=false)
export HF_ENDPOINT=https://hf.example

export RDZV_ID=$SLURM_JOB_ID MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))

tell() { echo "lmf-recipes: $*" >&2; }
# The step of the last checkpoint that is whole: the Trainer writes this file last
newest() {
  for folder in "$output"/checkpoint-*; do
    if [ -f "$folder/trainer_state.json" ]; then echo "${folder##*-}"; fi
  done | sort -n | tail -n 1
}

# What earlier starts have left
if [ "$overwrites" = true ] && [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ]; then
  for folder in "$output"/checkpoint-*; do
    if [ -d "$folder" ]; then
      mkdir -p "$output/earlier-$RDZV_ID"
      mv "$folder" "$output/earlier-$RDZV_ID/" || [ ! -d "$folder" ]
    fi
  done
else
python3 - "$output" <<'PYTHON'
import json, pathlib, sys, zipfile

def whole(folder):
    try:
        json.loads((folder / "trainer_state.json").read_text())
        states = (*folder.glob("optimizer.pt"), *folder.glob("global_step*/*.pt"))
        marked = (folder / "checkpoint-is-incomplete.txt").exists()
        return not marked and all(map(full, folder.rglob("*.safetensors"))) and all(map(zipfile.is_zipfile, states))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False

def full(file):
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        head = json.loads(stream.read(min(size, file.stat().st_size)))
    ends = [entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__"]
    return file.stat().st_size == 8 + size + max(ends, default=0)

for folder in pathlib.Path(sys.argv[1]).glob("checkpoint-*"):
    if folder.name.removeprefix("checkpoint-").isdecimal() and not whole(folder):
        aside, number = folder.with_name("incomplete-" + folder.name), 1
        while aside.exists():
            aside, number = folder.with_name(f"incomplete-{folder.name}-{number}"), number + 1
        try:
            folder.rename(aside)
        except FileNotFoundError:  # another node was faster
            continue
        print(f"lmf-recipes: {folder} was not written to its end; it is now {aside.name}", file=sys.stderr)
PYTHON
fi
before=$(newest)
if [ -n "$before" ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then arguments+=("${resuming[@]}"); fi

# What each node does
read -r -d '' node <<'NODE' || true
set -euo pipefail
tell() { echo "lmf-recipes: $*" >&2; }
fail() { tell "$@"; exit 1; }
[ -r "$recipe" ] || fail "$SLURMD_NODENAME does not see $recipe; put it where all nodes do"
mkdir -p "$output" && touch "$output/.$RDZV_ID-$SLURM_NODEID" || fail "$SLURMD_NODENAME cannot write to $output"
rm -f "$output/.$RDZV_ID-$SLURM_NODEID"
# What nodes of the vendor want
command -v llamafactory-cli >/dev/null ||
  fail "llamafactory-cli is not in the path of $SLURMD_NODENAME; setup in the site file takes lines for it"
# Is this node fit for the run?
if command -v lmf-recipes >/dev/null; then lmf-recipes doctor --machine 1xa100-80g "$@" || [ $? -ne 1 ]; fi
exec llamafactory-cli train "$@"
NODE

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
  deadline=$(($(date +%s) + 680 - 90)) known=$(newest)
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
trap 'near &' USR1

# srun does not take the number of CPUs from the job by itself (SLURM 22.05 and later)
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"
srun --kill-on-bad-exit=1 bash -c "$node" node "${arguments[@]}" &
training=$!
code=0
wait "$training" || code=$?
# A signal ends the wait, not the training
if [ "$code" -eq $((128 + $(kill -l USR1))) ]; then code=0; wait "$training" || code=$?; fi
if [ "$code" -ne 0 ] && [ "$(newest)" != "$before" ]; then again "the training ended with exit code $code"; fi
exit "$code"
