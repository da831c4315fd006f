"""Hands a checked recipe as a job to a scheduler that people already have: SLURM, SkyPilot, Kubernetes.

Each scheduler is a module with the function `order`, which commands/submit.py finds by the module's name. Knows
neither the devices nor the packages of this machine: the nodes of the job have their own."""
