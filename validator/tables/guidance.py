"""How many samples and which rates public work found to suit a stage, a method and a size: data/samples.yaml and
data/rates.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from validator.diagnostic import RecipeError
from validator.tables import data
from validator.tables.models import Model

# Fewer passes than this over a small set are common practice (LIMA, arXiv 2305.11206, took 15 over 1,000 samples).
MANY_EPOCHS = 10
# Models that go by the same size: a "7B" has up to 10 billion parameters.
_SAME_SIZE = 1.5


def rates(model: Model, method: str, stage: str = "sft", saver: str | None = None) -> Mapping[str, Any]:
    """The entry of data/rates.yaml for the stage, the method and a model of this size; qlora is lora there.

    Raises RecipeError where nobody has published one."""
    wanted = "lora" if method == "qlora" else method
    entries = [e for e in data.listing("rates")["rates"] if (e["stage"], e["method"]) == (stage, wanted)]
    own = [e for e in entries if saver and e.get("optimizer") == saver] or [e for e in entries if "optimizer" not in e]
    if not own:
        raise RecipeError(f"no learning rate for {method} in stage {stage} is known; data/rates.yaml lists what is")
    largest: Mapping[str, Any] = [e for e in own if e["from_billions"] <= model.billions][-1]
    return largest


def recommended(model: Model, method: str, figure: str = "good", stage: str = "sft") -> int | None:
    """A figure of data/samples.yaml for the model's size and method, to two digits, as between two sizes it is
    interpolated; None where nobody has published one."""
    amount = samples(stage, method, model.billions, figure)
    return int(float(f"{amount:.1e}")) if amount else None


def samples(stage: str, method: str, billions: float, figure: str) -> int | None:
    """The figure between the two nearest sizes, linearly in the number of parameters; beyond the ends the nearest
    entry.

    Where the larger entry has no figure, the smaller one's holds for models of about its size. None: not published."""
    table = sizes(stage, method)
    if not table:
        return None
    above = next((entry for entry in table if entry["billions"] >= billions), table[-1])
    below = next((entry for entry in reversed(table) if entry["billions"] <= billions), table[0])
    least, most = below[figure], above[figure]
    if least is None or most is None:
        return least if billions < _SAME_SIZE * below["billions"] else None
    span = above["billions"] - below["billions"]
    share = (billions - below["billions"]) / span if span > 0 else 0.0
    return int(least + share * (most - least))


def sizes(stage: str, method: str) -> Sequence[Mapping[str, Any]]:
    """The sizes that data/samples.yaml has figures for; adapters of every kind count as LoRA. Empty: none published."""
    stages = data.listing("samples")
    own = "full" if method in ("full", "freeze") else "lora"
    known: Sequence[Mapping[str, Any]] = (stages.get(stage) or {}).get(own, ()) if stage != "sources" else ()
    return known
