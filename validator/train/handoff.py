"""From a checked job to llamafactory-cli: absolute paths, the launcher's environment, and where the results are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from validator.diagnostic import RecipeError
from validator.here import host, nvidia
from validator.job import ray
from validator.job.job import Job
from validator.read import disk
from validator.read.override import assignment
from validator.tables import switch
from validator.train import environment, hub, launch

# Keys whose relative paths LLaMA-Factory takes from the working directory. Those that must exist are looked for beside
# the recipe too; the others are made where the user stands.
_READ = ("deepspeed", "dataset_dir", "model_name_or_path", "adapter_name_or_path", "media_dir", "fsdp_config",
         "resume_from_checkpoint", "reward_model", "ref_model")  # fmt: skip
_WRITTEN = ("output_dir", "tokenized_path")
_SPACE = re.compile(r"\s")
_RESULTS = ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json", "training_loss.png",
            "trainer_log.jsonl")  # fmt: skip


@dataclass(frozen=True)
class Handoff:
    """What llamafactory-cli gets, or accelerate: `starter` are the words before the recipe. `variables` are added to
    the environment; what the user has set wins, but over `chosen`, which leave the run some of the devices. `counted`
    are those that depend on this machine: what the shell would count, what its driver lacks."""

    recipe: Path
    overrides: tuple[str, ...]
    variables: Mapping[str, str]
    output: Path | None
    starter: tuple[str, ...] = launch.CLI
    chosen: Mapping[str, str] = field(default_factory=dict)
    counted: Mapping[str, str] = field(default_factory=dict)

    @property
    def process(self) -> launch.Process:
        variables = {**self.variables, **self.counted}
        return launch.process(self.recipe, self.overrides, variables, self.starter, self.chosen)


def size(job: Job) -> tuple[int, int]:
    """Nodes that a command is started on, and devices of each; one of one where no machine is named. Ray starts the
    processes of the other nodes itself."""
    if job.machine is None:
        return 1, 1
    return 1 if ray.on() and not job.accelerate else job.machine.nodes, job.machine.devices


def commands(job: Job, recipe: str, overrides: Sequence[str]) -> list[str]:
    """The command for each node, as a shell line. `recipe` is the path that stands in it."""
    named = str(job.header.get("accelerate"))
    file = named if job.accelerate and Path(named).absolute() == Path(job.accelerate.path).absolute() else None
    return launch.commands(recipe, overrides, size(job)[0], _variables(job), _starter(job, file))


def _variables(job: Job) -> dict[str, str]:
    return {**_launcher(job), **_of_nodes(job), **environment.threads(job), **hub.variables(job)}


def _launcher(job: Job) -> dict[str, str]:
    """What makes LLaMA-Factory start the processes: none for accelerate, which does; torchrun would start Ray in each
    of its own (launcher.py)."""
    if job.accelerate:
        return {}
    return {"USE_RAY": "1"} if ray.on() else launch.environment(*size(job), job.zero is not None)


def _of_nodes(job: Job) -> dict[str, str]:
    wait = job.number("ddp_timeout") if job.world > 1 else 0.0
    return environment.variables(job.machine.device, job.machine.nodes, wait) if job.machine else {}


def _without_peers(job: Job) -> dict[str, str]:
    """By the driver of this machine, which is asked for few cards."""
    asked = job.machine is not None and environment.peerless(job.machine.device, job.machine.devices, job.machine.nodes)
    driver = nvidia.driver() if asked else None
    return environment.without_peers(driver.release) if driver else {}


def _starter(job: Job, file: str | None = None) -> tuple[str, ...]:
    """The words before the recipe; `file` is the path of the accelerate file, if it shall not be the whole one."""
    return launch.accelerate(file or job.accelerate.path, *size(job)) if job.accelerate else launch.CLI


def prepare(job: Job, overrides: Sequence[str], chosen: Mapping[str, str] = MappingProxyType({})) -> Handoff:
    """The recipe as it is, with overrides that make its paths absolute; `chosen` are variables that choose devices.
    Under torchrun LLaMA-Factory's launcher splits the command line at spaces: a path that holds one is then given from
    the working directory. Raises RecipeError where that holds one, too, or the environment names another number of
    nodes."""
    variables = _variables(job)
    spawns = "NPROC_PER_NODE" in variables
    if not (job.accelerate or ray.on()) and (spawns or switch.on("FORCE_TORCHRUN")):
        launch.agreed(size(job)[0])
    way = _unspaced if spawns else Path.absolute
    recipe = way(Path(job.path).absolute())
    absolute = [assignment(key, str(way(path))) for key, path in _absolute(job)]
    words = (*overrides, *absolute)
    spaced = [word for word in (str(recipe), *words) if _SPACE.search(word)]
    if spawns and spaced:
        raise RecipeError(f"`{spaced[0]}` holds a space, at which LLaMA-Factory's launcher splits; use a path without")
    output = job.get("output_dir")
    folder = disk.expanded(output).absolute() if isinstance(output, str) else None
    counted = {**environment.threads(job, host.cpus()), **_without_peers(job)}
    return Handoff(recipe, words, variables, folder, _starter(job), chosen, counted)


def displaced(job: Job) -> tuple[str, ...]:
    """Overrides that lead from the working directory to what the recipe reads elsewhere, such as beside itself."""
    away = ((key, path) for key, path in _read(job) if path != Path(job.get(key)).absolute())
    return tuple(assignment(key, str(_unspaced(path))) for key, path in away)


def _unspaced(path: Path) -> Path:
    """The path from the working directory, where only that way to it is without a space."""
    here = Path.cwd()
    return path.relative_to(here) if _SPACE.search(str(here)) and path.is_relative_to(here) else path


def _read(job: Job) -> Iterator[tuple[str, Path]]:
    for key in _READ:
        value = job.get(key)
        places = job.find(value) if isinstance(value, str) and value and not value.startswith("{") else None
        if places and not Path(value).is_absolute():
            yield key, places[0].absolute()


def _absolute(job: Job) -> Iterator[tuple[str, Path]]:
    yield from _read(job)
    for key in _WRITTEN:
        value = job.get(key)
        if isinstance(value, str) and not value.startswith(("/", "~")):
            yield key, Path(value).absolute()


def results(output: Path) -> list[Path]:
    """What a finished run has left in its output folder, of what a user looks for first."""
    return [output / name for name in _RESULTS if disk.kind(output / name) == "file"]
