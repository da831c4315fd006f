"""`ClusterJob`: one run in terms that every scheduler shares (command, resources per node, time, restart), with the
image or pip command that brings LLaMA-Factory to a node. `Submission`: job text, notes, and how to hand it over.
Several runs of equal shape become one array job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from validator.errors import RecipeError
from validator.escaping import shell_join
from validator.knowledge import node_environment, releases
from validator.knowledge.devices import Device, Machine
from validator.launch import local_launch
from validator.physics import Band
from validator.recipe.recipe_file import path_override
from validator.run import hub_downloads, launch_command, launcher, required_packages, training_time
from validator.run import training_time as paces
from validator.run.checkpoints import DEFAULT_OUTPUT_DIR
from validator.run.prediction import Job
from validator.submit import node_resources
from validator.submit.site_file import Site
from validator.wording import plural


@dataclass(frozen=True)
class ClusterJob:
    """One run, on a machine of this name. Paths are absolute, as every node is to see them.

    - `starter` are the words before the recipe, `torchrun` whether LLaMA-Factory's launcher starts the processes.
    - Of each of `nodes`, what to ask for: `devices` of a kind, `cpus`, `memory_gib` (None: not known, or nearly all
      there is), `shm_gib` (/dev/shm), `disk_gib` (None: not known). `relief`: what to do where memory is short.
    - `hours` of the whole run, None: not known; `limit`: those that the user admits.
    - Seconds, at most: `saving` of a checkpoint, `every` from one checkpoint to the next; None: not known, infinite:
      never.
    - `local`: every node may keep an output folder of its own.
    - `resumes`: a run that was stopped goes on from its last checkpoint.
      `overwrites`: what earlier runs left in the output folder does not count, and is set aside.
      `resuming`: overrides with which a run that was stopped goes on from its own."""

    name: str
    machine: str
    recipe: Path
    overrides: tuple[str, ...]
    starter: tuple[str, ...]
    torchrun: bool
    nodes: int
    devices: int
    device: Device
    cpus: int
    memory_gib: int | None
    shm_gib: int
    disk_gib: int | None
    relief: str
    hours: Band | None
    limit: float | None
    saving: float
    every: float | None
    environment: Mapping[str, str]
    output: Path
    local: bool
    install: tuple[str, ...]
    resumes: bool
    overwrites: bool
    resuming: tuple[str, ...]

    @property
    def accelerate(self) -> bool:
        """Whether `accelerate launch` starts the processes."""
        return self.starter[0] == "accelerate"


def build_cluster_job(job: Job, site: Site, overrides: Sequence[str] = (), limit: float | None = None) -> ClusterJob:
    """What is run for a checked job. `overrides` are the user's, `limit` the hours that they admit. Raises RecipeError
    where no machine is named, a path cannot be handed to LLaMA-Factory, or Ray is to start the processes."""
    machine = job.machine
    if machine is None:
        raise RecipeError(
            job.machine_problem or f"{job.workspace.recipe} names no machine; say `--machine 2x8xa100-80g` or the like"
        )
    if launcher.uses_ray() or node_environment.is_env_enabled("USE_RAY", site.environment):
        raise RecipeError(
            "USE_RAY is set, and the job starts torchrun, each process of which would start Ray; unset it"
        )
    prepared, pace = local_launch.build_launch(job, overrides), paces.predict_training_time(job)
    output = prepared.output or Path(DEFAULT_OUTPUT_DIR).absolute()
    unnamed = () if prepared.output else (path_override("output_dir", str(output)),)
    return ClusterJob(
        name=Path(job.workspace.recipe).stem,
        machine=str(machine),
        recipe=prepared.recipe,
        overrides=(*prepared.overrides, *unnamed),
        starter=prepared.starter,
        torchrun="FORCE_TORCHRUN" in prepared.variables,
        nodes=machine.nodes,
        devices=machine.devices,
        device=machine.device,
        cpus=node_resources.requested_cpus(job, machine),
        memory_gib=node_resources.requested_memory_gib(job, machine),
        shm_gib=node_resources.requested_shm_gib(job),
        disk_gib=node_resources.requested_disk_gib(job),
        relief=node_resources.out_of_memory_hint(job),
        hours=pace.hours if pace else None,
        limit=limit,
        saving=training_time.checkpoint_write_seconds(job),
        every=training_time.seconds_between_checkpoints(job),
        environment={**_node_env(job, machine), **site.environment},
        output=output,
        local=job.args.flag("save_on_each_node"),
        install=tuple(_pip_requirements(job)),
        resumes=_can_resume(job),
        overwrites=job.args.flag("overwrite_output_dir") and not _reads_own_output(job, output),
        resuming=tuple(_resume_overrides(job)),
    )


def _node_env(job: Job, machine: Machine) -> dict[str, str]:
    """What nodes want; what the user has set here wins."""
    wait = job.args.number("ddp_timeout") if machine.world > 1 else 0.0
    threads = launch_command.omp_threads(job, node_resources.requested_cpus(job, machine))
    wanted = {**launch_command.vendor_env(machine.device, machine.nodes, wait), **threads}
    return {name: os.environ.get(name, value) for name, value in wanted.items()} | hub_downloads.hub_env(job)


def _pip_requirements(job: Job) -> list[str]:
    """What pip is to install beside torch: the releases that the recipe was judged for, and what its keys need."""
    pair = dict(zip(releases.RELEASE_FIELDS, releases.required_pairs(job.header)[0], strict=True))
    further = (required_packages.pip_requirement(package) for package, _ in required_packages.packages_for_run(job))
    return [*(f"{package}=={release}" for package, release in pair.items()), *dict.fromkeys(further)]


def _can_resume(job: Job) -> bool:
    """Not in PPO (train/ppo/trainer.py), nor with a reward model: whole it is trained anew (hparams/parser.py,
    get_train_args), and an adapter's checkpoint is not found behind its value head (seen in real runs). Without the
    optimizer's states a run would go on as another one."""
    return job.task.trains and job.task.stage not in ("rm", "ppo") and not job.args.flag("save_only_model")


def _reads_own_output(job: Job, output: Path) -> bool:
    """Whether the run starts from something in its own output folder, which then has to stay there."""
    keys = ("resume_from_checkpoint", "adapter_name_or_path", "model_name_or_path", "tokenized_path")
    places = [place[0] for key in keys for word in job.args.words(key) if word and (place := job.workspace.find(word))]
    return any(place.resolve().is_relative_to(output.resolve()) for place in places)


def _resume_overrides(job: Job) -> Iterator[str]:
    """LLaMA-Factory looks for the last checkpoint in the output folder unless it is told otherwise (hparams/parser.py,
    get_train_args)."""
    if job.args.flag("overwrite_output_dir"):
        yield "overwrite_output_dir=false"
    if job.args.get("resume_from_checkpoint"):
        yield "resume_from_checkpoint=null"


_IMAGE_REPOSITORY = "hiyouga/llamafactory"
# What the names of release images for Ascend end with (LLaMA-Factory at v0.9.5, .github/workflows/docker.yml).
_ASCEND_TAG_ENDS = {"ascend-910b-32g": "-npu-a2", "ascend-910b-64g": "-npu-a2", "ascend-910c-64g": "-npu-a3"}
# Of PyTorch 2.6 for CUDA 12.4 (docker/docker-cuda/Dockerfile), which has no kernels for Blackwell.
_MAX_CAPABILITY = 9.0


def published_image(work: ClusterJob) -> str | None:
    """The image that LLaMA-Factory publishes for its release and this device; None where there is none."""
    release = next(word.partition("==")[2] for word in work.install if word.startswith("llamafactory=="))
    device = work.device
    if device.vendor in ("nvidia", "cpu"):
        return f"{_IMAGE_REPOSITORY}:{release}" if (device.capability or _MAX_CAPABILITY) <= _MAX_CAPABILITY else None
    return f"{_IMAGE_REPOSITORY}:{release}{_ASCEND_TAG_ENDS[device.id]}" if device.id in _ASCEND_TAG_ENDS else None


def pip_command(work: ClusterJob) -> str:
    """The command for the releases that the recipe was judged for, and for what its keys need."""
    return shell_join(["python3", "-m", "pip", "install", "--quiet", *work.install])


class RunToSubmit(NamedTuple):
    """A checked job, the user's overrides, and what is to be run."""

    job: Job
    overrides: Sequence[str]
    work: ClusterJob


def require_single(runs: Sequence[RunToSubmit]) -> RunToSubmit:
    """The one run. Raises RecipeError where there are several: array jobs are SLURM's."""
    if len(runs) > 1:
        raise RecipeError(f"{len(runs)} recipes are an array job, which SLURM alone has; submit them one by one")
    return runs[0]


class Submission(NamedTuple):
    """`text` is the job as the engine reads it, `notes` are for whoever submits it; `hand` gives it to the engine's own
    client, yields lines that say how to follow it, and raises RecipeError where it is refused."""

    text: str
    notes: Sequence[str]
    hand: Callable[[], Iterable[str]]


def merge_into_array(works: Sequence[ClusterJob]) -> ClusterJob:
    """A run with the resources of the largest, and what any of them needs to go on. Raises RecipeError where they
    cannot be one array."""
    _check_alike(works)
    first = works[0]
    memories, hours = [work.memory_gib for work in works], [work.hours for work in works]
    return replace(
        first,
        name=first.name if len(works) == 1 else first.recipe.parent.name,
        cpus=max(work.cpus for work in works),
        memory_gib=None if None in memories else max(filter(None, memories)),
        hours=None if None in hours else max(filter(None, hours), key=lambda span: span.high),
        every=None if any(work.every is None for work in works) else max(work.every or 0.0 for work in works),
        saving=max(work.saving for work in works),
        overwrites=any(work.overwrites for work in works),
        resuming=tuple(dict.fromkeys(word for work in works for word in work.resuming)),
    )


def _check_alike(works: Sequence[ClusterJob]) -> None:
    first = works[0]
    for work in works[1:]:
        if _describe_shape(work) != _describe_shape(first):
            both = f"{first.name} is for {_describe_shape(first)}, {work.name} for {_describe_shape(work)}"
            raise RecipeError(f"the jobs of an array are alike, but {both}; submit them one by one")
    for one, other in combinations(works, 2):
        if one.output == other.output:
            raise RecipeError(
                f"{one.name} and {other.name} both write to {one.output}; give each an output_dir of its own"
            )


def _describe_shape(work: ClusterJob) -> str:
    """What the jobs of an array have in common, in words."""
    by = "accelerate" if work.accelerate else "torchrun" if work.torchrun else "one process"
    further = (", on folders of their own" if work.local else "") + ("" if work.resumes else ", without resuming")
    return f"{work.nodes} {plural(work.nodes, 'node')} of {work.devices} {work.device.id} by {by}{further}"
