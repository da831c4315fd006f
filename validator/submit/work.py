"""What an engine is to run, in the terms of no engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.job import pace as paces
from validator.job import ray, saves
from validator.job.job import Job
from validator.job.resumption import UNNAMED
from validator.read.override import assignment
from validator.speed import Span
from validator.submit import demand
from validator.submit.site import Site
from validator.tables import releases, switch
from validator.tables.devices import Device
from validator.tables.machines import Machine
from validator.train import environment, handoff, hub, packages


@dataclass(frozen=True)
class Work:
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
    hours: Span | None
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


def work(job: Job, site: Site, overrides: Sequence[str] = (), limit: float | None = None) -> Work:
    """What is run for a checked job. `overrides` are the user's, `limit` the hours that they admit. Raises RecipeError
    where no machine is named, a path cannot be handed to LLaMA-Factory, or Ray is to start the processes."""
    machine = job.machine
    if machine is None:
        raise RecipeError(
            job.machine_problem or f"{job.path} names no machine; say `--machine 2x8xa100-80g` or the like"
        )
    if ray.on() or switch.on("USE_RAY", site.environment):
        raise RecipeError(
            "USE_RAY is set, and the job starts torchrun, each process of which would start Ray; unset it"
        )
    prepared, pace = handoff.prepare(job, overrides), paces.pace(job)
    output = prepared.output or Path(UNNAMED).absolute()
    unnamed = () if prepared.output else (assignment("output_dir", str(output)),)
    return Work(
        name=Path(job.path).stem,
        machine=str(machine),
        recipe=prepared.recipe,
        overrides=(*prepared.overrides, *unnamed),
        starter=prepared.starter,
        torchrun="FORCE_TORCHRUN" in prepared.variables,
        nodes=machine.nodes,
        devices=machine.devices,
        device=machine.device,
        cpus=demand.cpus(job, machine),
        memory_gib=demand.memory(job, machine),
        shm_gib=demand.shm(job, machine),
        disk_gib=demand.disk(job),
        relief=demand.relief(job),
        hours=pace.hours if pace else None,
        limit=limit,
        saving=saves.seconds(job),
        every=saves.apart(job),
        environment={**_variables(job, machine), **site.environment},
        output=output,
        local=job.flag("save_on_each_node"),
        install=tuple(_install(job)),
        resumes=_resumes(job),
        overwrites=job.flag("overwrite_output_dir") and not _reads(job, output),
        resuming=tuple(_resuming(job)),
    )


def _variables(job: Job, machine: Machine) -> dict[str, str]:
    """What nodes want; what the user has set here wins."""
    wait = job.number("ddp_timeout") if machine.world > 1 else 0.0
    threads = environment.threads(job, demand.cpus(job, machine))
    wanted = {**environment.variables(machine.device, machine.nodes, wait), **threads}
    return {name: os.environ.get(name, value) for name, value in wanted.items()} | hub.variables(job)


def _install(job: Job) -> list[str]:
    """What pip is to install beside torch: the releases that the recipe was judged for, and what its keys need."""
    pair = dict(zip(releases.FIELDS, releases.pairs(job.header)[0], strict=True))
    further = (packages.requirement(package) for package, _ in packages.needed(job))
    return [*(f"{package}=={release}" for package, release in pair.items()), *dict.fromkeys(further)]


def _resumes(job: Job) -> bool:
    """Not in PPO (train/ppo/trainer.py), nor with a reward model: whole it is trained anew (hparams/parser.py,
    get_train_args), and an adapter's checkpoint is not found behind its value head (seen in real runs). Without the
    optimizer's states a run would go on as another one."""
    return job.trains and job.stage not in ("rm", "ppo") and not job.flag("save_only_model")


def _reads(job: Job, output: Path) -> bool:
    """Whether the run starts from something in its own output folder, which then has to stay there."""
    keys = ("resume_from_checkpoint", "adapter_name_or_path", "model_name_or_path", "tokenized_path")
    places = [place[0] for key in keys for word in job.words(key) if word and (place := job.find(word))]
    return any(place.resolve().is_relative_to(output.resolve()) for place in places)


def _resuming(job: Job) -> Iterator[str]:
    """LLaMA-Factory looks for the last checkpoint in the output folder unless it is told otherwise (hparams/parser.py,
    get_train_args)."""
    if job.flag("overwrite_output_dir"):
        yield "overwrite_output_dir=false"
    if job.get("resume_from_checkpoint"):
        yield "resume_from_checkpoint=null"
