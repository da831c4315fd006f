"""`ClusterJob` is one run in terms that all schedulers share: command, resources per node, time, and how to restart.
Also the image or the pip command that brings LLaMA-Factory to a node. `Submission` holds the text of the job, notes,
and the function that submits the job. Several runs of equal shape become one array job."""

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
from validator.recipe import safe_read
from validator.recipe.recipe_file import path_override
from validator.run import (
    calibration,
    checkpoints,
    launch_command,
    model_files,
    needed_packages,
    node_demand,
    training_time,
)
from validator.run.launch_command import Launch, Launcher
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.submit.site_file import Site
from validator.wording import format_duration, plural

# Main memory and disk beyond the end of their bands: the system's own, and files in the page cache.
_HEADROOM = 1.1
_SHM_ROOM_GIB = 2  # for what a container's programs add to loader workers and NCCL


@dataclass(frozen=True)
class ClusterJob:
    """One run as a job on a cluster. `machine` is its name, such as `2x8xa100-80g`. Paths are absolute, because all
    nodes must see the same files.

    `starter` holds the words of the command before the recipe. `launcher` names the program that starts the training
    processes.

    Resources are requested for each of `nodes`: `devices` of one kind, `cpus`, `memory_gib` of main memory, `shm_gib`
    of /dev/shm, and `disk_gib`. `memory_gib` is None if the need is unknown or close to all memory of a node;
    `disk_gib` is None if the need is unknown. `out_of_memory_hint` tells the user what helps if main memory is short.

    `hours` is the predicted time of the whole run (None: not known). `time_limit_h` is the limit that the user sets
    (None: no limit).

    `checkpoint_interval_s` is the longest time from one checkpoint to the next (None: not known; infinite: no
    checkpoint is written before the end). `checkpoint_write_s` is the longest time to write a checkpoint.

    `separate_output_dirs` is true if each node may have an output folder on its own disk. `can_resume` is true if a
    stopped run continues from its last checkpoint, with `resume_overrides`. `discards_old_checkpoints` is true if the
    run ignores what earlier runs left in the output folder; the job moves these files aside. `torch_words` and
    `pip_requirements` are the words after `pip install` that bring PyTorch, and then all other packages."""

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
    torch_words: tuple[str, ...]
    pip_requirements: tuple[str, ...]
    can_resume: bool
    discards_old_checkpoints: bool
    resume_overrides: tuple[str, ...]


def build_cluster_job(
    run: RunSettings, site: Site, overrides: Sequence[str] = (), limit: float | None = None
) -> ClusterJob:
    """Describe a checked run as a job on a cluster. `overrides` are the user's overrides of recipe keys, `limit` is the
    user's time limit in hours (None: no limit). Raises RecipeError if the recipe names no machine, if a space in a path
    would split the launcher's command, or if USE_RAY is set, because each process would then start Ray."""
    machine = run.machine
    if machine is None:
        unnamed = f"{run.workspace.recipe} names no machine; say `--machine 2x8xa100-80g` or the like"
        raise RecipeError(run.machine_problem or unnamed)
    if launch_command.uses_ray() or node_environment.is_env_enabled("USE_RAY", site.environment):
        found = "USE_RAY is set, and the job starts torchrun"
        raise RecipeError(f"{found}, each process of which would start Ray; unset it")
    launch, prediction, correction = Launch(run), predict(run), calibration.time_correction(str(machine))
    pace = training_time.predict_training_time(run, correction=correction)
    recipe, words = launch.absolute_words(overrides)
    output, cpus = checkpoints.output_dir(run), _requested_cpus(run, machine)
    named = run.args.get("output_dir")
    words = words if named else (*words, path_override("output_dir", str(output)))
    # What the user has set here wins, and over that what the site file has, which the job exports later.
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
        environment={**node_env, **model_files.hub_env(run)},
        output=output,
        separate_output_dirs=run.args.flag("save_on_each_node"),
        torch_words=tuple(needed_packages.torch_words(machine.device.vendor, run.releases.pip_range("torch"))),
        pip_requirements=tuple(_pip_requirements(run)),
        can_resume=_can_resume(run),
        discards_old_checkpoints=run.args.flag("overwrite_output_dir") and not _reads_own_output(run, output),
        resume_overrides=tuple(_resume_overrides(run)),
    )


def _requested_cpus(run: RunSettings, machine: Machine) -> int:
    """Return the CPU cores to request on each node: as many as keep the devices busy during training, or as many as the
    tokenizing processes before training use, if that is more. The cores for tokenizing are limited to those of a usual
    server with these devices."""
    tokenizers = int(run.args.number("preprocessing_num_workers"))
    limited = node_demand.limit_to_usual_server(tokenizers, machine.device, machine.devices)
    return max(node_demand.training_cpus(run, machine.devices), limited)


def _requested_memory_gib(need: Estimate | None, machine: Machine) -> int | None:
    """Return the GiB of main memory to request on each node: the predicted need with 10 % headroom. Return None if that
    is more than 90 % of the node's memory (firmware and kernel keep some of a server's 1,024 GiB), if the need is
    unknown, or if the device shares main memory with the CPU."""
    if need is None or machine.device.shared_memory:
        return None
    requested_gib = math.ceil(_HEADROOM * need.high / GIB)
    return None if machine.host_ram_gib and requested_gib > 0.9 * machine.host_ram_gib else requested_gib


def _out_of_memory_hint(run: RunSettings) -> str:
    """Return the advice for a run that fails because main memory is short. The advice mentions that a larger /dev/shm,
    which people often try, does not help."""
    workers, ways = int(run.args.number("preprocessing_num_workers")), []
    if workers > 1:
        ways.append(f"fewer `preprocessing_num_workers` than {workers} (where it happens while tokenizing)")
    if run.deepspeed and run.deepspeed.offloads:
        ways.append("a configuration that offloads nothing to main memory")
    ways.append("nodes with more main memory")
    short = "Exit code -9 of a rank means that main memory was too small. A larger /dev/shm does not help; what does"
    return f"{short}: {', or '.join(ways)}."


def _pip_requirements(run: RunSettings) -> list[str]:
    """Return the packages for pip to install, without torch: LLaMA-Factory and its libraries in the releases that the
    prediction assumes, and packages that the recipe's keys need, such as deepspeed."""
    pair = dict(zip(releases.RELEASE_FIELDS, run.releases.required_pairs[0], strict=True))
    needed = (each for each in needed_packages.needed_packages(run) if each.dies != needed_packages.NEVER)
    further = (needed_packages.pip_requirement(each, run) for each in needed if not each.install)
    return [*(f"{package}=={release}" for package, release in pair.items()), *dict.fromkeys(further)]


def _can_resume(run: RunSettings) -> bool:
    """True if a run that was stopped continues from its last checkpoint. PPO does not resume (train/ppo/trainer.py). A
    reward model does not resume either: full tuning starts anew (hparams/parser.py, get_train_args), and an adapter's
    checkpoint is not found behind the value head (seen in real runs). With `save_only_model` there are no optimizer
    states, so a resumed run would differ."""
    return run.task.trains and run.task.stage not in ("rm", "ppo") and not run.args.flag("save_only_model")


def _reads_own_output(run: RunSettings, output: Path) -> bool:
    """True if the run reads a checkpoint, an adapter, a model or tokenized data from its own output folder. Files from
    earlier runs must then stay in the folder."""
    keys = ("resume_from_checkpoint", "adapter_name_or_path", "model_name_or_path", "tokenized_path")
    places = [place[0] for key in keys for word in run.args.words(key) if word and (place := run.workspace.find(word))]
    return any(safe_read.real_path(place).is_relative_to(safe_read.real_path(output)) for place in places)


def _resume_overrides(run: RunSettings) -> Iterator[str]:
    """Yield the overrides that a restarted run needs to continue from its last checkpoint. With `overwrite_output_dir`
    or an explicit `resume_from_checkpoint`, LLaMA-Factory does not look for the last checkpoint in the output folder
    (hparams/parser.py, get_train_args)."""
    if run.args.flag("overwrite_output_dir"):
        yield "overwrite_output_dir=false"
    if run.args.get("resume_from_checkpoint"):
        yield "resume_from_checkpoint=null"


_IMAGE_REPOSITORY = "hiyouga/llamafactory"
# Of the image's PyTorch 2.6 for CUDA 12.4 (docker/docker-cuda/Dockerfile), which has no kernels for Blackwell.
_MAX_CAPABILITY = 9.0


def published_image(work: ClusterJob) -> str | None:
    """Return the container image that LLaMA-Factory publishes for the run's LLaMA-Factory release and device. Return
    None if no published image runs on this device."""
    release = next(word.partition("==")[2] for word in work.pip_requirements if word.startswith("llamafactory=="))
    end = node_environment.node_needs(work.device).image_tag_end
    if end is None or (work.device.capability or 0.0) > _MAX_CAPABILITY:
        return None
    return f"{_IMAGE_REPOSITORY}:{release}{end}"


def torch_image(work: ClusterJob) -> str | None:
    """Return a container image with PyTorch for the run's device, in which a job installs LLaMA-Factory. Return None if
    none is known."""
    return needed_packages.install_set(work.device.vendor).get("image")


def pip_line(words: Sequence[str]) -> str:
    """Return the pip command with these words after `install`."""
    return shell_join(["python3", "-m", "pip", "install", "--quiet", *words])


def image_install_lines(work: ClusterJob) -> list[str]:
    """Return bash lines that install the run's packages in an image that LLaMA-Factory did not publish. The image keeps
    its own LLaMA-Factory, and its own PyTorch."""
    return [
        "# The releases that the recipe was judged for, in an image without LLaMA-Factory",
        "if ! command -v llamafactory-cli >/dev/null; then",
        f"  python3 -c 'import torch' 2>/dev/null || {pip_line(work.torch_words)}",
        f"  {pip_line(work.pip_requirements)}",
        "fi",
    ]


class RunToSubmit(NamedTuple):
    """A checked recipe, the user's overrides, and the cluster job that runs it."""

    run: RunSettings
    overrides: Sequence[str]
    work: ClusterJob


def require_single(runs: Sequence[RunToSubmit]) -> RunToSubmit:
    """Return the only run in the list. Raises RecipeError if there are several runs, because only SLURM has array
    jobs."""
    if len(runs) > 1:
        raise RecipeError(f"{len(runs)} recipes are an array job, which SLURM alone has; submit them one by one")
    return runs[0]


class Submission(NamedTuple):
    """A job that is ready to submit. `text` is the job in the scheduler's format, `notes` are messages for the user.
    `submit` hands the job to the scheduler's own client and yields lines that say how to follow the job. `submit`
    raises RecipeError if the scheduler refuses the job. `start`: the shell command that takes the file of a job that
    was only written; empty if the engine's own page says it. `program`: the folder that has to hold the program of the
    job before it starts; None if the job brings it to the nodes."""

    text: str
    notes: Sequence[str]
    submit: Callable[[], Iterable[str]]
    start: str = ""
    program: Path | None = None


def loss_notes(work: ClusterJob) -> Iterator[str]:
    """Yield a note that says what a run loses at most if its job is killed, and when the first checkpoint is written;
    no note if the time between checkpoints is not known."""
    if work.checkpoint_interval_s is None:
        return
    killed = "where it is preempted or a node fails"
    if not work.can_resume:
        yield f"{work.name} loses all {killed}: it cannot go on from a checkpoint"
    elif math.isinf(work.checkpoint_interval_s):
        yield f"{work.name} loses all {killed}: the first checkpoint is written at the end; set a smaller `save_steps`"
    else:
        apart = format_duration(work.checkpoint_interval_s)
        yield f"{work.name} loses up to {apart} {killed}: checkpoints lie so far apart, and the first comes as late"


def merge_into_array(works: Sequence[ClusterJob]) -> ClusterJob:
    """Merge several runs into one `ClusterJob` for an array job, with the resources of the largest run. Raises
    RecipeError if the runs differ in shape (nodes, devices, launcher, ability to resume), or if two runs write to the
    same output folder."""
    first = works[0]
    for work in works[1:]:
        if _describe_shape(work) != _describe_shape(first):
            both = f"{first.name} is for {_describe_shape(first)}, {work.name} for {_describe_shape(work)}"
            raise RecipeError(f"the jobs of an array are alike, but {both}; submit them one by one")
    for one, another in combinations(works, 2):
        if one.output == another.output:
            both = f"{one.name} and {another.name} both write to {one.output}"
            raise RecipeError(f"{both}; give each an output_dir of its own")
    return replace(
        first,
        name=first.name if len(works) == 1 else first.recipe.parent.name,
        cpus=max(work.cpus for work in works),
        memory_gib=_largest(work.memory_gib for work in works),
        hours=_longest([work.hours for work in works]),
        checkpoint_interval_s=_largest(work.checkpoint_interval_s for work in works),
        checkpoint_write_s=max(work.checkpoint_write_s for work in works),
    )


def _largest(values: Iterable[Any]) -> Any:
    """Return the largest of the values. Return None if any value is None, which means not known."""
    every = [*values]
    return None if None in every else max(every)


def _longest(hours: Sequence[Band | None]) -> Band | None:
    """Return the hours within which each of the runs ends: of the low, the expected and the high end the largest.
    Return None if the hours of a run are not known."""
    known = [each for each in hours if each]
    return Band(*map(max, zip(*known, strict=True))) if len(known) == len(hours) else None


def _describe_shape(work: ClusterJob) -> str:
    """Describe in words what all runs of an array job must have in common: nodes, devices, launcher, folders and the
    ability to resume. Runs with different descriptions cannot form one array."""
    by = "one process" if work.launcher == "python" else work.launcher
    folders = ", on folders of their own" if work.separate_output_dirs else ""
    resuming = "" if work.can_resume else ", without resuming"
    return f"{work.nodes} {plural(work.nodes, 'node')} of {work.devices} {work.device.id} by {by}{folders}{resuming}"
