"""What `train`, `calibrate` and `doctor RECIPE` ask alike before a start: folders of the model and its adapters, Ray,
devices and disk, llamafactory-cli."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validator.doctor import check_result, hub_checks, package_checks
from validator.doctor.check_result import CheckContext, CheckResult, Shortage
from validator.doctor.device_checks import device_memory_shortages
from validator.doctor.disk_checks import disk_shortages
from validator.errors import RecipeError
from validator.finding import Severity
from validator.knowledge import node_environment, releases
from validator.launch import local_launch
from validator.machine import host
from validator.machine.accelerator import Accelerator
from validator.machine.installed_packages import find_installed
from validator.recipe import safe_read
from validator.run import hub_downloads, launch_command, launcher, model_files, trained_model
from validator.run.prediction import Job
from validator.wording import plural


def model_folder_shortages(job: Job) -> Iterator[Shortage]:
    """What the folders lack. Without weights LLaMA-Factory stops; without a tokenizer transformers makes up an empty
    one, and the run ends well with nothing learned. An adapter may have to be trained first."""
    for path in job.words("adapter_name_or_path"):
        if not job.find(path) and (before := trained_model.find_earlier_adapter(job.path, path)):
            yield Severity.ERROR, f"`{path}` does not exist yet; train `{before}` first"
    name = job.get("model_name_or_path")
    place = job.find(name) if isinstance(name, str) and name else None
    if place and safe_read.path_kind(place[0] / "config.json") == "file":
        scratch = job.flag("train_from_scratch")
        parts = [
            *model_files.missing_files(place[0], scratch=scratch),
            *(() if scratch else model_files.incomplete_downloads(place[0])),
        ]
        if parts:
            remedy = "get them from where the model comes from"
            yield Severity.ERROR, f"`{name}` holds no {' and no '.join(parts)}; {remedy}"


def ray_shortages(job: Job, cpus: int | None = None) -> Iterator[Shortage]:
    """Why the run would stop, or wait without end. `cpus` are those of this node, threads counted; by default those
    that this process may use, as Ray counts them."""
    if launcher.uses_ray():
        yield from _missing_ray_packages(job)
        starter = (
            "torchrun"
            if node_environment.is_env_enabled("FORCE_TORCHRUN")
            else "accelerate"
            if job.accelerate
            else None
        )
        if starter:
            yield Severity.ERROR, f"USE_RAY is set, and {starter} starts the processes, each of which would start Ray"
        yield from _ray_cpu_shortages(job, host.usable_cpus() if cpus is None else cpus)


def _missing_ray_packages(job: Job) -> Iterator[Shortage]:
    """Without `master_addr` LLaMA-Factory asks Ray's dashboard for the head node (train/trainer_utils.py,
    get_ray_head_node_ip), which stops with ServerUnavailable where only `ray` is installed (seen with 2.60)."""
    there = find_installed().among(["ray", "aiohttp-cors"])
    if "ray" not in there:
        yield Severity.ERROR, 'USE_RAY is set and the package is not installed: pip install "ray[default]"'
    elif "aiohttp-cors" not in there and not job.has("master_addr"):
        found = "ray is installed without its dashboard, which is asked for the head node"
        yield Severity.ERROR, f'{found}: pip install "ray[default]", or set `master_addr`'


def _ray_cpu_shortages(job: Job, cpus: int) -> Iterator[Shortage]:
    """Fewer CPUs than are reserved on this node. A node that has joined a cluster may have promised it more. Where
    there is no device LLaMA-Factory counts CPUs as such, and reserves ten times all (tried: it waited)."""
    if job.on_cpu:
        yield (
            Severity.ERROR,
            "on CPUs alone each counts as a device, for which Ray reserves 10: it would wait for ever; unset USE_RAY",
        )
    devices = job.machine.devices if job.machine and not job.on_cpu else 0
    wanted = launcher.RAY_CPUS * devices
    if cpus >= wanted or launcher.declared_ray_cpus(job) is not None:  # a promise that is too small is PAR206
        return
    found = (
        f"this node has {cpus} CPUs, "
        f"and {launcher.RAY_CPUS} are reserved for each of {devices} {plural(devices, 'device')}"
    )
    if launcher.joins_ray_cluster(job):
        yield Severity.WARNING, f"{found}: it has to join with `ray start --num-cpus {wanted}`"
    else:
        remedy = f"set `ray_init_kwargs: {{num_cpus: {wanted}}}`, or unset USE_RAY"
        yield Severity.ERROR, f"{found}: Ray would wait for ever; {remedy}"


def device_and_disk_shortages(job: Job, accelerators: Sequence[Accelerator]) -> Iterator[Shortage]:
    """What will not suffice, or may not."""
    yield from device_memory_shortages(job, accelerators)
    yield from disk_shortages(job)


def check_start(job: Job | None, node: CheckContext) -> Iterator[CheckResult]:
    """What `train` asks before it starts a run: packages, the starter, the model's folder.

    What would stop the run on its way to llamafactory-cli.
    """
    if job is None:
        return
    yield from (check_result.result_of_shortage("package", each) for each in package_checks.package_shortages(job))
    yield from _check_model(job)
    if "llamafactory" not in find_installed(node.folders).releases:
        return  # which is told of the packages
    try:
        prepared = local_launch.build_launch(job, (), node.target.variables if node.target else {})
        local_launch.check_launchable(
            _nodes_to_check(job, node, prepared.starter), releases.required_pairs(job.header)[0][0], prepared.starter
        )
    except RecipeError as err:
        yield CheckResult("error", "start", str(err))


def _check_model(job: Job) -> Iterator[CheckResult]:
    """What the model's folder or download lacks, else where it lies; what is not here yet is a question of hubs.py."""
    lacking = [*model_folder_shortages(job), *hub_checks.hub_shortages(job)]
    yield from (check_result.result_of_shortage("model", each) for each in lacking)
    name = str(job.get("model_name_or_path"))
    place = job.find(name)
    there = place[0] if place else next(iter(hub_downloads.cached_folders(job, name)), None)
    if there and not lacking:
        yield CheckResult("ok", "model", f"`{name}` lies in {there}" if str(there) != name else f"`{name}` is there")


def _nodes_to_check(job: Job, node: CheckContext, starter: tuple[str, ...]) -> int:
    """Before a run is queued nothing tells of this node's place among several, and it is not asked for; nor is it where
    the job's script writes the rank into the command."""
    told = "NODE_RANK" in node.environment or (
        "RDZV_ID" in node.environment and starter == launch_command.LLAMAFACTORY_CLI
    )
    return launch_command.nodes_and_devices(job)[0] if told else 1


def check_ray(job: Job | None, node: CheckContext) -> Iterator[CheckResult]:
    """Ray, where the environment hands the run to it.

    What it lacks on this node, or that its reservation can be given.
    """
    if job is None or not launcher.uses_ray():
        return
    cpus = host.usable_cpus(node.root)
    lacking = [*ray_shortages(job, cpus)]
    yield from (check_result.result_of_shortage("Ray", shortage) for shortage in lacking)
    if not lacking:
        yield CheckResult(
            "ok",
            "Ray",
            f"{launcher.declared_ray_cpus(job) or cpus} CPUs, "
            f"of which {launcher.RAY_CPUS} are reserved for each device",
        )
