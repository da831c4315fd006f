"""A job whose device memory is simulated where no formula knows its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.job import workload
from validator.job.job import GIB, Job
from validator.memory import Counted, Estimate
from validator.simulate.answer import PACKAGES, Answer
from validator.simulate.cell import OPTIMIZERS
from validator.tables import counted, releases
from validator.tables.counted import Sizes, Source
from validator.tables.models import Model
from validator.trial.asked import cell
from validator.trial.estimate import estimate
from validator.trial.figures import Simulation
from validator.trial.trials import Trials


@dataclass(eq=False, repr=False)
class SimulatedJob(Job):
    """What is simulated is the recipe's own run, and with other values as many more as `trials` allows."""

    trials: Trials = field(kw_only=True)

    @cached_property
    def _model(self) -> tuple[Model | None, str | None]:
        model, problem = super()._model
        source = self._source if problem else None
        if model or source is None:
            return model, problem
        try:
            there = self._answer(source, self.longest)
        except RecipeError as err:
            return None, f"model type `{source.config.get('model_type')}` {err}"
        return counted_model(str(self.get("model_name_or_path")), source, there), None

    def _device_memories(self, length: int) -> Mapping[str, Estimate]:
        """Simulated for a model that was counted; none where that length is not."""
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
        stepped = workload.optimizer(self, self.zero) in OPTIMIZERS
        runtime = self.machine.device.runtime(workload.expandable(self)) if self.machine else None
        work = self.workload._replace(length=length, eval_length=length)
        return estimate(self.model.arch, work, self._answer(self._source, length), stepped, runtime)

    @cached_property
    def enough_for(self) -> int | None:
        """As of other jobs, but no lengths in between are simulated; None where the shorter one is not, either."""
        if not self.simulated:
            return super().enough_for
        if self.device_verdict != "exceeds" or not self._device_memories(self.reached):
            return None
        return None if self._exceeds(self.reached) else self.reached

    @property
    def simulated(self) -> bool:
        return self.model is not None and bool(self.model.arch.counted)

    @cached_property
    def simulation(self) -> Simulation | None:
        """The figures of the simulation, of a model that formulas know, too; None where no config.json tells it, or it
        cannot be simulated."""
        try:
            band = self._estimate(self.longest)
        except RecipeError as err:
            self.trials.tell(f"`{self.get('model_name_or_path')}` {err}")
            return None
        if band is None or self._source is None:
            return None
        there = self._answer(self._source, self.longest)
        return Simulation(band.allocated / GIB, band.low / GIB, band.expected / GIB, band.high / GIB,
                          there.parameters, there.trainable, there.whole, releases.installed(PACKAGES))  # fmt: skip

    @cached_property
    def _source(self) -> Source | None:
        name = self.get("model_name_or_path")
        if not isinstance(name, str):
            return None
        place = self.find(name)
        try:
            return counted.source(name, Path(place[0]) if place else None, *self.origin)
        except RecipeError:
            return None

    def _answer(self, source: Source, length: int) -> Answer:
        return self.trials.answer(cell(self, source.config, length, source.stored_bytes))


def counted_model(name: str, source: Source, there: Answer) -> Model:
    """The model of that name as its class was counted."""
    layers = [
        Counted(one.number, tuple((*each,) for each in one.linears), one.experts, one.vectors) for one in there.layers
    ]
    size = Sizes(there.parameters, there.embedding, there.head, there.hidden)
    return counted.model(name, source, layers, size)


def simulated(job: Job, trials: Trials) -> SimulatedJob:
    """The job, with simulations at hand."""
    trials.begin()
    return SimulatedJob(**{each.name: getattr(job, each.name) for each in fields(job)}, trials=trials)
