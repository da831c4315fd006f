"""Is this machine fit for a run? One result for each thing looked at: found, required, remedy.

The checks stand in modules by topic; diagnosis.py lists them and runs all at once. `train` and `calibrate`
ask those in start_checks.PREFLIGHT, too. Nothing is changed."""
