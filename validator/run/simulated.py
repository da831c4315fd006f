"""Simulation results for a run: the figures that are shown, and the protocols by which plans get simulations. The
command that was asked for a simulation hands in the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from validator.knowledge.models import Model
from validator.run.settings import RunSettings


@dataclass(frozen=True)
class SimulationFigures:
    """Peak of live tensors and the memory that the system's tool would show, GiB; parameter counts; the releases that
    were simulated. `whole`: all layers were stepped through, not two shallow copies."""

    allocated: float
    low: float
    expected: float
    high: float
    parameters: int
    trainable_parameters: int
    whole: bool
    releases: Mapping[str, str]


class PlanSimulations(Protocol):
    """Simulations for the runs of a plan, for a model that no formula knows (simulation/predict.py)."""

    @property
    def model(self) -> Model:
        """The model; its layers are counted only after `count`."""
        ...

    @property
    def kind(self) -> str:
        """The model's type."""
        ...

    @property
    def failed(self) -> Mapping[str, str]:
        """Reasons why the runs of a method cannot be simulated, by the simulator's name for the method."""
        ...

    @property
    def used_up(self) -> int | None:
        """The number of simulations made, if no more are allowed; else None."""
        ...

    @property
    def fuses(self) -> bool:
        """True if LLaMA-Factory has liger kernels for the model, and the simulator their package."""
        ...

    @property
    def without_new_ones(self) -> PlanSimulations:
        """The same simulations, without making further ones."""
        ...

    def count(self, runs: Iterable[RunSettings]) -> None:
        """Count the model's layers by the first of the runs that can be simulated. Raises RecipeError if none can."""

    def with_simulations(self, run: RunSettings) -> RunSettings:
        """Return the run, with simulations at hand."""
        ...


class FindSimulations(Protocol):
    """Return the simulations for the runs of a model, or None if no config.json describes it. Raises RecipeError for a
    model that cannot be used."""

    def __call__(self, name: str) -> PlanSimulations | None: ...
