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

# A checkpoint that was being written when the run was stopped gets another name
set_aside() {
  python3 - "$output" <<'PYTHON'
"""Whether a checkpoint was written to its end. `python3 - FOLDER` gives those in a folder that were not another name:
jobs carry this file to nodes, which have Python's own library alone, 3.8 or later.

transformers/trainer.py, Trainer._save_checkpoint; deepspeed/runtime/engine.py, save_checkpoint."""

from __future__ import annotations

import itertools
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = re.compile(r"checkpoint-(\d+)")
STATE, INDEX = "trainer_state.json", "model.safetensors.index.json"
# extras/constants.py of LLaMA-Factory, CHECKPOINT_NAMES
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "model.safetensors", INDEX, "pytorch_model.bin",
           "pytorch_model.bin.index.json")  # fmt: skip
# What a checkpoint taken at SIGTERM holds until it is written (transformers/trainer_jit_checkpoint.py).
_MARK = "checkpoint-is-incomplete.txt"

def flaw(folder: Path) -> str | None:
    """Why it is half-written, in words; None where it is whole."""
    try:
        return next(_flaws(folder), None)
    except OSError as err:
        return f"cannot be read: {(err.strerror or str(err)).lower()}"

def mapping(file: Path) -> Mapping[str, Any]:
    """What a JSON file holds; nothing where it cannot be read."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}

def aside(folder: Path) -> Path:
    """A free name under which neither LLaMA-Factory nor the Trainer counts it: what begins with `checkpoint-` takes a
    place of `save_total_limit`, whatever follows (transformers/trainer_utils.py, sort_checkpoints)."""
    places = (folder.with_name(f"incomplete-{folder.name}{f'-{n}' if n else ''}") for n in itertools.count())
    return next(place for place in places if not place.exists())

def _flaws(folder: Path) -> Iterator[str]:
    """The Trainer writes its state last; where the node itself died, files can be shorter than they were written."""
    if (folder / _MARK).exists():
        yield f"its {_MARK} is still there"
    if not mapping(folder / STATE):
        yield f"{STATE} is cut off" if (folder / STATE).is_file() else f"no {STATE}"
    engine = any(folder.glob("global_step*"))  # DeepSpeed loads its own states
    spread = any(folder.glob("*model*_0/")) or any(folder.glob("*/adapter_model.*"))  # by FSDP; several adapters
    if not (engine or spread or any((folder / name).is_file() for name in WEIGHTS)):
        yield "no weights"
    if (folder / INDEX).is_file():
        yield from _missing(folder)
    yield from (f"{file.name} is cut off" for file in folder.rglob("*.safetensors") if not _full(file))
    archives = (*folder.glob("optimizer.*"), *folder.glob("global_step*/*.pt"))
    yield from (f"{file.name} is cut off" for file in archives if not zipfile.is_zipfile(file))
    yield from _shards(folder) if engine else ()

def _missing(folder: Path) -> Iterator[str]:
    """Files that the index names."""
    files = mapping(folder / INDEX).get("weight_map")
    if not isinstance(files, dict):
        yield f"{INDEX} is cut off"
    else:
        yield from (f"{name} is missing" for name in map(str, files.values()) if not (folder / name).is_file())

def _full(file: Path) -> bool:
    """Whether it is as long as its head says: eight bytes of the head's length, the head, the tensors."""
    with file.open("rb") as content:
        told = int.from_bytes(content.read(8), "little")
        head = content.read(min(told, file.stat().st_size))
    try:
        ends = [tensor["data_offsets"][1] for name, tensor in json.loads(head).items() if name != "__metadata__"]
        return file.stat().st_size == 8 + told + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False

def _shards(folder: Path) -> Iterator[str]:
    """`latest` is written when all processes are done. On disks of their own nodes have some of the files each."""
    if not (folder / "latest").is_file():
        yield "no file `latest`"
    files = folder.glob("global_step*/*_optim_states.pt")
    ranks = {int(match[1]) for match in (re.search(r"_pp_rank_(\d+)_", file.name) for file in files) if match}
    for rank in range(min(ranks, default=0), max(ranks, default=0)):
        if rank not in ranks:
            yield f"the optimizer states of process {rank} are missing"

def main(output: str) -> None:
    """Set aside what is half-written."""
    for folder in Path(output).glob("checkpoint-*"):
        why = flaw(folder) if NAME.fullmatch(folder.name) and folder.is_dir() else None
        if why:
            place = aside(folder)
            with suppress(FileNotFoundError):  # another node was faster
                folder.rename(place)
                sys.stderr.write(f"lmf-recipes: {folder} was not written to its end ({why}); it is now {place.name}\n")

if __name__ == "__main__":
    main(sys.argv[1])
PYTHON
}
set_aside
before=$(newest)

# What each node does
read -r -d '' node <<'NODE' || true
set -euo pipefail
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
