"""From a checked recipe to a job of an engine that people already have: SLURM, SkyPilot, Kubernetes."""
