"""The choice of a model: current models that fit a machine and suit a number of samples."""

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
    """A model that fits the machine. `recommended`: number of samples recommended for its size. `cost`: ranks the
    models, lower is better."""

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
    """Return current models that fit the machine and can be trained within SOON_HOURS, the lowest cost first. If there
    is room in the list, other models that suit the number of samples better follow.

    The cost of a model is the sum of two numbers: how often the number of samples must be doubled or halved to reach
    the number that is recommended for the model, and how often overhead doubles the time of a step. Among models of
    equal cost, models for which the samples roughly suffice come first, then models of the size for which the public
    field report states its number of samples, then larger models. Models larger than any that public runs trained come
    last. Only a few models of about the same size are listed, in the order of data/models.yaml. A model is replaced by
    its successor if the successor qualifies, too. Without a number of samples, the largest models that fit are listed,
    one of each size."""
    search = _ModelSearch(machine, samples, length, methods, stage, own)
    # A successor may be a model that reads images, which is not offered by itself.
    newest_keys = dict.fromkeys(each for key in models.offered_models() for each in _successors(key))
    choices = search.pick(filter(_is_current, newest_keys), search.is_soon)
    closest = min((search.balance.mismatch(choice.plan.draft.model) for choice in choices), default=inf)
    if closest > 0 and len(choices) < _MAX_CHOICES:
        rest = (
            key for key in newest_keys if _is_common(key) and search.balance.mismatch(models.find_model(key)) < closest
        )
        choices += search.pick(rest, search.fits)
    return choices


@dataclass
class _ModelSearch:
    """A search for models that fit the machine; the plan of each model is made only once. `sizes`, `makers`: number of
    models picked of each size class and maker. `late`: size classes, separately for dense and mixture-of-experts
    models, in which a model takes far too long, so that others are not tried."""

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
        """Return the best plan for the model with this key in data/models.yaml; None if the model does not fit."""
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
            tried = (first_plan(replace(start, machine=each), self.methods) for each in start.machines_to_try())
            self.plans[key] = next(filter(None, tried), None)
        return self.plans[key]

    def fits(self, key: str) -> bool:
        """True if the model with this key in data/models.yaml may be proposed (`_is_common`), and a run of it fits the
        machine."""
        return _is_common(key) and self.plan(key) is not None

    def is_soon(self, key: str) -> bool:
        """True if the model with this key in data/models.yaml is a current one (`_is_current`), fits the machine and
        can be trained within SOON_HOURS."""
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
        """Return a few suitable models of each size class and each maker. Of several generations of a model, the newest
        that suits is taken. `suits`: tells whether a model qualifies."""
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
    """Ranking of models by how well they suit the number of samples. `samples`: None if the user names no number.
    `has_images`: True if the user's own samples contain images."""

    samples: int | None
    method: str
    stage: str
    has_images: bool

    def guidance(self, model: Model) -> SampleAmounts:
        """Return the numbers of samples that public work used for a model of this size. Raises RecipeError if no number
        is published for the stage."""
        amounts = guidance.sample_amounts(self.stage, self.method, model.billions, self.has_images)
        if amounts is None:
            raise RecipeError(f"how many samples suit which model is not known for stage {self.stage}")
        return amounts

    def mismatch(self, model: Model) -> int:
        """Return how often the number of samples must be doubled or halved to reach the recommended number, rounded; 0
        if no number of samples is given."""
        if self.samples is None:
            return 0
        return round(abs(log2(self.samples / self.guidance(model).recommended.samples)))

    def order(self, model: Model) -> tuple[bool, bool, int, int]:
        """Return a sort key for models that suit the samples equally well; the better model has the smaller key."""
        amounts, size = self.guidance(model), _size_class(model.billions)
        scarce = bool(self.samples and round(2 * log2(amounts.recommended.samples / self.samples)) > 0)
        apart = abs(size - _size_class(amounts.report_for)) if self.samples and amounts.report_for else 0
        return size > _size_class(amounts.largest), scarce, apart, -size


def _successors(key: str | None) -> Iterator[str]:
    """Yield a model's key in data/models.yaml, the key of the successor of this model, and so on up to the newest model
    of the line. Yield nothing for None."""
    while key:
        yield key
        key = models.successor_ids().get(key)


def _is_current(key: str) -> bool:
    """True if the model with this key in data/models.yaml may be proposed (`_is_common`), and was released at most
    CURRENT_MONTHS months before the newest model."""
    months = _release_months()
    return months[key] >= max(months.values()) - CURRENT_MONTHS and _is_common(key)


def _is_common(key: str) -> bool:
    """True if the model with this key in data/models.yaml may be proposed: its architecture is known, and its
    checkpoint is chat-tuned, not quantized, and runs with transformers' own code."""
    if not families.has_known_shapes(yaml_table("models")[key]["config"]):
        return False
    model = models.find_model(key)
    return not (model.base or model.quantized or model.remote_code)


@cache
def _release_months() -> Mapping[str, int]:
    """Return the month in which each model was released, counted from the year 0."""
    dates = {key: text.split("-") for key, text in models.release_months().items()}
    return {key: 12 * int(year) + int(month) for key, (year, month) in dates.items()}


def _publisher(model: Model) -> str:
    """Return the organization in the model's hub name."""
    return model.name.partition("/")[0]


def _size_class(billions: float) -> int:
    """Return the size class of a model with this number of parameters, in billions. Every doubling of the number spans
    two classes, so that sizes within one class differ by less than about a third."""
    return round(2 * log2(billions))
