"""How many samples and which rates public work found to suit a stage, a method and a size: data/samples.yaml and
data/rates.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from validator.diagnostic import RecipeError
from validator.tables import data
from validator.tables.models import Model

METHODS = ("lora", "qlora", "full", "freeze")
# Fewer passes than this over a small set are common practice (LIMA, arXiv 2305.11206, took 15 over 1,000 samples).
MANY_EPOCHS = 10
# Models that go by the same size: a "7B" has up to 10 billion parameters.
_SAME_SIZE = 1.5
# A "14B" has up to 14.8 billion parameters, and its figure is that of the entry.
_NEAR = 0.1


def rates(model: Model, method: str, stage: str = "sft", saver: str | None = None) -> Mapping[str, Any]:
    """The entry of data/rates.yaml for the stage, the method and a model of this size; qlora is lora there.

    Raises RecipeError where nobody has published one."""
    entries = _rates(stage, method)
    own = [e for e in entries if saver and e.get("optimizer") == saver] or [e for e in entries if "optimizer" not in e]
    if not own:
        known = rated(METHODS, stage)
        raise RecipeError(f"no learning rate for {method} in stage {stage} is published; for {', '.join(known)} one is")
    largest: Mapping[str, Any] = [e for e in own if e["from_billions"] <= model.billions][-1]
    return largest


def rated(methods: Sequence[str], stage: str) -> list[str]:
    """Those of the methods for which a learning rate in this stage is published."""
    return [method for method in methods if _rates(stage, method)]


def _rates(stage: str, method: str) -> list[Mapping[str, Any]]:
    wanted = "lora" if method == "qlora" else method
    return [entry for entry in data.listing("rates")["rates"] if (entry["stage"], entry["method"]) == (stage, wanted)]


def samples(stage: str, method: str, billions: float, figure: str = "good") -> int | None:
    """A figure of data/samples.yaml for a size: between the two nearest ones, linearly in the number of parameters, to
    two digits; beyond the ends that of the nearest entry.

    Where the larger entry has no figure, the smaller one's holds for models of about its size. None: not published."""
    table = sizes(stage, method)
    if not table:
        return None
    below, above = _around(table, billions)
    least, most = below[figure], above[figure]
    if least is None or most is None:
        return _round(least) if least and billions < _SAME_SIZE * below["billions"] else None
    span = above["billions"] - below["billions"]
    share = (billions - below["billions"]) / span if span > 0 else 0.0
    return _round(least + share * (most - least))


def _round(figure: float) -> int:
    return int(float(f"{figure:.1e}"))


def sure(stage: str, method: str, billions: float, figure: str = "good") -> str | None:
    """How sure a figure is, such as `one field report, interpolated`: as sure as that of the size it belongs to, else
    as the less sure of two; `for 72B` beyond the ends. None where nobody has published the figure."""
    if samples(stage, method, billions, figure) is None:
        return None
    known = [each for each in _around(sizes(stage, method), billions) if figure in each["sure"]]
    nearest = min(known, key=lambda each: abs(billions / each["billions"] - 1))
    if abs(billions / nearest["billions"] - 1) <= _NEAR:
        known = [nearest]
    bases = data.listing("samples")["sure"]
    words: str = bases[max((each["sure"][figure] for each in known), key=list(bases).index)]
    if len({each[figure] for each in known}) > 1:
        return f"{words}, interpolated"
    beyond = len({each["billions"] for each in known}) == 1 and abs(billions / nearest["billions"] - 1) > _NEAR
    return f"{words}, for {nearest['billions']:g}B" if beyond else words


def basis(model: Model | None, method: str, stage: str, number: int | None) -> str | None:
    """How sure a recommended number is that is about the guidance's own; None for any other."""
    good = samples(stage, method, model.billions) if model else None
    if model is None or not good or not number or abs(number / good - 1) > _NEAR:
        return None
    return sure(stage, method, model.billions)


def _around(table: Sequence[Mapping[str, Any]], billions: float) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The entries of the next smaller and the next larger size; beyond the ends the nearest one twice."""
    above = next((entry for entry in table if entry["billions"] >= billions), table[-1])
    below = next((entry for entry in reversed(table) if entry["billions"] <= billions), table[0])
    return below, above


def sizes(stage: str, method: str) -> Sequence[Mapping[str, Any]]:
    """The sizes that data/samples.yaml has figures for; adapters of every kind count as LoRA. Empty: none published."""
    if stage in ("sources", "sure"):
        return ()
    own = "full" if method in ("full", "freeze") else "lora"
    known: Sequence[Mapping[str, Any]] = (data.listing("samples").get(stage) or {}).get(own, ())
    return known
