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
set -euo pipefail

# The run
export recipe=/home/me/qwen7b-lora.yaml output=/home/me/saves/qwen7b
arguments=(
  /home/me/qwen7b-lora.yaml
  learning_rate=1e-4
  output_dir=/home/me/saves/qwen7b
)
export HF_ENDPOINT=https://hf.example

address=127.0.0.1
export RDZV_ID=$SLURM_JOB_ID MASTER_ADDR=$address MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))

# Before the limit, and where the training fails, the job is queued again
notice=680
<script/requeue.sh>

<tables/whole.py>
set_aside
before=$(newest)

# What each node does
read -r -d '' node <<'NODE' || true
set -euo pipefail
# srun ends all nodes as soon as one fails, and loses what that one has just written
trap 'code=$?; [ "$code" -eq 0 ] || sleep 5' EXIT
NODE_RANK=$SLURM_NODEID arguments=("$@")
tell() { echo "lmf-recipes: $*" >&2; }
fail() { tell "$@"; exit 1; }
[ -r "$recipe" ] || fail "$SLURMD_NODENAME does not see $recipe; put it where all nodes do"
mkdir -p "$output" && touch "$output/.$RDZV_ID-$NODE_RANK" || fail "$SLURMD_NODENAME cannot write to $output"
rm -f "$output/.$RDZV_ID-$NODE_RANK"
# What nodes of the vendor want
command -v llamafactory-cli >/dev/null ||
  fail "llamafactory-cli is not in the path of $SLURMD_NODENAME; setup in the site file takes lines for it"
# Is this node fit for the run? The doctor ends with 1 where it is not; any other end is its own
if command -v lmf-recipes >/dev/null; then
  if lmf-recipes doctor --machine 1xa100-80g "${arguments[@]}"; then code=0; else code=$?; fi
  if [ "$code" -eq 1 ]; then
    echo "lmf-recipes: not started for the errors above; if they are wrong, take doctor out of the job" >&2
    exit 1
  fi
fi
exec llamafactory-cli train "${arguments[@]}"
NODE

# srun does not take the number of CPUs from the job by itself (SLURM 22.05 and later)
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"
srun --kill-on-bad-exit=1 bash -c "$node" node "${arguments[@]}" &
training=$!
code=0
wait "$training" || code=$?
# A signal ends the wait, not the training
if [ "$code" -eq $((128 + $(kill -l USR1))) ]; then code=0; wait "$training" || code=$?; fi
# A node that dies ends the training long before SLURM knows of it
if [ "$code" -ne 0 ] && [ "$(newest)" != "$before" ]; then again "the training ended with exit code $code"; fi
exit "$code"
