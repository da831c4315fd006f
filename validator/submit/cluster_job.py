"""`ClusterJob`: one run in terms that every scheduler shares (command, resources per node, time, restart), with the
image or pip command that brings LLaMA-Factory to a node. `Submission`: job text, notes, and how to hand it over.
Several runs of equal shape become one array job."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.escaping import shell_join
from validator.knowledge import node_environment, releases
from validator.knowledge.devices import Device, Machine
from validator.physics import Band, Estimate
from validator.physics.estimate import GIB
from validator.recipe.recipe_file import path_override
from validator.run import checkpoints, launch_command, model_files, node_demand, training_time
from validator.run.launch_command import Launch, Launcher
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.submit.site_file import Site
from validator.wording import plural

# Main memory and disk beyond the end of their bands: the system's own, and files in the page cache.
_HEADROOM = 1.1
_SHM_ROOM_GIB = 2  # for what a container's programs add to loader workers and NCCL


@dataclass(frozen=True)
class ClusterJob:
    """One run, on a machine of this name. Paths are absolute, as every node is to see them.

    - `starter` are the words before the recipe, `launcher` is what starts the processes that train.
    - To request for each of `nodes`: `devices` of one kind, `cpus`, `memory_gib` (None: not known, or nearly all that
      there is), `shm_gib` (/dev/shm), `disk_gib` (None: not known). `out_of_memory_hint`: what helps if main memory is
      short.
    - `hours` that the whole run is predicted to take (None: not known). `time_limit_h`: the most that the user admits.
    - `checkpoint_interval_s`: the longest time from one checkpoint to the next (None: not known, infinite: none is
      written). `checkpoint_write_s`: the longest time that one takes to write.
    - `separate_output_dirs`: every node may keep an output folder of its own.
    - `can_resume`: a run that was stopped goes on from its last checkpoint, with `resume_overrides`.
      `discards_old_checkpoints`: what earlier runs left in the output folder does not count, and is set aside.
    - `pip_requirements`: what pip installs beside torch."""

    name: str
    machine: str
    recipe: Path
    overrides: tuple[str, ...]
    starter: tuple[str, ...]
    launcher: Launcher
    nodes: int
    devices: int
    device: Device
    cpus: int
    memory_gib: int | None
    shm_gib: int
    disk_gib: int | None
    out_of_memory_hint: str
    hours: Band | None
    time_limit_h: float | None
    checkpoint_write_s: float
    checkpoint_interval_s: float | None
    environment: Mapping[str, str]
    output: Path
    separate_output_dirs: bool
    pip_requirements: tuple[str, ...]
    can_resume: bool
    discards_old_checkpoints: bool
    resume_overrides: tuple[str, ...]


def build_cluster_job(
    run: RunSettings, site: Site, overrides: Sequence[str] = (), limit: float | None = None
) -> ClusterJob:
    """Return what a checked run is on a cluster. `overrides` are the user's, `limit` the hours that they admit. Raises
    RecipeError where no machine is named, a path cannot be handed to LLaMA-Factory, or Ray would start the processes.
    """
    machine = run.machine
    if machine is None:
        unnamed = f"{run.workspace.recipe} names no machine; say `--machine 2x8xa100-80g` or the like"
        raise RecipeError(run.machine_problem or unnamed)
    if launch_command.uses_ray() or node_environment.is_env_enabled("USE_RAY", site.environment):
        found = "USE_RAY is set, and the job starts torchrun"
        raise RecipeError(f"{found}, each process of which would start Ray; unset it")
    launch, prediction, pace = Launch(run), predict(run), training_time.predict_training_time(run)
    recipe, words = launch.absolute_words(overrides)
    output, cpus = checkpoints.output_dir(run), _requested_cpus(run, machine)
    named = run.args.get("output_dir")
    words = words if named else (*words, path_override("output_dir", str(output)))
    # What the user has set here wins, and what the site has set over that.
    node_env = {name: os.environ.get(name, value) for name, value in launch.node_env(cpus).items()}
    shm = node_demand.shared_memory_mib(run).enough * node_demand.MIB / GIB
    return ClusterJob(
        name=Path(run.workspace.recipe).stem,
        machine=str(machine),
        recipe=recipe,
        overrides=words,
        starter=launch.words,
        launcher=launch.launcher,
        nodes=machine.nodes,
        devices=machine.devices,
        device=machine.device,
        cpus=cpus,
        memory_gib=_requested_memory_gib(prediction.host_memory, machine),
        shm_gib=_SHM_ROOM_GIB + math.ceil(shm),
        disk_gib=math.ceil(_HEADROOM * sum(prediction.disk.values()) / GIB) if prediction.disk else None,
        out_of_memory_hint=_out_of_memory_hint(run),
        hours=pace.hours if pace else None,
        time_limit_h=limit,
        checkpoint_write_s=training_time.checkpoint_write_seconds(run),
        checkpoint_interval_s=training_time.seconds_between_checkpoints(run),
        environment={**node_env, **model_files.hub_env(run), **site.environment},
        output=output,
        separate_output_dirs=run.args.flag("save_on_each_node"),
        pip_requirements=tuple(_pip_requirements(run)),
        can_resume=_can_resume(run),
        discards_old_checkpoints=run.args.flag("overwrite_output_dir") and not _reads_own_output(run, output),
        resume_overrides=tuple(_resume_overrides(run)),
    )


def _requested_cpus(run: RunSettings, machine: Machine) -> int:
    """Return the cores that keep the devices busy, or as many as tokenize before that, if they are more."""
    tokenizers = int(run.args.number("preprocessing_num_workers"))
    limited = node_demand.limit_to_usual_server(tokenizers, machine.device, machine.devices)
    return max(node_demand.training_cpus(run, machine.devices), limited)


def _requested_memory_gib(need: Estimate | None, machine: Machine) -> int | None:
    """Return GiB of main memory with headroom. None if that is nearly all of the node (firmware and kernel keep some of
    a server's 1,024 GiB), or if the device's memory comes out of it, too."""
    if need is None or machine.device.shared_memory:
        return None
    asked = math.ceil(_HEADROOM * need.high / GIB)
    return None if machine.host_ram_gib and asked > 0.9 * machine.host_ram_gib else asked


def _out_of_memory_hint(run: RunSettings) -> str:
    """Return what to do if main memory is short after all. A larger /dev/shm, often tried, is part of it."""
    workers, ways = int(run.args.number("preprocessing_num_workers")), []
    if workers > 1:
        ways.append(f"fewer `preprocessing_num_workers` than {workers} (where it happens while tokenizing)")
    if run.deepspeed and run.deepspeed.offloads:
        ways.append("a configuration that offloads nothing to main memory")
    ways.append("nodes with more main memory")
    short = "Exit code -9 of a rank means that main memory was too small. A larger /dev/shm does not help; what does"
    return f"{short}: {', or '.join(ways)}."


def _pip_requirements(run: RunSettings) -> list[str]:
    """Return the packages that pip installs beside torch: the releases that the recipe was judged for, and packages
    that its keys need."""
    pair = dict(zip(releases.RELEASE_FIELDS, run.releases.required_pairs[0], strict=True))
    further = (node_demand.pip_requirement(package) for package, _ in node_demand.packages_for_run(run))
    return [*(f"{package}=={release}" for package, release in pair.items()), *dict.fromkeys(further)]


def _can_resume(run: RunSettings) -> bool:
    """True if a run that was stopped goes on from its checkpoint. PPO does not (train/ppo/trainer.py). A reward model
    does not: with full tuning it starts anew (hparams/parser.py, get_train_args), and an adapter's checkpoint is not
    found behind its value head (seen in real runs). Without optimizer states a run would not go on as the same."""
    return run.task.trains and run.task.stage not in ("rm", "ppo") and not run.args.flag("save_only_model")


def _reads_own_output(run: RunSettings, output: Path) -> bool:
    """True if the run starts from something in its own output folder, which then has to stay there."""
    keys = ("resume_from_checkpoint", "adapter_name_or_path", "model_name_or_path", "tokenized_path")
    places = [place[0] for key in keys for word in run.args.words(key) if word and (place := run.workspace.find(word))]
    return any(place.resolve().is_relative_to(output.resolve()) for place in places)


def _resume_overrides(run: RunSettings) -> Iterator[str]:
    """Yield overrides without which LLaMA-Factory would not look for the last checkpoint in the output folder
    (hparams/parser.py, get_train_args)."""
    if run.args.flag("overwrite_output_dir"):
        yield "overwrite_output_dir=false"
    if run.args.get("resume_from_checkpoint"):
        yield "resume_from_checkpoint=null"


_IMAGE_REPOSITORY = "hiyouga/llamafactory"
# Of the image's PyTorch 2.6 for CUDA 12.4 (docker/docker-cuda/Dockerfile), which has no kernels for Blackwell.
_MAX_CAPABILITY = 9.0


def published_image(work: ClusterJob) -> str | None:
    """Return the image that LLaMA-Factory publishes for its release and this device; None if there is none."""
    release = next(word.partition("==")[2] for word in work.pip_requirements if word.startswith("llamafactory=="))
    end = node_environment.node_needs(work.device).image_tag_end
    if end is None or (work.device.capability or 0.0) > _MAX_CAPABILITY:
        return None
    return f"{_IMAGE_REPOSITORY}:{release}{end}"


def pip_command(work: ClusterJob) -> str:
    """Return the command that installs the releases that the recipe was judged for, and what its keys need."""
    return shell_join(["python3", "-m", "pip", "install", "--quiet", *work.pip_requirements])


class RunToSubmit(NamedTuple):
    """A checked recipe, the user's overrides, and the cluster job that runs it."""

    run: RunSettings
    overrides: Sequence[str]
    work: ClusterJob


def require_single(runs: Sequence[RunToSubmit]) -> RunToSubmit:
    """Return the one run. Raises RecipeError if there are several: only SLURM has array jobs."""
    if len(runs) > 1:
        raise RecipeError(f"{len(runs)} recipes are an array job, which SLURM alone has; submit them one by one")
    return runs[0]


class Submission(NamedTuple):
    """`text` is the job as the scheduler reads it, `notes` are for whoever submits it. `submit` gives it to the
    scheduler's own client, yields lines that say how to follow it, and raises RecipeError where it is refused."""

    text: str
    notes: Sequence[str]
    submit: Callable[[], Iterable[str]]


def merge_into_array(works: Sequence[ClusterJob]) -> ClusterJob:
    """Return one `ClusterJob` for an array: resources of the largest run, and the restart overrides of all runs. Raises
    RecipeError where the runs cannot be one array."""
    first = works[0]
    for work in works[1:]:
        if _describe_shape(work) != _describe_shape(first):
            both = f"{first.name} is for {_describe_shape(first)}, {work.name} for {_describe_shape(work)}"
            raise RecipeError(f"the jobs of an array are alike, but {both}; submit them one by one")
    for one, other in combinations(works, 2):
        if one.output == other.output:
            both = f"{one.name} and {other.name} both write to {one.output}"
            raise RecipeError(f"{both}; give each an output_dir of its own")
    return replace(
        first,
        name=first.name if len(works) == 1 else first.recipe.parent.name,
        cpus=max(work.cpus for work in works),
        memory_gib=_largest(work.memory_gib for work in works),
        hours=_largest((work.hours for work in works), lambda span: span.high),
        checkpoint_interval_s=_largest(work.checkpoint_interval_s for work in works),
        checkpoint_write_s=max(work.checkpoint_write_s for work in works),
        discards_old_checkpoints=any(work.discards_old_checkpoints for work in works),
        resume_overrides=tuple(dict.fromkeys(word for work in works for word in work.resume_overrides)),
    )


def _largest(values: Iterable[Any], key: Callable[[Any], float] | None = None) -> Any:
    """Return the largest value; None if one of them is not known."""
    every = [*values]
    return None if None in every else max(every, key=key)


def _describe_shape(work: ClusterJob) -> str:
    """Return in words what the runs of an array must have in common."""
    by = "one process" if work.launcher == "python" else work.launcher
    folders = ", on folders of their own" if work.separate_output_dirs else ""
    resuming = "" if work.can_resume else ", without resuming"
    return f"{work.nodes} {plural(work.nodes, 'node')} of {work.devices} {work.device.id} by {by}{folders}{resuming}"
