"""SLURM's sbatch: what it takes, what it refuses, and what helps."""

from __future__ import annotations

from pathlib import Path

from validator.diagnostic import RecipeError
from validator.submit import client

_REMEDY = "run this where jobs are submitted, or take the script there: `--write FILE`"
# What sbatch says (slurm, slurm_errno.c), and what helps.
_HINTS = {
    "partition configuration": "`--hours H` asks for less time, if its nodes are not down (`sinfo`)",
    "account": "`slurm.account` of the site file names one that `sacctmgr show associations user=$USER` shows",
    "partition": "`slurm.partition` of the site file names one that `sinfo` shows",
    "qos": "`slurm.qos` of the site file names one that is admitted",
    "generic resource": "`slurm.devices` of the site file names devices as `sinfo -o '%P %G'` does: gpu:a100:{devices}",
    "node configuration": "no node that is up has as many devices, CPUs and GiB (`sinfo -o '%G %c %m'`)",
    "time limit": "`--hours H` asks for less, `slurm.hours` of the site file is the most that is admitted",
}


def number(job: str) -> str:
    """The number that sbatch gives the job. Raises RecipeError with its own words, and what helps."""
    try:
        _possible(job)
        return client.run(("sbatch", "--parsable"), job, _REMEDY).partition(";")[0]
    except RecipeError as err:
        hint = next((hint for words, hint in _HINTS.items() if words in str(err).lower()), "")
        raise RecipeError(f"{err}{hint and f'; {hint}'}") from None


def _possible(job: str) -> None:
    """Raises RecipeError for what no node can ever run: where a site has EnforcePartLimits=NO, SLURM's default, sbatch
    queues it to wait for ever. What else a trial tells may pass."""
    try:
        client.run(("sbatch", "--test-only"), job, _REMEDY)
    except RecipeError as err:
        if "configuration" in str(err):
            raise


def folder(place: Path) -> None:
    """Make the folder for logs: SLURM makes none, and without one a job fails and says nothing. Raises RecipeError."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        why = (err.strerror or str(err)).lower()
        raise RecipeError(f"`{place}`, the folder for logs, cannot be made: {why}") from None
