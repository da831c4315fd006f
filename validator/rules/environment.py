"""PAR2xx: environment variables, where they are set, that LLaMA-Factory's launcher reads (launcher.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule

_ON = ("true", "y", "1")  # extras/misc.py, is_env_enabled; everything else is off
_OFF = ("false", "n", "0", "no", "off", "")
_SWITCHES = (
    "FORCE_TORCHRUN", "USE_MODELSCOPE_HUB", "USE_OPENMIND_HUB", "DISABLE_VERSION_CHECK", "ALLOW_EXTRA_ARGS",
    "USE_RAY", "USE_V1", "USE_MCA", "USE_KT", "RECORD_VRAM", "FORCE_CHECK_IMPORTS",
)  # fmt: skip
_TRAINERS = {
    "USE_V1": "its new trainer, which has other keys",
    "USE_MCA": "Megatron, which has other keys",
    "USE_RAY": "Ray, which starts the processes itself",
}


@rule("PAR201", Severity.WARNING)
def switch_not_on(_job: Job) -> Iterator[Finding]:
    """A switch in the environment holds a word that LLaMA-Factory takes as off.

    Why: only true, y and 1 turn a switch on; `FORCE_TORCHRUN=yes` starts no torchrun, and nothing says so.
    Source: llamafactory/extras/misc.py:is_env_enabled
    Fix: write 1.
    """
    for name in _SWITCHES:
        value = os.environ.get(name, "")
        if value.lower() not in (*_ON, *_OFF):
            yield None, f"the environment has {name}={value}, which LLaMA-Factory takes as off; write {name}=1"


@rule("PAR202", Severity.WARNING)
def another_trainer(_job: Job) -> Iterator[Finding]:
    """The environment hands the recipe to another trainer of LLaMA-Factory.

    Why: the keys are read by another code base, so this verdict does not hold there.
    Source: llamafactory/cli.py:main, llamafactory/launcher.py:launch
    Fix: unset the variable.
    """
    for name, what in _TRAINERS.items():
        if os.environ.get(name, "").lower() in _ON:
            yield None, f"the environment has {name}={os.environ[name]}: the run goes to {what}; unset it"


@rule("PAR203", Severity.WARNING)
def processes_against_machine(job: Job) -> Iterator[Finding]:
    """The environment starts another number of processes than the machine has devices.

    Why: the launcher takes NPROC_PER_NODE and NNODES from the environment: batch size, memory and steps are then those
    of another machine than was judged, or the nodes wait for each other.
    Source: llamafactory/launcher.py:launch
    Fix: unset the variable, or name the machine with `--machine`.
    """
    machine = job.machine
    for name, right in (("NPROC_PER_NODE", machine.devices), ("NNODES", machine.nodes)) if machine else ():
        value = os.environ.get(name, str(right))
        if value != str(right):
            yield "machine", f"the environment has {name}={value}, the machine has {right}; unset it"


@rule("PAR204", Severity.WARNING)
def node_rank_missing(job: Job) -> Iterator[Finding]:
    """The environment says which node this is by RANK, which LLaMA-Factory does not read.

    Why: without NODE_RANK every node takes itself for the first, and all wait for each other until the timeout.
    Source: llamafactory/launcher.py:launch
    Fix: `NODE_RANK=$RANK`.
    """
    several = job.machine is not None and job.machine.nodes > 1
    if several and "RANK" in os.environ and "NODE_RANK" not in os.environ and "LOCAL_RANK" not in os.environ:
        yield "machine", f"the environment has RANK={os.environ['RANK']}; LLaMA-Factory reads NODE_RANK, set that"
