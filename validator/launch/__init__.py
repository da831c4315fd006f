"""Runs a recipe on this machine: `train`, its smoke run, and the timed steps of `calibrate`.

The command and environment themselves come from run/launch_command. A run is supervised: signals are passed on once,
a save in progress is waited for, and no process outlives the run. Imports nothing here: the guard starts from it."""
