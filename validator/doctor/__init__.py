"""Is this machine fit for a run? One result for each thing looked at: found, required, remedy.

The checks are in modules by topic. diagnosis.py lists all checks and runs them at the same time. `train` and
`calibrate` run those in start_checks.PREFLIGHT before a start. No check changes anything."""
