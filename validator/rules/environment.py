"""PAR2xx: environment variables, where they are set, that LLaMA-Factory's launcher reads (launcher.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from validator.diagnostic import Severity, plural
from validator.job.job import Job
from validator.rules.rule import Finding, rule
from validator.tables import switch
from validator.tables.data import listing

_OFF = ("false", "n", "0", "no", "off", "")
_SWITCHES = (
    "FORCE_TORCHRUN", "USE_MODELSCOPE_HUB", "USE_OPENMIND_HUB", "DISABLE_VERSION_CHECK", "ALLOW_EXTRA_ARGS",
    "USE_RAY", "USE_V1", "USE_MCA", "USE_KT", "RECORD_VRAM", "FORCE_CHECK_IMPORTS",
)  # fmt: skip
_TRAINERS = {
    "USE_V1": "its new trainer, which has other keys",
    "USE_MCA": "Megatron, which has other keys",
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
        if value.lower() not in _OFF and not switch.on(name):
            yield None, f"the environment has {name}={value}, which LLaMA-Factory takes as off; write {name}=1"


@rule("PAR202", Severity.WARNING)
def another_trainer(_job: Job) -> Iterator[Finding]:
    """The environment hands the recipe to another trainer of LLaMA-Factory.

    Why: the keys are read by another code base, so this verdict does not hold there.
    Source: llamafactory/cli.py:main, llamafactory/launcher.py:launch
    Fix: unset the variable.
    """
    for name, what in _TRAINERS.items():
        if switch.on(name):
            yield None, f"the environment has {name}={os.environ[name]}: the run goes to {what}; unset it"


@rule("PAR203", Severity.WARNING)
def processes_against_machine(job: Job) -> Iterator[Finding]:
    """The environment starts another number of processes than the machine has devices.

    Why: the launcher takes NPROC_PER_NODE and NNODES from the environment: batch size, memory and steps are then those
    of another machine than was judged, or the nodes wait for each other.
    Source: llamafactory/launcher.py:launch
    Fix: unset the variable, or name the machine with `--machine`.
    """
    if job.machine is None:
        return
    devices, nodes = job.machine.devices, job.machine.nodes
    if (processes := os.environ.get("NPROC_PER_NODE", str(devices))) != str(devices):
        yield "machine", f"the environment has NPROC_PER_NODE={processes}, the machine has {devices}; unset it"
    if (given := os.environ.get("NNODES", str(nodes))) != str(nodes):
        recipe = "1 node" if nodes == 1 else f"{nodes} nodes"
        yield "machine", f"the environment has NNODES={given}, the recipe has {recipe}; unset it"


@rule("PAR204", Severity.WARNING)
def node_rank_missing(job: Job) -> Iterator[Finding]:
    """The environment says which node this is by RANK, which LLaMA-Factory does not read.

    Why: without NODE_RANK every node takes itself for the first, and all wait for each other until the timeout. With
    RDZV_ID the launch is elastic, and the nodes find their ranks themselves.
    Source: llamafactory/launcher.py:launch
    Fix: `NODE_RANK=$RANK`.
    """
    several = job.machine is not None and job.machine.nodes > 1 and "RDZV_ID" not in os.environ
    if several and "RANK" in os.environ and "NODE_RANK" not in os.environ and "LOCAL_RANK" not in os.environ:
        yield "machine", f"the environment has RANK={os.environ['RANK']}; LLaMA-Factory reads NODE_RANK, set that"


@rule("PAR210", Severity.WARNING)
def nodes_may_vary(job: Job) -> Iterator[Finding]:
    """The environment lets an elastic launch start with another number of nodes.

    Why: with RDZV_ID torchrun starts half a minute after MIN_NNODES nodes have come, up to MAX_NNODES of them. Fewer
    make a smaller batch, and what ZeRO-3 spreads takes more memory on each device; that was not judged. After the loss
    of a node the others cannot load what ZeRO has saved. Where the lost one is that of MASTER_ADDR, all end.
    Source: llamafactory/launcher.py:launch, deepspeed/runtime/engine.py:DeepSpeedEngine._load_zero_checkpoint
    Fix: unset both; an elastic launch of a fixed number of nodes needs neither.
    """
    least, most = (os.environ.get(name) for name in ("MIN_NNODES", "MAX_NNODES"))
    if job.machine is None or least is None or most is None or "RDZV_ID" not in os.environ:
        return
    nodes = job.machine.nodes
    if {least, most} != {str(nodes)}:
        judged = f"the recipe is judged for {nodes} {plural(nodes, 'node')}"
        bound = ", and ZeRO resumes with as many processes only" if job.zero_stage else ""
        yield "machine", f"the environment has MIN_NNODES={least} MAX_NNODES={most}, {judged}{bound}; unset them"


@rule("PAR211", Severity.WARNING)
def torchrun_restarts(job: Job) -> Iterator[Finding]:
    """The environment has torchrun start processes again by itself.

    Why: nodes share a store, in which each counts the restarts for itself: after the loss of a process all wait for
    each other without end, and a node that comes back ends the others after a minute (seen in real runs, torch 2.13).
    With `overwrite_output_dir` each restart begins anew, and none sets a half-written checkpoint aside.
    Source: llamafactory/launcher.py:launch,
    torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:DynamicRendezvousHandler.next_rendezvous
    Fix: unset MAX_RESTARTS and start all nodes again, as the jobs of `lmf-recipes submit` do.
    """
    restarts = os.environ.get("MAX_RESTARTS", "")
    if job.machine is None or "RDZV_ID" not in os.environ or not restarts.isdecimal() or int(restarts) == 0:
        return
    shared = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"
    if job.machine.nodes > 1 and shared:
        remedy = "unset it, or set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        yield "machine", f"the environment has MAX_RESTARTS={restarts}, after which nodes can wait for ever; {remedy}"
    if job.flag("overwrite_output_dir"):
        remedy = "set it to false, or unset MAX_RESTARTS"
        yield (
            "overwrite_output_dir",
            f"the environment has MAX_RESTARTS={restarts}, and each restart begins anew; {remedy}",
        )


@rule("PAR205", Severity.WARNING)
def name_of_another_hub(job: Job) -> Iterator[Finding]:
    """The model's name is not the one that it has on the hub in use.

    Why: with USE_MODELSCOPE_HUB LLaMA-Factory hands the name to modelscope as it stands, without it to Hugging Face;
    where the other hub has another name for the model, every process stops with a 404 error.
    Source: llamafactory/extras/misc.py:try_download_model_from_other_hub
    Fix: the name in the message, a folder, or the variable set as the name asks for.
    """
    model = job.model
    if model is None or model.id is None or model.taken or job.find(str(job.get("model_name_or_path"))):
        return
    scope = switch.on("USE_MODELSCOPE_HUB")
    if not scope and model.name in model.hub:  # which most checks are
        return
    there, other = listing("models")[model.id]["modelscope"], "ModelScope"
    names, hub = (there, other) if scope else (list(model.hub), "Hugging Face")
    if model.name not in names:
        meant = _like(model.name, names)
        remedy = f"write {meant}" if meant else "name a folder"
        change = f"unset USE_MODELSCOPE_HUB or {remedy}" if scope else f"set USE_MODELSCOPE_HUB=1 or {remedy}"
        yield "model_name_or_path", f"{model.name} is not known to be on {hub}, from which it is loaded; {change}"


def _like(name: str, names: list[str]) -> str | None:
    """The most alike of the names: the one on the other hub for the same model."""
    import difflib

    own = {each.rpartition("/")[2].lower(): each for each in reversed(names)}
    near = difflib.get_close_matches(name.rpartition("/")[2].lower(), list(own), n=1, cutoff=0.0)
    return own[near[0]] if near else None
