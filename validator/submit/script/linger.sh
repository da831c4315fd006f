# srun ends all nodes as soon as one fails, and loses what that one has just written
trap 'code=$?; [ "$code" -eq 0 ] || sleep 5' EXIT
