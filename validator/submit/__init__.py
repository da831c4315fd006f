"""Hands a checked recipe as a job to a scheduler that people already have: SLURM, SkyPilot, Kubernetes.

Each scheduler is a module with the function `prepare`, which returns the job and how to submit the job. The modules
read nothing about the devices and packages of this machine, because the nodes of the job have their own."""
