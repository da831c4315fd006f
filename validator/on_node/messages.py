"""Messages of a job for its user, the log of a node, and the node's name.

Each of several nodes of a SLURM job writes a log of its own. What this program says also goes to the log of the job,
where the user looks first."""

import os
import sys
from typing import List

_JOB_LOG: List[int] = []  # the descriptor of the job's log, once a node writes its own


def say(text: str) -> None:
    """Print a message for the user of a job."""
    line = f"lmf-recipes: {text}\n".encode("utf-8", "surrogateescape")
    for stream in [*_JOB_LOG, 2]:
        os.write(stream, line)


def node_name() -> str:
    """Return the name of this node, by which SLURM calls it if the job is one of SLURM."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def write_log(path: str) -> None:
    """Let this process and its children print to the file `path` from now on. If it cannot be written, they go on to
    print to the job's log."""
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        return
    _JOB_LOG.append(os.dup(2))
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
