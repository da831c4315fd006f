# Nodes meet at the first one, which this is, by the address from which it reaches the second: a name can lead to the
# loopback address on its own node, be known to SLURM alone, or be that of several nodes
second=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 2p)
second=$(scontrol show node "$second" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
address=$(reach "$second")
case $address in 127.*) own=$(hostname -I | cut -d ' ' -f 1) address=${own:-$address} ;; esac
