"""PAR2xx: what Ray needs, where the environment hands the run to it."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job import ray
from validator.job.job import Job
from validator.rules.rule import Finding, rule


@rule("PAR206", Severity.ERROR)
def ray_cannot_start(job: Job) -> Iterator[Finding]:
    """Ray cannot give the run what it asks for.

    Why: LLaMA-Factory reserves a bundle of 10 CPUs and one device for each device of the cluster, and waits for them
    without end; for more workers than devices it stops. `num_cpus` in `ray_init_kwargs` is what Ray believes, not what
    the machine has (github.com/hiyouga/LlamaFactory/issues/10348).
    Source: llamafactory/train/tuner.py:_ray_training_function, llamafactory/train/trainer_utils.py:get_placement_group
    Fix: as many CPUs, or workers, as the message says.
    """
    if job.machine is None or not ray.on():
        return
    devices, wanted = job.machine.devices, ray.CPUS * job.machine.devices
    promised, workers = ray.promised(job), ray.workers(job)
    if promised is not None and promised < wanted and not ray.joins(job):
        short = f"Ray has {promised} CPUs by `num_cpus`, and {ray.CPUS} are reserved for each of {devices} devices"
        yield "ray_init_kwargs", f"{short}: it would wait for ever; set `num_cpus: {wanted}`"
    if workers > job.world:
        yield "ray_num_workers", f"{workers} Ray workers, the machine has {job.world} devices; set {job.world}"


@rule("PAR207", Severity.WARNING)
def ray_may_wait(job: Job) -> Iterator[Finding]:
    """Nothing tells Ray that it has the CPUs that LLaMA-Factory reserves.

    Why: 10 CPUs are reserved for each device of the cluster; on a node that has fewer, threads counted, the run waits
    without end and says nothing (github.com/hiyouga/LlamaFactory/issues/10348).
    Source: llamafactory/train/trainer_utils.py:get_placement_group
    Fix: `ray_init_kwargs: {num_cpus: …}`, which no core stands behind, or `ray start --num-cpus` for a cluster.
    """
    if job.machine and ray.on() and not job.on_cpu and ray.promised(job) is None:
        devices, wanted = job.machine.devices, ray.CPUS * job.machine.devices
        many = job.machine.nodes > 1 or ray.joins(job)
        remedy = f"`ray start --num-cpus {wanted}` on each" if many else f"`ray_init_kwargs: {{num_cpus: {wanted}}}`"
        reserved = f"{ray.CPUS} CPUs are reserved for each device, {wanted} on a node of {devices}"
        waits = "where there are fewer the run waits for ever"
        yield None, f"the environment has USE_RAY: {reserved}; {waits}; promise them by {remedy}"


@rule("PAR208", Severity.WARNING)
def ray_trains_on_fewer(job: Job) -> Iterator[Finding]:
    """Ray trains with fewer workers than the machine has devices.

    Why: `ray_num_workers` is 1 unless it is set. All devices are reserved, and the others stay idle: batch size, memory
    and steps are those of another machine than was judged.
    Source: llamafactory/hparams/training_args.py:RayArguments, llamafactory/train/tuner.py:_ray_training_function
    Fix: the number of all devices, or a smaller machine.
    """
    if job.machine and ray.on() and (workers := ray.workers(job)) < job.world:
        found = f"the environment has USE_RAY, and `ray_num_workers` is {workers}"
        yield "ray_num_workers", f"{found}; the machine has {job.world} devices: set `ray_num_workers: {job.world}`"


@rule("PAR209", Severity.WARNING)
def ray_meets_at_its_head(job: Job) -> Iterator[Finding]:
    """Workers of Ray on several nodes meet at its head node, which may have no device.

    Why: without `master_addr` it is the head's address. Where the head has no devices, no worker runs there, and all
    wait for one that listens (github.com/hiyouga/LlamaFactory/issues/10347).
    Source: llamafactory/train/tuner.py:_ray_training_function,
    llamafactory/train/trainer_utils.py:sort_placement_group_by_node_ip
    Fix: `master_addr`, the address of a node with devices.
    """
    if job.machine and job.machine.nodes > 1 and ray.on() and not job.has("master_addr"):
        found = f"the environment has USE_RAY: workers on {job.machine.nodes} nodes meet at Ray's head node"
        yield "machine", f"{found}; where it has no devices they wait for ever: set `master_addr` to one that has"
