# The recipe starts anew (overwrite_output_dir): checkpoints that lie there are of an earlier run, from which this one
# would go on once it is started again
if [ "$overwrites" = true ] && [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ]; then
  for folder in "$output"/checkpoint-*; do
    if [ -d "$folder" ]; then
      mkdir -p "$output/earlier-$RDZV_ID"
      mv "$folder" "$output/earlier-$RDZV_ID/" || [ ! -d "$folder" ]
    fi
  done
fi
