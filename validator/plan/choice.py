"""Which base model for a machine and a number of samples: data, machine and model in balance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import log2

from validator.plan.search import SPEEDS, Plan, first
from validator.tables import guidance, models
from validator.tables.machines import Machine
from validator.tables.models import Model

_ENOUGH = 8
# Of one size so many, that other sizes show as well.
_ALIKE = 3


@dataclass(frozen=True)
class Choice:
    """A model that fits. `recommended` samples are for LoRA; `cost` is what the ranking goes by, lower is better."""

    plan: Plan
    recommended: int
    cost: int


def choose(machine: Machine, samples: int, length: int | None = None) -> list[Choice]:
    """Models that fit, the best balance first.

    Cost: how often the samples must be doubled or halved to be about the recommended number, and one for each speed
    class below `fast`. Among equals those for which the samples about suffice, then the larger size, but last those
    larger than the guidance knows; and among models of about the same size, of which a few are named, the order of
    data/models.yaml."""
    known = [model for model in map(models.model, models.model_ids()) if _common(model)]
    ranked = sorted(known, key=lambda model: (_mismatch(model, samples), *_order(model, samples)))
    choices: list[Choice] = []
    sizes: Counter[int] = Counter()
    for model in ranked:
        wanted = len(choices) < _ENOUGH and sizes[_size(model.billions)] < _ALIKE
        if wanted and (best := first(model, machine, samples, length)):
            slower = SPEEDS.index(best.speed) - SPEEDS.index("fast")
            sizes[_size(model.billions)] += 1
            choices.append(Choice(best, guidance.recommended(model, "lora") or 0, _mismatch(model, samples) + slower))
    return sorted(choices, key=lambda choice: (choice.cost, *_order(choice.plan.draft.model, samples)))


def _common(model: Model) -> bool:
    """Tuned for chat, in 16 bits, and run by transformers' own code."""
    return not (model.base or model.quantized or model.remote_code)


def _order(model: Model, samples: int) -> tuple[bool, bool, int]:
    largest = max(entry["billions"] for entry in guidance.sizes("sft", "lora"))
    scarce = round(2 * log2((guidance.recommended(model, "lora") or samples) / samples)) > 0
    return _size(model.billions) > _size(largest), scarce, -_size(model.billions)


def _size(billions: float) -> int:
    """Sizes that differ by less than about a third are one."""
    return round(2 * log2(billions))


def _mismatch(model: Model, samples: int) -> int:
    good = guidance.recommended(model, "lora")
    return round(abs(log2(samples / good))) if good else 99
