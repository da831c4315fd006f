# Is this node fit for the run? The doctor ends with 1 where it is not; any other end is its own
if command -v lmf-recipes >/dev/null; then
  if lmf-recipes doctor --machine @machine@ "${arguments[@]}"; then code=0; else code=$?; fi
  if [ "$code" -eq 1 ]; then
    echo "lmf-recipes: not started for the errors above; if they are wrong, take doctor out of the job" >&2
    exit 1
  fi
fi
