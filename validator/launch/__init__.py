"""Runs a recipe on this machine: `train`, its smoke run, and the timed steps of `calibrate`.

The command and its environment come from run/launch_command. A run is supervised: signals are passed on once, a save in
progress is completed, and no process outlives the run. This file imports nothing, because the guard must start
quickly."""
