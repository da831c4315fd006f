"""A change to a recipe, and what the run then needs: judged by the same formulas and rules as any other recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from validator.diagnostic import Verdict
from validator.job.changed import Setting, Settings, changed
from validator.job.job import GIB, Job
from validator.tables.checkout import home
from validator.train import handoff, launch


@dataclass(frozen=True)
class Change:
    """Settings to write, what the run then needs (GiB, expected), and what it costs. `first` are commands to run
    before, in the folder that the run is started from; `environment` are variables that the launch did not need.
    `time_ratio`: how many times as long the run takes on the same samples; None: not known."""

    set: Settings
    device_gib: float
    host_gib: float
    verdict: Verdict
    note: str
    first: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    time_ratio: float | None = None

    def settings(self) -> list[str]:
        """Each setting as YAML writes it."""
        return [f"{key}: {_text(value)}" for key, value in self.set.items()]

    def steps(self) -> list[str]:
        """What is to be done beside writing the settings."""
        variables = " ".join(f"{name}={value}" for name, value in (self.environment or {}).items())
        started = [f"start it by `lmf-recipes train`, or with {variables} in the environment"] if variables else []
        return [*(f"run `{command}` first" for command in self.first), *started]

    def __str__(self) -> str:
        written = ", ".join(f"`{setting}`" for setting in self.settings())
        needs = f"{self.device_gib:.1f} GiB per device, {self.host_gib:.0f} of host memory per node"
        return "; ".join([f"{written} ({needs})", *self.steps()])


def change(job: Job, settings: Settings, note: str) -> Change:
    """The settings, with all that is known of them."""
    after = changed(job, settings)
    device, host = after.device_memory, after.host_memory
    return Change(settings, device.expected / GIB if device else 0.0, host.expected / GIB if host else 0.0,
                  after.worst, note, _commands(job, settings), _variables(job, after))  # fmt: skip


def _commands(job: Job, settings: Settings) -> list[str]:
    """What brings the DeepSpeed file that the settings name to where it is not; for a recipe that is read in the
    catalogue from elsewhere, both into the working directory."""
    file = settings.get("deepspeed")
    if not isinstance(file, str):
        return []
    recipe, here = Path(job.path).absolute(), Path.cwd()
    if recipe.parent != home() / "recipes" or here.is_relative_to(home()):
        return [] if job.find(file) else [_copy(Path(file).name)]
    wanted = ((here / recipe.name, recipe.stem), (here / file, Path(file).name))
    return [_copy(name) for path, name in wanted if not path.exists()]


def _copy(name: str) -> str:
    return f"lmf-recipes copy {name} ."


def _variables(job: Job, after: Job) -> dict[str, str]:
    """What the launcher must find set, and did not for the job as it was."""
    before, now = (launch.environment(*handoff.size(one), one.zero is not None) for one in (job, after))
    return {name: value for name, value in now.items() if before.get(name) != value}


def _text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
