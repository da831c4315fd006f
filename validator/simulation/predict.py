"""Memory of runs whose model no formula knows: a run whose device memory is simulated, and the runs of a plan, whose
model is counted once and then simulated where it may fit."""

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
from validator.simulation.simulated_memory import DECISIVE_PACKAGES, SimulatedStep, estimate_from_step, resident_bytes
from validator.simulation.simulation_request import SIMULATED_OPTIMIZERS, request_for


class Simulation:
    """Memory by simulation for the recipe's own run, and for as many runs with other arguments as `trials` allows. It
    stands in for the formulas where these do not know the model."""

    def __init__(self, trials: SimulationSession) -> None:
        self.trials = trials
        self._sources: dict[tuple[str, ...], ConfigSource | None] = {}

    def find_model(
        self, run: RunSettings, model: Model | None, problem: str | None, /
    ) -> tuple[Model | None, str | None]:
        """Return the model that the tables know, else one that is counted by a simulation, or why there is none."""
        source = self.config_source(run) if problem else None
        if model or source is None:
            return model, problem
        try:
            there = self.step(run, source, run.batch.max_tokens)
        except RecipeError as err:
            return None, f"model type `{source.config.get('model_type')}` {err}"
        return model_from_step(str(run.args.get("model_name_or_path")), source, there), None

    def device_memories(self, run: RunSettings, length: int) -> Mapping[str, Estimate]:
        """Return memory with samples of this length, for a model that was counted; none if that is not simulated."""
        try:
            there = self.device_memory(run, length)
        except RecipeError:
            return {}
        return {"": there} if there else {}

    def device_memory(self, run: RunSettings, length: int) -> Estimate | None:
        """Return the simulated memory of one device; None if no config.json tells the model. Raises RecipeError if the
        run cannot be simulated."""
        prediction = predict(run)
        source = self.config_source(run)
        if run.model is None or prediction.workload is None or source is None:
            return None
        stepped = physics_inputs.optimizer_states(run, run.deepspeed) in SIMULATED_OPTIMIZERS
        runtime = run.machine.device.runtime(physics_inputs.uses_expandable_segments(run)) if run.machine else None
        work = prediction.workload._replace(length=length, eval_length=length)
        return estimate_from_step(run.model.arch, work, self.step(run, source, length), stepped, runtime)

    def exceeds_at_rest(self, _job: RunSettings, /) -> bool:
        """False: the run that was asked for is simulated in any case."""
        return False

    def config_source(self, run: RunSettings, /) -> ConfigSource | None:
        """Return the config.json of the run's model; None if there is none."""
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
        """Return a simulated step. Raises RecipeError with the reason if there is none."""
        return self.trials.answer(request_for(run, source.config, length, source.stored_bytes))

    def figures(self, run: RunSettings) -> SimulationFigures | None:
        """Return the figures of the simulation, of a model that formulas know, too; None if no config.json tells it, or
        it cannot be simulated."""
        source = self.config_source(run)
        try:
            band = self.device_memory(run, run.batch.max_tokens)
        except RecipeError as err:
            self.trials.tell(f"`{run.args.get('model_name_or_path')}` {err}")
            return None
        if band is None or source is None:
            return None
        there = self.step(run, source, run.batch.max_tokens)
        return SimulationFigures(
            band.allocated / GIB,
            band.low / GIB,
            band.expected / GIB,
            band.high / GIB,
            there.parameters,
            there.trainable,
            there.whole,
            installed_releases(DECISIVE_PACKAGES),
        )


def model_from_step(name: str, source: ConfigSource, there: SimulatedStep) -> Model:
    """The model of that name as its class was counted."""
    layers = [
        CountedLayers(one.number, tuple((*each,) for each in one.linears), one.experts, one.vectors)
        for one in there.layers
    ]
    size = CountedSizes(there.parameters, there.embedding, there.head, there.hidden)
    return models.counted_model(name, source, layers, size)


def with_simulations(run: RunSettings, trials: SimulationSession) -> RunSettings:
    """Return the run, with simulations at hand."""
    trials.begin()
    return replace(run, memory_source=Simulation(trials))


class PlanSimulations(Simulation):
    """The simulations of a plan. `model` is a placeholder until its layers are counted; no request depends on it.
    `failed`: by method, why its simulation failed; that method is not tried again. `closed`: nothing more is simulated.
    """

    def __init__(
        self,
        model: Model,
        source: ConfigSource,
        trials: SimulationSession,
        failed: dict[str, str] | None = None,
        closed: bool = False,
    ) -> None:
        super().__init__(trials)
        self.model, self.source, self.closed = model, source, closed
        self.failed = {} if failed is None else failed

    @property
    def kind(self) -> str:
        """The model's type."""
        return str(self.source.config.get("model_type"))

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
        return PlanSimulations(self.model, self.source, self.trials, self.failed, closed=True)

    def count(self, runs: Iterable[RunSettings]) -> None:
        """Count the model's layers by the first of the runs that can be simulated. Raises RecipeError if none can, with
        what the first of them lacks."""
        problems: list[str] = []
        for run in runs:
            try:
                self.model = model_from_step(
                    self.model.name, self.source, self.step(run, self.source, run.batch.max_tokens)
                )
            except RecipeError as err:
                problems.append(str(err))
            else:
                return
        raise RecipeError(f"model type `{self.kind}` {next(iter(problems), 'is not simulated')}")

    def with_simulations(self, run: RunSettings) -> RunSettings:
        """Return the run, with simulations at hand."""
        return replace(run, memory_source=self)

    def find_model(
        self, _run: RunSettings, _model: Model | None, _problem: str | None, /
    ) -> tuple[Model | None, str | None]:
        """Return the model of the plan."""
        return self.model, None

    def config_source(self, _run: RunSettings, /) -> ConfigSource | None:
        """Return the config.json of the plan's model."""
        return self.source

    def exceeds_at_rest(self, run: RunSettings, /) -> bool:
        """True if weights and states alone are too large for the device: of such a run nothing is simulated."""
        usable = run.machine.device.usable_gib if run.machine else None
        workload = predict(run).workload
        return bool(usable and workload and resident_bytes(self.model.arch, workload) > usable * GIB)

    def step(self, run: RunSettings, source: ConfigSource, length: int) -> SimulatedStep:
        """Return a simulated step of one of the plan's runs. Raises RecipeError with the reason if there is none."""
        asked = request_for(run, source.config, length, source.stored_bytes)
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


def simulations_of_plan(name: str, trials: SimulationSession) -> PlanSimulations | None:
    """For a model by that name; None where no config.json tells it. Raises RecipeError for one that cannot be used."""
    source = models.find_config_source(name, Path(name).absolute(), "main", None)
    if source is None:
        return None
    trials.begin()
    return PlanSimulations(models.counted_model(name, source, (), CountedSizes(1, 0, 0, 1)), source, trials)
