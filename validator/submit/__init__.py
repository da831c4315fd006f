"""Hands a checked recipe as a job to a scheduler that people already have: SLURM, SkyPilot, Kubernetes.

Each scheduler is a module with the function `prepare`, which returns the job and how to submit it. Knows
neither the devices nor the packages of this machine: the nodes of the job have their own."""
