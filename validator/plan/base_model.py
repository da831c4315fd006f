"""Current models that suit a machine and a number of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf, log2
from typing import NamedTuple

from validator.errors import RecipeError
from validator.knowledge import families, guidance, models
from validator.knowledge.devices import Machine
from validator.knowledge.guidance import SampleAmounts
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.plan.new_recipe import NewRecipe
from validator.plan.search import ADAPTER_METHODS, USUAL_LENGTHS, Plan, first_plan
from validator.run.dataset_registry import Registry

# A current model was released at most so many months before the newest one of data/models.yaml.
CURRENT_MONTHS = 18
# Training a proposed model is expected to take at most so many hours, so that it ends within the week.
SOON_HOURS = 72
# If a model takes longer than this many times SOON_HOURS, other models of its size and kind are not tried.
_LATE_FACTOR = 2
_MAX_CHOICES = 6
# Most models of one size, so that other sizes show as well.
_PER_SIZE = 3
# Most models of one maker: in all, and one among the first few.
_PER_MAKER = 2
_FIRST_CHOICES = 3


@dataclass(frozen=True)
class ModelChoice:
    """A model that fits. `recommended`: number of samples for its size. `cost` ranks the models, lower is better."""

    plan: Plan
    recommended: int | None
    cost: int


def choose_models(
    machine: Machine,
    samples: int | None = None,
    length: int | None = None,
    methods: Sequence[str] = ADAPTER_METHODS,
    stage: str = "sft",
    own: Registry | None = None,
) -> list[ModelChoice]:
    """Return current models that fit the machine and are trained soon, the lowest cost first. Below them come other
    models that suit the samples better, if fewer than the most that are proposed were found.

    The cost of a model is the number of doublings (or halvings) between the samples and the number that is recommended
    for its size, plus the doublings of a step's time by overhead. Models of equal cost are ordered so: models that
    public runs have trained the size of; models for which the samples about suffice; the size that the field report's
    count is for; the larger size; the order of data/models.yaml. A model is left out if its successor can be proposed,
    too. Without a number of samples, the largest models that fit are returned, one of each size."""
    search = _ModelSearch(machine, samples, length, methods, stage, own)
    # A successor may be a model that reads images, which is not offered by itself.
    known = dict.fromkeys(each for key in models.offered_models() for each in _successors(key))
    choices = search.pick(filter(_is_current, known), search.is_soon)
    closest = min((search.balance.mismatch(choice.plan.draft.model) for choice in choices), default=inf)
    if closest > 0 and len(choices) < _MAX_CHOICES:
        rest = (key for key in known if _is_common(key) and search.balance.mismatch(models.find_model(key)) < closest)
        choices += search.pick(rest, search.fits)
    return choices


@dataclass
class _ModelSearch:
    """Plans of models for the machine, each made once. `sizes` and `makers` count the models that were picked. `late`
    holds the size classes, dense and mixture apart, in which a model takes far too long."""

    machine: Machine
    samples: int | None
    length: int | None
    methods: Sequence[str]
    stage: str
    own: Registry | None
    plans: dict[str, Plan | None] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)
    makers: Counter[str] = field(default_factory=Counter)
    late: set[tuple[int, bool]] = field(default_factory=set)

    @property
    def balance(self) -> _SampleBalance:
        """Ranking of models by how well they suit the number of samples."""
        return _SampleBalance(self.samples, self.methods[0], self.stage, self.own is not None and self.own.has_images)

    def plan(self, key: str) -> Plan | None:
        """Return the model's plan; None if it does not fit."""
        if key not in self.plans:
            start = NewRecipe(
                models.find_model(key),
                self.machine,
                self.methods[0],
                length=self.length or USUAL_LENGTHS[0],
                samples=self.samples,
                stage=self.stage,
                own_datasets=self.own,
            )
            start = start if self.length else replace(start, length=start.length_with_images)
            self.plans[key] = first_plan(start, self.methods)
        return self.plans[key]

    def fits(self, key: str) -> bool:
        """True if the model can be proposed and fits."""
        return _is_common(key) and self.plan(key) is not None

    def is_soon(self, key: str) -> bool:
        """True if the model is a current one that fits and is trained soon."""
        if not _is_current(key):
            return False
        model = models.find_model(key)
        kind = _size_class(model.billions), bool(model.arch.ffn.experts)
        if key not in self.plans and kind in self.late:
            return False
        if (plan := self.plan(key)) is None:
            return False
        hours = plan.hours.expected if plan.hours else 0.0
        if hours > _LATE_FACTOR * SOON_HOURS:
            self.late.add(kind)
        return hours < SOON_HOURS

    def pick(self, keys: Iterable[str], suits: Callable[[str], bool]) -> list[ModelChoice]:
        """Return a few suitable models of each size and each maker, each the newest of its line that suits."""
        choices: list[ModelChoice] = []
        ranks = {
            key: (self.balance.mismatch(model := models.find_model(key)), *self.balance.order(model)) for key in keys
        }
        for key in sorted(ranks, key=ranks.__getitem__):
            model = models.find_model(key)
            if not self._has_room(model) or next(filter(suits, reversed([*_successors(key)])), None) != key:
                continue
            if plan := self.plan(key):
                self.sizes[_size_class(model.billions)] += 1
                self.makers[_publisher(model)] += 1
                recommended = self.balance.guidance(model).recommended.samples
                choices.append(ModelChoice(plan, recommended, self.balance.mismatch(model) + plan.overhead_doublings))
        return sorted(choices, key=lambda choice: (choice.cost, *self.balance.order(choice.plan.draft.model)))

    def _has_room(self, model: Model) -> bool:
        count = self.sizes.total()
        alike, by_maker = _PER_SIZE if self.samples else 1, _PER_MAKER if count >= _FIRST_CHOICES else 1
        return (
            count < _MAX_CHOICES
            and self.sizes[_size_class(model.billions)] < alike
            and self.makers[_publisher(model)] < by_maker
        )


class _SampleBalance(NamedTuple):
    """Ranking of models by how well they suit the samples. `has_images`: the user's own samples have some."""

    samples: int | None
    method: str
    stage: str
    has_images: bool

    def guidance(self, model: Model) -> SampleAmounts:
        """Return the numbers of samples that public work used for a model of this size."""
        known = guidance.sample_amounts(self.stage, self.method, model.billions, self.has_images)
        if known is None:
            raise RecipeError(f"how many samples suit which model is not known for stage {self.stage}")
        return known

    def mismatch(self, model: Model) -> int:
        """Return the doublings between the number of samples and the recommended number, rounded."""
        if self.samples is None:
            return 0
        return round(abs(log2(self.samples / self.guidance(model).recommended.samples)))

    def order(self, model: Model) -> tuple[bool, bool, int, int]:
        """Return the sort key of models that suit the samples equally well."""
        known, size = self.guidance(model), _size_class(model.billions)
        scarce = bool(self.samples and round(2 * log2(known.recommended.samples / self.samples)) > 0)
        apart = abs(size - _size_class(known.report_for)) if self.samples and known.report_for else 0
        return size > _size_class(known.largest), scarce, apart, -size


def _successors(key: str | None) -> Iterator[str]:
    """Yield the model's key, its successor's, and so on to the newest."""
    while key:
        yield key
        key = models.successor_ids().get(key)


def _is_current(key: str) -> bool:
    """True if the model can be proposed and is not much older than the newest one."""
    months = _release_months()
    return months[key] >= max(months.values()) - CURRENT_MONTHS and _is_common(key)


def _is_common(key: str) -> bool:
    """True if the model can be proposed: its shapes are known, and its default checkpoint is tuned for chat, in 16 bits
    and run by transformers' own code."""
    if not families.has_known_shapes(yaml_table("models")[key]["config"]):
        return False
    model = models.find_model(key)
    return not (model.base or model.quantized or model.remote_code)


@cache
def _release_months() -> Mapping[str, int]:
    """Return the months from year 0 to the release of each model."""
    dates = {key: text.split("-") for key, text in models.release_months().items()}
    return {key: 12 * int(year) + int(month) for key, (year, month) in dates.items()}


def _publisher(model: Model) -> str:
    """Return the owner in the model's hub name."""
    return model.name.partition("/")[0]


def _size_class(billions: float) -> int:
    """Return the size class of a model; sizes in one class differ by less than about a third."""
    return round(2 * log2(billions))
