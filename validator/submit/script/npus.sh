# SLURM sets a variable for devices called gpu; which NPUs of the node are this job's has to be asked for
numbers=$(scontrol show job -d "$SLURM_JOB_ID" | sed -n 's/.*GRES=npu[^ ]*(IDX:\([0-9,-]*\)).*/\1/p' | head -n 1)
if [ -z "${ASCEND_RT_VISIBLE_DEVICES:-}" ] && [ -n "$numbers" ]; then
  export ASCEND_RT_VISIBLE_DEVICES
  ASCEND_RT_VISIBLE_DEVICES=$(for part in ${numbers//,/ }; do seq "${part%-*}" "${part#*-}"; done | paste -sd,)
fi
