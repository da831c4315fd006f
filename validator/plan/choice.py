"""Which base model for a machine and a number of samples: data, machine and model in balance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.job.datasets import Registry
from validator.plan.draft import Draft
from validator.plan.search import ADAPTERS, LENGTHS, Plan, first
from validator.tables import guidance, models
from validator.tables.machines import Machine
from validator.tables.models import Model

_ENOUGH = 8
# Of one size so many, that other sizes show as well.
_ALIKE = 3


@dataclass(frozen=True)
class Choice:
    """A model that fits. `recommended` samples are for the plan's method; `cost` is what the ranking goes by, lower is
    better."""

    plan: Plan
    recommended: int | None
    cost: int


def choose(
    machine: Machine,
    samples: int | None = None,
    length: int | None = None,
    methods: Sequence[str] = ADAPTERS,
    stage: str = "sft",
    own: Registry | None = None,
) -> list[Choice]:
    """Models that fit, the best balance first. Raises RecipeError where no guidance for the stage is known.

    Cost: how often the samples must be doubled or halved to be about the recommended number, and how often the time of
    a step is doubled by what is not computing. Among equals those for which the samples about suffice, then the larger
    size, but last those larger than the guidance knows; and among models of about the same size, of which a few are
    named, the order of data/models.yaml. Without a number of samples, the largest that fit, one of each size."""
    if not guidance.sizes(stage, methods[0]):
        raise RecipeError(f"how many samples suit which model is not known for stage {stage}; name one with --model")
    balance = _Balance(samples, methods[0], stage)
    readable = set(models.model_ids())
    known = [model for key in models.offered() if key in readable and _common(model := models.model(key))]

    def started(model: Model) -> Draft:
        start = Draft(model, machine, methods[0], length=length or LENGTHS[0], samples=samples, stage=stage, own=own)
        return start if length else replace(start, length=start.holding)

    choices: list[Choice] = []
    sizes: Counter[int] = Counter()
    for model in sorted(known, key=lambda model: (balance.mismatch(model), *balance.order(model))):
        wanted = len(choices) < _ENOUGH and sizes[_size(model.billions)] < (_ALIKE if samples else 1)
        if wanted and (best := first(started(model), methods)):
            sizes[_size(model.billions)] += 1
            choices.append(Choice(best, best.draft.recommended, balance.mismatch(model) + best.delay))
    return sorted(choices, key=lambda choice: (choice.cost, *balance.order(choice.plan.draft.model)))


class _Balance(NamedTuple):
    """How well models suit the samples there are."""

    samples: int | None
    method: str
    stage: str

    def mismatch(self, model: Model) -> int:
        """Doublings between the samples and the recommended number."""
        if self.samples is None:
            return 0
        good = self._good(model)
        return round(abs(log2(self.samples / good))) if good else 99

    def order(self, model: Model) -> tuple[bool, bool, int]:
        """What decides between models that suit equally well."""
        largest = max(entry["billions"] for entry in guidance.sizes(self.stage, self.method))
        good = self._good(model)
        scarce = bool(self.samples and good and round(2 * log2(good / self.samples)) > 0)
        return _size(model.billions) > _size(largest), scarce, -_size(model.billions)

    def _good(self, model: Model) -> int | None:
        return guidance.samples(self.stage, self.method, model.billions)


def _common(model: Model) -> bool:
    """Tuned for chat, in 16 bits, and run by transformers' own code."""
    return not (model.base or model.quantized or model.remote_code)


def _size(billions: float) -> int:
    """Sizes that differ by less than about a third are one."""
    return round(2 * log2(billions))
