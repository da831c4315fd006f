"""The runs of a plan, of a model that no formula knows: counted once, then simulated where they may fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from validator.diagnostic import RecipeError, Verdict
from validator.job.job import GIB, Job
from validator.simulate.answer import Answer
from validator.simulate.cell import Cell
from validator.tables import counted
from validator.tables.counted import Sizes, Source
from validator.tables.models import Model
from validator.trial.asked import cell
from validator.trial.estimate import least
from validator.trial.job import SimulatedJob, counted_model
from validator.trial.trials import Trials


@dataclass(eq=False)
class Planned:
    """What gives the runs of a plan their simulations. `model` holds nothing before it is counted; that decides no
    cell, so the run that is simulated first can be drafted with it. `failed`: why those of a method are none, by the
    simulator's name for it; of such a method no further one is tried. `closed`: nothing more is simulated."""

    model: Model
    source: Source
    trials: Trials
    failed: dict[str, str] = field(default_factory=dict)
    closed: bool = False

    @property
    def kind(self) -> str:
        """The model's type."""
        return str(self.source.config.get("model_type"))

    def count(self, jobs: Iterable[Job]) -> None:
        """Counts the model by the first of the jobs that can be simulated. Raises RecipeError where none can, with what
        the first of them lacks."""
        problems: list[str] = []
        for job in jobs:
            try:
                asked = cell(job, self.source.config, job.longest, self.source.stored_bytes)
                self.model = counted_model(self.model.name, self.source, self.answer(asked))
            except RecipeError as err:
                problems.append(str(err))
            else:
                return
        raise RecipeError(f"model type `{self.kind}` {next(iter(problems), 'is not simulated')}")

    @property
    def fuses(self) -> bool:
        """Whether LLaMA-Factory has liger kernels for the model, and the simulator their package."""
        return self.model.family.liger and find_spec("liger_kernel") is not None

    @property
    def settled(self) -> Planned:
        """The same, of which what was simulated is all there is."""
        return replace(self, closed=True)

    def job(self, job: Job) -> PlannedJob:
        """The job, with simulations at hand."""
        values = {each.name: getattr(job, each.name) for each in fields(job)}
        return PlannedJob(**values, trials=self.trials, planned=self)

    def answer(self, asked: Cell) -> Answer:
        """Raises RecipeError with the reason where there is none."""
        if asked.method in self.failed:
            raise RecipeError(self.failed[asked.method])
        if self.closed:
            return self.trials.told(asked)
        try:
            return self.trials.answer(asked)
        except RecipeError as err:
            if not self.trials.spent:
                self.failed[asked.method] = str(err)
            raise


@dataclass(eq=False, repr=False)
class PlannedJob(SimulatedJob):
    """One of a plan's runs."""

    planned: Planned = field(kw_only=True)

    @cached_property
    def _model(self) -> tuple[Model | None, str | None]:
        return self.planned.model, None

    @cached_property
    def _source(self) -> Source | None:
        return self.planned.source

    def _answer(self, source: Source, length: int) -> Answer:
        return self.planned.answer(cell(self, source.config, length, source.stored_bytes))

    @property
    def device_verdicts(self) -> Mapping[str, Verdict]:
        """As of other jobs, but nothing is simulated of a run whose weights and states alone are too large."""
        usable = self.machine.device.usable_gib if self.machine else None
        if usable and self.workload and least(self.planned.model.arch, self.workload) > usable * GIB:
            return {"": "exceeds"}
        return super().device_verdicts


def planned(name: str, trials: Trials) -> Planned | None:
    """For a model by that name; None where no config.json tells it. Raises RecipeError for one that cannot be used."""
    source = counted.source(name, Path(name).absolute(), "main", None)
    if source is None:
        return None
    trials.begin()
    return Planned(counted.model(name, source, (), Sizes(1, 0, 0, 1)), source, trials)
