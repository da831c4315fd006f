export RDZV_ID="$JOB"
# The controller's PET_… would stand for options that are left out of torchrun's command line
unset "${!PET_@}"
# Models are downloaded once for all nodes, and for the next run
export HF_HOME="${HF_HOME:-$PWD/.cache/huggingface}"
export MODELSCOPE_CACHE="${MODELSCOPE_CACHE:-$PWD/.cache/modelscope}"
