"""Memory of runs whose model no formula knows: a job whose device memory is simulated, and the jobs of a plan, whose
model is counted once and then simulated where it may fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from validator.errors import RecipeError
from validator.finding import Verdict
from validator.knowledge import models, releases
from validator.knowledge.models import ConfigSource, CountedSizes, Model
from validator.physics import CountedLayers, Estimate
from validator.run import physics_inputs
from validator.run.prediction import GIB, Job
from validator.run.simulated import SimulationFigures
from validator.simulation.session import SimulationSession
from validator.simulation.simulated_memory import (
    DECISIVE_PACKAGES,
    SimulatedStep,
    estimate_from_step,
    resident_bytes,
)
from validator.simulation.simulation_request import SIMULATED_OPTIMIZERS, SimulationRequest, request_for


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedJob(Job):
    """A run whose device memory is simulated. `trials` allows as many further simulations for changes of it."""

    trials: SimulationSession = field(kw_only=True)

    @cached_property
    def _model(self) -> tuple[Model | None, str | None]:
        model, problem = super()._model
        source = self._source if problem else None
        if model or source is None:
            return model, problem
        try:
            there = self._answer(source, self.batch.max_tokens)
        except RecipeError as err:
            return None, f"model type `{source.config.get('model_type')}` {err}"
        return model_from_step(str(self.args.get("model_name_or_path")), source, there), None

    def _device_memories(self, length: int) -> Mapping[str, Estimate]:
        """Memory by simulation for a model that was counted; none if that length is not simulated."""
        if not self.simulated:
            return super()._device_memories(length)
        try:
            there = self._estimate(length)
        except RecipeError:
            return {}
        return {"": self._pooled(there)} if there else {}

    def _estimate(self, length: int) -> Estimate | None:
        if self.model is None or self.workload is None or self._source is None:
            return None
        stepped = physics_inputs.optimizer_states(self, self.deepspeed) in SIMULATED_OPTIMIZERS
        runtime = self.machine.device.runtime(physics_inputs.uses_expandable_segments(self)) if self.machine else None
        work = self.workload._replace(length=length, eval_length=length)
        return estimate_from_step(self.model.arch, work, self._answer(self._source, length), stepped, runtime)

    @cached_property
    def enough_for(self) -> int | None:
        """The longest samples that still fit, of two lengths only: no lengths in between are simulated. None if the
        shorter one does not fit, either."""
        if not self.simulated:
            return super().enough_for
        if self.device_verdict != "exceeds" or not self._device_memories(self.batch.certain_tokens):
            return None
        return None if self._exceeds(self.batch.certain_tokens) else self.batch.certain_tokens

    @property
    def simulated(self) -> bool:
        return self.model is not None and bool(self.model.arch.counted)

    @cached_property
    def simulation(self) -> SimulationFigures | None:
        """The figures of the simulation, of a model that formulas know, too; None where no config.json tells it, or it
        cannot be simulated."""
        try:
            band = self._estimate(self.batch.max_tokens)
        except RecipeError as err:
            self.trials.tell(f"`{self.args.get('model_name_or_path')}` {err}")
            return None
        if band is None or self._source is None:
            return None
        there = self._answer(self._source, self.batch.max_tokens)
        return SimulationFigures(
            band.allocated / GIB,
            band.low / GIB,
            band.expected / GIB,
            band.high / GIB,
            there.parameters,
            there.trainable,
            there.whole,
            releases.installed_releases(DECISIVE_PACKAGES),
        )

    @cached_property
    def _source(self) -> ConfigSource | None:
        name = self.args.get("model_name_or_path")
        if not isinstance(name, str):
            return None
        place = self.workspace.find(name)
        try:
            return models.find_config_source(name, Path(place[0]) if place else None, *self.hub_source)
        except RecipeError:
            return None

    def _answer(self, source: ConfigSource, length: int) -> SimulatedStep:
        return self.trials.answer(request_for(self, source.config, length, source.stored_bytes))


def model_from_step(name: str, source: ConfigSource, there: SimulatedStep) -> Model:
    """The model of that name as its class was counted."""
    layers = [
        CountedLayers(one.number, tuple((*each,) for each in one.linears), one.experts, one.vectors)
        for one in there.layers
    ]
    size = CountedSizes(there.parameters, there.embedding, there.head, there.hidden)
    return models.counted_model(name, source, layers, size)


def with_simulations(job: Job, trials: SimulationSession) -> SimulatedJob:
    """The job, with simulations at hand."""
    trials.begin()
    return SimulatedJob(**{each.name: getattr(job, each.name) for each in fields(job)}, trials=trials)


@dataclass(eq=False)
class PlanSimulations:
    """The simulations of a plan. `model` is a placeholder until its layers are counted; no request depends on it.
    `failed`: by method, why its simulation failed; that method is not tried again. `closed`: nothing more is simulated.
    """

    model: Model
    source: ConfigSource
    trials: SimulationSession
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
                asked = request_for(job, self.source.config, job.batch.max_tokens, self.source.stored_bytes)
                self.model = model_from_step(self.model.name, self.source, self.answer(asked))
            except RecipeError as err:
                problems.append(str(err))
            else:
                return
        raise RecipeError(f"model type `{self.kind}` {next(iter(problems), 'is not simulated')}")

    @property
    def used_up(self) -> int | None:
        """How many simulations were made, if no more are allowed; else None."""
        return self.trials.made if self.trials.spent else None

    @property
    def fuses(self) -> bool:
        """True if LLaMA-Factory has Liger kernels for the model, and their package is installed here."""
        return self.model.family.liger and find_spec("liger_kernel") is not None

    @property
    def settled(self) -> PlanSimulations:
        """The same, of which what was simulated is all there is."""
        return replace(self, closed=True)

    def job(self, job: Job) -> PlannedJob:
        """The job, with simulations at hand."""
        values = {each.name: getattr(job, each.name) for each in fields(job)}
        return PlannedJob(**values, trials=self.trials, planned=self)

    def answer(self, asked: SimulationRequest) -> SimulatedStep:
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


@dataclass(frozen=True, eq=False, repr=False)
class PlannedJob(SimulatedJob):
    """One of a plan's runs."""

    planned: PlanSimulations = field(kw_only=True)

    @cached_property
    def _model(self) -> tuple[Model | None, str | None]:
        return self.planned.model, None

    @cached_property
    def _source(self) -> ConfigSource | None:
        return self.planned.source

    def _answer(self, source: ConfigSource, length: int) -> SimulatedStep:
        return self.planned.answer(request_for(self, source.config, length, source.stored_bytes))

    @property
    def device_verdicts(self) -> Mapping[str, Verdict]:
        """The verdicts of other jobs; but a run whose weights and states alone are too large is not simulated."""
        usable = self.machine.device.usable_gib if self.machine else None
        if usable and self.workload and resident_bytes(self.planned.model.arch, self.workload) > usable * GIB:
            return {"": "exceeds"}
        return super().device_verdicts


def simulations_of_plan(name: str, trials: SimulationSession) -> PlanSimulations | None:
    """For a model by that name; None where no config.json tells it. Raises RecipeError for one that cannot be used."""
    source = models.find_config_source(name, Path(name).absolute(), "main", None)
    if source is None:
        return None
    trials.begin()
    return PlanSimulations(models.counted_model(name, source, (), CountedSizes(1, 0, 0, 1)), source, trials)
