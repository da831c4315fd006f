# A pod that is moved or deleted gets SIGTERM, and SIGKILL when its grace is over. A checkpoint that is being written is
# written to its end; with this shell, the first process of its container, all others end
saving() {
  for folder in "$output"/checkpoint-*; do
    if [ -d "$folder" ] && [ ! -f "$folder/trainer_state.json" ]; then return 0; fi
  done
  return 1
}
ending() {
  if saving; then
    echo "lmf-recipes: told to end: that is after the checkpoint that is being saved" >&2
    while saving; do sleep 1; done
    sleep 2
  fi
  exit 143
}
trap ending TERM
