"""Predicts memory by simulation for runs whose model no formula knows. `Simulation` serves a run and its variants.
`PlanSimulations` serves the runs of a plan: the layers of the model are counted once, and then the runs that may fit
are simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from validator.errors import RecipeError
from validator.knowledge import models
from validator.knowledge.models import ConfigSource, CountedSizes, Model
from validator.physics import CountedLayers, Estimate
from validator.physics.estimate import GIB
from validator.run import physics_inputs
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.run.simulated import SimulationFigures
from validator.simulation.session import SimulationSession, installed_releases
from validator.simulation.simulated_memory import DECISIVE_PACKAGES, SimulatedStep, estimate_from_step
from validator.simulation.simulation_request import SIMULATED_OPTIMIZERS, request_for


class Simulation:
    """Replaces the memory formulas by simulations, as a `MemorySource` (run/settings.py), for the recipe's own run and
    for as many variants of the run as the `SimulationSession` allows."""

    def __init__(self, session: SimulationSession) -> None:
        self.session = session
        self._sources: dict[tuple[str, ...], ConfigSource | None] = {}

    def find_model(
        self, run: RunSettings, model: Model | None, problem: str | None, /
    ) -> tuple[Model | None, str | None]:
        """Return `model`, the model in the tables, if it is not None. Otherwise simulate a step, and return the model
        with the layers that the simulation has counted. The second value is None, or the reason why no model is known.
        `problem` is this reason as far as it is known without a simulation."""
        source = self.config_source(run) if problem else None
        if model or source is None:
            return model, problem
        try:
            step = self.step(run, source, run.batch.max_tokens)
        except RecipeError as err:
            return None, f"model type `{source.config.get('model_type')}` {err}"
        return _counted_model(str(run.args.get("model_name_or_path")), source, step), None

    def device_memories(self, run: RunSettings, length: int, /) -> Mapping[str, Estimate]:
        """Return the simulated device memory of the run with samples of `length` tokens. `MemorySource` requires a
        mapping by transformers release; its only key is the empty string here. The mapping is empty if the run cannot
        be simulated."""
        try:
            estimate = self._device_memory(run, length)
        except RecipeError:
            return {}
        return {"": estimate} if estimate else {}

    def config_source(self, run: RunSettings, /) -> ConfigSource | None:
        """Return the config.json of the run's model, from a local folder or the hub's cache. Return None if there is no
        config.json."""
        name = run.args.get("model_name_or_path")
        if not isinstance(name, str):
            return None
        key = (name, *map(str, run.hub_source))
        if key not in self._sources:
            place = run.workspace.find(name)
            try:
                folder = Path(place[0]) if place else None
                self._sources[key] = models.find_config_source(name, folder, *run.hub_source)
            except RecipeError:
                self._sources[key] = None
        return self._sources[key]

    def step(self, run: RunSettings, source: ConfigSource, length: int) -> SimulatedStep:
        """Return the simulated step of the run, with samples of `length` tokens. Raises RecipeError with the reason if
        the run cannot be simulated."""
        return self.session.answer(request_for(run, source.config, length, source.stored_bytes))

    def figures(self, run: RunSettings) -> SimulationFigures | None:
        """Return the figures of the simulation to show the user, even if formulas know the model. Return None if no
        config.json describes the model, or if the run cannot be simulated."""
        source = self.config_source(run)
        try:
            band = self._device_memory(run, run.batch.max_tokens)
        except RecipeError as err:
            self.session.tell(f"`{run.args.get('model_name_or_path')}` {err}")
            return None
        if band is None or source is None:
            return None
        step = self.step(run, source, run.batch.max_tokens)
        return SimulationFigures(
            band.allocated / GIB,
            band.low / GIB,
            band.expected / GIB,
            band.high / GIB,
            step.parameters,
            step.trainable,
            step.whole,
            installed_releases(DECISIVE_PACKAGES),
        )

    def _device_memory(self, run: RunSettings, length: int) -> Estimate | None:
        """Return the simulated memory of one device, with samples of `length` tokens. Return None if no config.json
        describes the model. Raises RecipeError if the run cannot be simulated."""
        source, workload = self.config_source(run), predict(run).workload
        if run.model is None or workload is None or source is None:
            return None
        stepped = physics_inputs.optimizer_states(run, run.deepspeed) in SIMULATED_OPTIMIZERS
        runtime = run.machine.device.runtime(physics_inputs.uses_expandable_segments(run)) if run.machine else None
        work = workload._replace(length=length, eval_length=length)
        return estimate_from_step(run.model.arch, work, self.step(run, source, length), stepped, runtime)


def with_simulations(run: RunSettings, session: SimulationSession) -> RunSettings:
    """Return a copy of the run whose memory `session` simulates if no formula knows the model. The session's allowance
    of simulations starts anew for this run."""
    session.begin()
    return replace(run, memory_source=Simulation(session))


def _counted_model(name: str, source: ConfigSource, step: SimulatedStep) -> Model:
    """Return a model made from the result of a simulation (`step`), which has counted the layers and sizes in the
    model's class. `name` is the hub name and `source` the config.json of the model."""
    layers = [
        CountedLayers(group.number, tuple((*linear,) for linear in group.linears), group.experts, group.vectors)
        for group in step.layers
    ]
    return models.counted_model(
        name, source, layers, CountedSizes(step.parameters, step.embedding, step.head, step.hidden)
    )


class PlanSimulations(Simulation):
    """Simulations for the runs of a plan. `model` is a placeholder until `count` has counted its layers; no simulation
    request depends on it. `failed` holds by fine-tuning method the reason why a simulation failed; that method is not
    simulated again. If `closed` is true, no further simulation is made."""

    def __init__(self, model: Model, source: ConfigSource, session: SimulationSession) -> None:
        super().__init__(session)
        self.model, self.source = model, source
        self.failed: dict[str, str] = {}
        self.closed = False

    @property
    def kind(self) -> str:
        """The `model_type` of the plan's model."""
        return str(self.source.config.get("model_type"))

    @property
    def used_up(self) -> int | None:
        """The number of simulations that were made, if the session has refused a further one because its allowance was
        used up; otherwise None."""
        return self.session.made if self.session.spent else None

    @property
    def fuses(self) -> bool:
        """True if LLaMA-Factory has Liger kernels for the model, and the package liger-kernel is installed."""
        return self.model.family.liger and find_spec("liger_kernel") is not None

    @property
    def without_new_ones(self) -> PlanSimulations:
        """A copy that answers from the simulations made so far, and makes no further ones."""
        closed = PlanSimulations(self.model, self.source, self.session)
        closed.failed, closed.closed = self.failed, True
        return closed

    def count(self, runs: Iterable[RunSettings]) -> None:
        """Count the model's layers in a simulation of the first run that can be simulated. Raises RecipeError if none
        of the runs can be simulated, with the reason of the first run."""
        problems: list[str] = []
        for run in runs:
            try:
                step = self.step(run, self.source, run.batch.max_tokens)
            except RecipeError as err:
                problems.append(str(err))
            else:
                self.model = _counted_model(self.model.name, self.source, step)
                return
        raise RecipeError(f"model type `{self.kind}` {next(iter(problems), 'is not simulated')}")

    def with_simulations(self, run: RunSettings) -> RunSettings:
        """Return a copy of the run whose memory comes from these simulations."""
        return replace(run, memory_source=self)

    def find_model(
        self, _run: RunSettings, _model: Model | None, _problem: str | None, /
    ) -> tuple[Model | None, str | None]:
        """Return the plan's model for every run; the second value, the reason why no model is known, is always None."""
        return self.model, None

    def config_source(self, _run: RunSettings, /) -> ConfigSource | None:
        """Return the config.json of the plan's model, for every run."""
        return self.source

    def step(self, run: RunSettings, source: ConfigSource, length: int) -> SimulatedStep:
        """Return the simulated step of one of the plan's runs. Raises RecipeError with the reason if the run cannot be
        simulated, or if no further simulation is allowed."""
        request = request_for(run, source.config, length, source.stored_bytes)
        if request.method in self.failed:
            raise RecipeError(self.failed[request.method])
        try:
            return self.session.answer(request, simulate=not self.closed)
        except RecipeError as err:
            if not self.closed and not self.session.spent:
                self.failed[request.method] = str(err)
            raise


def simulations_of_plan(name: str, session: SimulationSession) -> PlanSimulations | None:
    """Return the simulations for a plan with the model of this name. Return None if no config.json describes the model.
    Raises RecipeError if the model cannot be used."""
    source = models.find_config_source(name, Path(name).absolute(), "main", None)
    if source is None:
        return None
    session.begin()
    placeholder = models.counted_model(name, source, (), CountedSizes(1, 0, 0, 1))
    return PlanSimulations(placeholder, source, session)
