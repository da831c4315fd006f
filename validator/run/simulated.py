"""Simulation results for a run: the figures that commands show, and the protocols (interfaces) by which `plan` gets
simulations. The command whose user asked for a simulation passes the simulator in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from validator.knowledge.models import Model
from validator.run.settings import RunSettings


@dataclass(frozen=True)
class SimulationFigures:
    """Figures of a simulated run. `allocated`: GiB of live tensors at the peak. `low`, `expected`, `high`: GiB that the
    vendor's tool (such as nvidia-smi) would show. `releases`: versions of the simulated packages, by package. `whole`:
    True if the model was simulated with all layers; False if two copies with few layers were simulated and their
    figures extrapolated."""

    allocated: float
    low: float
    expected: float
    high: float
    parameters: int
    trainable_parameters: int
    whole: bool
    releases: Mapping[str, str]


class PlanSimulations(Protocol):
    """Simulations of the runs that `plan` considers, for a model type that the memory formulas do not know
    (simulation/predict.py)."""

    @property
    def model(self) -> Model:
        """The model that is simulated. Its number of layers is known only after `count`."""
        ...

    @property
    def kind(self) -> str:
        """The `model_type` of the model's config.json."""
        ...

    @property
    def failed(self) -> Mapping[str, str]:
        """Why runs could not be simulated: the reason by training method, under the simulator's name for the method."""
        ...

    @property
    def used_up(self) -> int | None:
        """The number of simulations that were made, if no more are allowed; else None."""
        ...

    @property
    def fuses(self) -> bool:
        """True if LLaMA-Factory has liger kernels for the model type and the package liger-kernel is installed where
        the simulator runs."""
        ...

    @property
    def without_new_ones(self) -> PlanSimulations:
        """An object with the results so far, which makes no further simulation."""
        ...

    def count(self, runs: Iterable[RunSettings]) -> None:
        """Find the number of the model's layers by simulating the first of `runs` that can be simulated. Raises
        RecipeError if no run can be simulated."""

    def with_simulations(self, run: RunSettings) -> RunSettings:
        """Return a copy of the run that takes its device memory from these simulations."""
        ...


class FindSimulations(Protocol):
    """A function that returns the simulations for the runs of the model `name`, or None if no config.json describes the
    model. Raises RecipeError for a model that cannot be used."""

    def __call__(self, name: str) -> PlanSimulations | None: ...
