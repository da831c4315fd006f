#!/bin/bash
#SBATCH --job-name=qwen7b-lora
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=48
#SBATCH --mem=96G
#SBATCH --time=07:30:00
#SBATCH --signal=B:USR1@680
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/home/me/saves/%x-%j.out

# Written by `lmf-recipes submit`. Change what you like; `sbatch FILE` takes it as well.
# qwen7b-lora on 2x8xa100-80g: predicted time 4.0 h (2.0 to 7.5), limit 7.5 h

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

reach() {
  python3 - "$1" <<'PYTHON'
"""The address by which this node reaches another; nothing is sent."""

import socket
import sys

way = socket.getaddrinfo(sys.argv[1], 29500, type=socket.SOCK_DGRAM)[0]
end = socket.socket(*way[:3])
end.connect(way[4])
sys.stdout.write(f"{end.getsockname()[0]}\n")
PYTHON
}
# Nodes meet at the first one, which this is, by the address from which it reaches the second: a name can lead to the
# loopback address on its own node, be known to SLURM alone, or be that of several nodes
second=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 2p)
second=$(scontrol show node "$second" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
address=$(reach "$second")
case $address in 127.*) own=$(hostname -I | cut -d ' ' -f 1) address=${own:-$address} ;; esac
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
# The first node counts those that write to the same folder; a network file system may show them late
if [ "$NODE_RANK" -eq 0 ]; then
  for attempt in {1..30}; do
    seen=$(find "$output" -maxdepth 1 -name ".$RDZV_ID-*" | wc -l)
    [ "$seen" -lt "$SLURM_JOB_NUM_NODES" ] || break
    sleep 2
  done
  rm -f "$output/.$RDZV_ID"-*
  [ "$seen" -ge "$SLURM_JOB_NUM_NODES" ] ||
    fail "$seen of $SLURM_JOB_NUM_NODES nodes share $output; name a folder that all see, or set save_on_each_node: true"
fi
# What nodes of the vendor want
command -v accelerate >/dev/null ||
  fail "accelerate is not in the path of $SLURMD_NODENAME; setup in the site file takes lines for it"
# Is this node fit for the run? The doctor ends with 1 where it is not; any other end is its own
if command -v lmf-recipes >/dev/null; then
  if lmf-recipes doctor --machine 2x8xa100-80g "${arguments[@]}"; then code=0; else code=$?; fi
  if [ "$code" -eq 1 ]; then
    echo "lmf-recipes: not started for the errors above; if they are wrong, take doctor out of the job" >&2
    exit 1
  fi
fi
exec accelerate launch --config_file /home/me/fsdp2.yaml --num_processes 16 --num_machines 2 --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" -m llamafactory.launcher "${arguments[@]}"
NODE

# srun does not take the number of CPUs from the job by itself (SLURM 22.05 and later)
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}"
srun --kill-on-bad-exit=1 --label bash -c "$node" node "${arguments[@]}" &
training=$!
code=0
wait "$training" || code=$?
# A signal ends the wait, not the training
if [ "$code" -eq $((128 + $(kill -l USR1))) ]; then code=0; wait "$training" || code=$?; fi
# A node that dies ends the training long before SLURM knows of it
if [ "$code" -ne 0 ] && [ "$(newest)" != "$before" ]; then again "the training ended with exit code $code"; fi
exit "$code"
