# srun ends all nodes as soon as one fails, and loses what that one has just written
trap 'code=$?; [ "$code" -eq 0 ] || sleep 5' EXIT
NODE_RANK=$SLURM_NODEID arguments=("$@")
tell() { echo "lmf-recipes: $*" >&2; }
fail() { tell "$@"; exit 1; }
[ -r "$recipe" ] || fail "$SLURMD_NODENAME does not see $recipe; put it where all nodes do"
mkdir -p "$output" && touch "$output/.$RDZV_ID-$NODE_RANK" || fail "$SLURMD_NODENAME cannot write to $output"
