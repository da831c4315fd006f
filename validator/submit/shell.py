"""Bash that the jobs of all engines share: pieces kept as files in script/, and what is made of words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from validator.quoting import quote
from validator.submit.site import Site
from validator.submit.work import Work
from validator.tables import whole
from validator.train import bash

_SCRIPTS = Path(__file__).parent / "script"

_ALL = """\
# All nodes or none: torchrun's own restarts can hang, and pass over what is put in order here
unset MIN_NNODES MAX_NNODES MAX_RESTARTS"""


def script(name: str) -> list[str]:
    """A fixed piece of bash. Variables that it reads are set above it."""
    return bash.lines(_SCRIPTS / f"{name}.sh")


def set_up(site: Site, own: Iterable[str], modules: Iterable[str] = ()) -> list[str]:
    """The site's lines for all engines, and those of one. Those of others seldom bear `set -u`, so that comes after
    them."""
    lines = [*(f"module load {quote(name)}" for name in modules), *site.setup, *own]
    return ["set -eo pipefail", *lines, "set -u"] if lines else ["set -euo pipefail"]


def exports(variables: Mapping[str, str]) -> list[str]:
    """Variables for all that is started."""
    return [f"export {name}={quote(value)}" for name, value in variables.items()]


def array(name: str, words: Iterable[str]) -> list[str]:
    """A variable of several words, one in a line."""
    return [f"{name}=(", *(f"  {quote(word)}" for word in words), ")"]


def launcher(work: Work) -> list[str]:
    """With RDZV_ID, MASTER_ADDR and MASTER_PORT what LLaMA-Factory's launcher reads to start torchrun elastically,
    where nodes meet and take their ranks (launcher.py).

    torchrun starts nothing again by itself, whatever the user's environment says: after the loss of a process the nodes
    wait for each other without end, a node that comes back ends the others (PAR211), and what this script puts in order
    would not be. The engine starts all nodes again. Fewer nodes than were judged are another run (PAR210)."""
    size = f"NNODES={work.nodes} NPROC_PER_NODE={work.devices}"
    return [*_ALL.splitlines(), f"export FORCE_TORCHRUN=1 {size}"] if work.torchrun else []


def set_aside() -> list[str]:
    """A function: what is half-written in `output` gets another name, and the run goes on from what was before."""
    return ["# A checkpoint that was being written when the run was stopped gets another name",
            *bash.program("set_aside", Path(whole.__file__), '"$output"')]  # fmt: skip
