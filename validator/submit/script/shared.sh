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
