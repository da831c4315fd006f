# accelerate refuses several of these cards with a driver before @driver@, unless both are off
if [ "$(printf '%s\n' @driver@ "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader --id=0)" | sort -V | head -n 1)" != @driver@ ]; then
  export @variables@
fi
