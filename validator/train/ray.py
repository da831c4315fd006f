"""What Ray lacks on this machine, where the environment hands the run to it."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity, plural
from validator.here import host
from validator.here.installed import installed
from validator.job import ray
from validator.job.job import Job
from validator.tables import switch
from validator.train.room import Shortage


def lacking(job: Job, cpus: int | None = None) -> Iterator[Shortage]:
    """Why the run would stop, or wait without end. `cpus` are those of this node, threads counted; by default those
    that this process may use, as Ray counts them."""
    if ray.on():
        yield from _packages(job)
        starter = "torchrun" if switch.on("FORCE_TORCHRUN") else "accelerate" if job.accelerate else None
        if starter:
            yield Severity.ERROR, f"USE_RAY is set, and {starter} starts the processes, each of which would start Ray"
        yield from _short(job, host.cpus() if cpus is None else cpus)


def _packages(job: Job) -> Iterator[Shortage]:
    """Without `master_addr` LLaMA-Factory asks Ray's dashboard for the head node (train/trainer_utils.py,
    get_ray_head_node_ip), which stops with ServerUnavailable where only `ray` is installed (seen with 2.60)."""
    there = installed().among(["ray", "aiohttp-cors"])
    if "ray" not in there:
        yield Severity.ERROR, 'USE_RAY is set and the package is not installed: pip install "ray[default]"'
    elif "aiohttp-cors" not in there and not job.has("master_addr"):
        found = "ray is installed without its dashboard, which is asked for the head node"
        yield Severity.ERROR, f'{found}: pip install "ray[default]", or set `master_addr`'


def _short(job: Job, cpus: int) -> Iterator[Shortage]:
    """Fewer CPUs than are reserved on this node. A node that has joined a cluster may have promised it more. Where
    there is no device LLaMA-Factory counts CPUs as such, and reserves ten times all (tried: it waited)."""
    if job.on_cpu:
        yield (
            Severity.ERROR,
            "on CPUs alone each counts as a device, for which Ray reserves 10: it would wait for ever; unset USE_RAY",
        )
    devices = job.machine.devices if job.machine and not job.on_cpu else 0
    wanted = ray.CPUS * devices
    if cpus >= wanted or ray.promised(job) is not None:  # a promise that is too small is PAR206
        return
    found = f"this node has {cpus} CPUs, and {ray.CPUS} are reserved for each of {devices} {plural(devices, 'device')}"
    if ray.joins(job):
        yield Severity.WARNING, f"{found}: it has to join with `ray start --num-cpus {wanted}`"
    else:
        remedy = f"set `ray_init_kwargs: {{num_cpus: {wanted}}}`, or unset USE_RAY"
        yield Severity.ERROR, f"{found}: Ray would wait for ever; {remedy}"
