# Loaders take many open files, network adapters much locked memory; without end, files cost time, too
ulimit -S -n @max_open_files@ 2>/dev/null || ulimit -S -n "$(ulimit -H -n)"
ulimit -S -l "$(ulimit -H -l)"
