# Addresses of all nodes, one in a line, that of the first node first
mapfile -t addresses <<<"$SKYPILOT_NODE_IPS"
export NODE_RANK="$SKYPILOT_NODE_RANK" RDZV_ID="$SKYPILOT_TASK_ID" MASTER_ADDR="${addresses[0]}"
# Jobs on one node do not meet at one port
export MASTER_PORT=$((20000 + $(cksum <<<"$RDZV_ID" | cut -d ' ' -f 1) % 10000))
