"""Recommendations of public work: how many samples (data/samples.yaml), which learning rates and settings
(data/rates.yaml), and which memory-saving optimizers for full fine-tuning on one device (data/savers.yaml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import tables
from validator.knowledge.devices import Device
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.wording import plural

TUNING_METHODS = ("lora", "qlora", "full", "freeze")
# Fewer passes than this over a small set are common practice (LIMA, arXiv 2305.11206, took 15 over 1,000 samples).
MANY_EPOCHS = 10
# What is counted where data/samples.yaml says nothing else.
SAMPLE_UNIT = "sample"
# What a block of pre-training text holds.
BLOCK_TOKENS = 2048


def published_rates(model: Model, method: str, stage: str = "sft", saver: str | None = None) -> Mapping[str, Any]:
    """Return the entry of data/rates.yaml for a stage, a method (qlora counts as lora) and a model of this size.

    Raises RecipeError if nobody has published one."""
    found = rate_row(stage, method, model.billions, saver)
    if found is None:
        known = methods_with_rates(TUNING_METHODS, stage)
        raise RecipeError(f"no learning rate for {method} in stage {stage} is published; for {', '.join(known)} one is")
    return found


def rate_row(stage: str, method: str, billions: float | None, optimizer: str | None = None) -> Mapping[str, Any] | None:
    """Return the entry of data/rates.yaml for a run; None if nobody published one. If the size is not known, the ranges
    go from the lowest to the highest value of all sizes."""
    entries = _rate_rows(stage, method)
    own = [e for e in entries if e.get("optimizer") == optimizer] or [e for e in entries if "optimizer" not in e]
    if not own or billions is not None:
        return next((e for e in reversed(own) if e["from_billions"] <= (billions or 0)), None)
    return {**own[-1], **{name: _widest_range([e[name] for e in own]) for name in ("learning_rate", "batch", "epochs")}}


def _widest_range(ranges: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    lows, highs = [each["low"] for each in ranges], [each["high"] for each in ranges]
    return {**ranges[-1], "low": None if None in lows else min(lows), "high": None if None in highs else max(highs)}


def setting_rows(stage: str, method: str, loss: str) -> list[Mapping[str, Any]]:
    """Return the rows of data/rates.yaml on single settings that hold for a stage, a method and a preference loss."""
    conditions = {"stage": stage, "method": "lora" if method == "qlora" else method}
    rows: list[Mapping[str, Any]] = tables.yaml_table("rates")["shape"]
    return [
        row
        for row in rows
        if all(row.get(field, value) == value for field, value in conditions.items())
        and loss in row.get("loss", (loss,))
    ]


def usual_setting(key: str) -> float:
    """Return the value that recipes use for a setting, from its row of data/rates.yaml."""
    return float(next(row["default"] for row in tables.yaml_table("rates")["shape"] if row["key"] == key))


def methods_with_rates(methods: Sequence[str], stage: str) -> list[str]:
    """Return the methods for which a learning rate in this stage is published."""
    return [method for method in methods if _rate_rows(stage, method)]


def _rate_rows(stage: str, method: str) -> list[Mapping[str, Any]]:
    wanted = "lora" if method == "qlora" else method
    return [
        entry for entry in tables.yaml_table("rates")["rates"] if (entry["stage"], entry["method"]) == (stage, wanted)
    ]


class SampleFigure(NamedTuple):
    """A number of samples, and who published it."""

    samples: int
    by: str


@dataclass(frozen=True)
class SampleAmounts:
    """How many samples public work used in a stage, and what effect they had. None: nobody has published the figure.

    `form`: the fewest that changed form and style; `effect`: the fewest that taught a skill or a preference; `low` to
    `high`: the range of public runs; `saturating`: more samples hardly help; `recommended`: the number that headers
    state. `unit`: what is counted. `report_for`: the size, in billions of parameters, whose count of the field report
    is recommended. `largest`: size of the largest model of the public runs. `sources`: keys of the sources of
    data/samples.yaml."""

    form: SampleFigure | None
    effect: SampleFigure | None
    low: int
    high: int
    saturating: SampleFigure | None
    recommended: SampleFigure
    unit: str
    report_for: float | None
    largest: float
    sources: tuple[str, ...]

    @property
    def usual(self) -> str:
        """The range of public runs, as a clause."""
        return f"public runs usually took {self.low:,} to {self.high:,}"

    def whose(self, stated: int | None) -> str | None:
        """Return who published a stated number of samples; None for a number of the recipe's own."""
        return self.recommended.by if stated == self.recommended.samples else None

    def few(self, number: int) -> str | None:
        """Return the end of a sentence on what so few samples can teach, and what to do; None from `effect` on."""
        if self.effect is None or number >= self.effect.samples:
            return None
        count, by = f"{self.effect.samples:,}", self.effect.by
        if self.form is None:
            return f"public work saw an effect from {count} ({by}); add different, checked ones"
        if number < self.form.samples:
            return (
                f"form and style change from some {self.form.samples} ({self.form.by}), a skill from {count} ({by}); "
                "add different, checked ones"
            )
        return (
            f"enough to teach form and style, while public work taught a skill from {count} ({by}); "
            "add different, checked ones for that"
        )

    def many(self, number: int) -> str | None:
        """Return the end of a sentence on who saw so many samples wasted; None up to `saturating`."""
        if self.saturating is None or number <= self.saturating.samples:
            return None
        waste = f"{self.saturating.by} saw more than {self.saturating.samples:,} wasted"
        return f"{waste}; compare with a chosen part before all are trained"


def count_in_words(number: int, unit: str) -> str:
    """Return the number with its noun: `1 sample`, `30 blocks of 2,048 tokens`."""
    noun, _, rest = unit.partition(" ")
    return f"{number:,} {plural(number, noun)} {rest}".rstrip()


def sample_amounts(stage: str, method: str, billions: float, has_images: bool = False) -> SampleAmounts | None:
    """Return the figures of data/samples.yaml for a stage, with the field report's figure for the nearest size; None
    for a stage without figures. `has_images`: samples have images or videos."""
    kind = "sft-pictures" if stage == "sft" and has_images else stage
    if kind == "sources" or kind not in tables.yaml_table("samples"):
        return None
    entry = tables.yaml_table("samples")[kind]
    recommended, saturating = entry["recommended"], entry["saturating"]
    report = recommended.get("field_report")
    size = min(report, key=lambda each: abs(log(billions / each))) if report else None
    if saturating and (method not in saturating["methods"] or size != saturating["billions"]):
        saturating = None
    stated = [entry["form"], entry["effect"], entry["usual"], saturating, recommended]
    return SampleAmounts(
        form=_sample_figure(entry["form"]),
        effect=_sample_figure(entry["effect"]),
        low=entry["usual"]["low"],
        high=entry["usual"]["high"],
        saturating=_sample_figure(saturating),
        recommended=SampleFigure(report[size] if report else recommended["samples"], recommended["by"]),
        unit=entry.get("unit", SAMPLE_UNIT),
        report_for=size,
        largest=entry["largest"],
        sources=tuple(dict.fromkeys(key for each in stated if each for key in each["source"])),
    )


def _sample_figure(stated: Mapping[str, Any] | None) -> SampleFigure | None:
    return SampleFigure(stated["samples"], stated["by"]) if stated else None


def field_report_counts() -> Mapping[float, int]:
    """Return the field report's count of samples for each size in billions of parameters."""
    counts: Mapping[float, int] = tables.yaml_table("samples")["sft"]["recommended"]["field_report"]
    return counts


SaverSetting = bool | int | float | str


class MemorySaver(NamedTuple):
    """An optimizer that saves memory: its name in messages, what it gives up, and the recipe's settings. `bits`: the
    width of the states that bitsandbytes keeps; None for an optimizer that does not need it."""

    title: str
    gives_up: str
    settings: Mapping[str, SaverSetting]
    bits: int | None = None


@cache
def memory_savers() -> Mapping[str, MemorySaver]:
    """Return every memory saver by name, the least approximate first."""
    return {name: MemorySaver(**entry) for name, entry in yaml_table("savers").items()}


def supports_memory_savers(device: Device) -> bool:
    """True if the memory savers run on this device: a GPU with bf16."""
    return device.bf16 and device.vendor in ("nvidia", "amd")
