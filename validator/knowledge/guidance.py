"""Recommendations from public work: numbers of samples (data/samples.yaml), learning rates and settings
(data/rates.yaml), and memory-saving optimizers for full fine-tuning on one device (data/savers.yaml)."""

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
# A run of fewer optimizer steps is over before the schedule has done its work: over 1,000 samples LIMA took some 230
# steps, s1 some 315 (arXiv 2305.11206, arXiv 2501.19393).
FEWEST_STEPS = 50
# Samples of a step that are few enough: a run of too few steps with this batch lacks samples, which is another matter.
SMALL_BATCH = 8
# What is counted where data/samples.yaml says nothing else.
SAMPLE_UNIT = "sample"
# What a block of pre-training text holds.
BLOCK_TOKENS = 2048


def published_rates(model: Model, method: str, stage: str = "sft", saver: str | None = None) -> Mapping[str, Any]:
    """Return the entry of data/rates.yaml (learning rate, batch, epochs) for a training stage, a tuning method (qlora
    counts as lora) and a model of this size. `saver`: name of a memory-saving optimizer; None: any other optimizer.

    Raises RecipeError if no entry is published."""
    row = rate_row(stage, method, model.billions, saver)
    if row is None:
        methods = methods_with_rates(TUNING_METHODS, stage)
        raise RecipeError(
            f"no learning rate for {method} in stage {stage} is published; for {', '.join(methods)} one is"
        )
    return row


def rate_row(stage: str, method: str, billions: float | None, optimizer: str | None = None) -> Mapping[str, Any] | None:
    """Return the entry of data/rates.yaml (learning rate, batch, epochs) for a training stage and a tuning method; None
    if no entry is published. `billions`: model size in billions of parameters; if it is None, the ranges go from the
    lowest to the highest value of all sizes. `optimizer`: name of a memory-saving optimizer; None: any other
    optimizer."""
    entries = _rate_rows(stage, method)
    rows = [e for e in entries if e.get("optimizer") == optimizer] or [e for e in entries if "optimizer" not in e]
    if not rows or billions is not None:
        return next((e for e in reversed(rows) if e["from_billions"] <= (billions or 0)), None)
    return {
        **rows[-1],
        **{name: _widest_range([e[name] for e in rows]) for name in ("learning_rate", "batch", "epochs")},
    }


def _widest_range(ranges: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    lows, highs = [each["low"] for each in ranges], [each["high"] for each in ranges]
    return {**ranges[-1], "low": None if None in lows else min(lows), "high": None if None in highs else max(highs)}


def setting_rows(stage: str, method: str, loss: str) -> list[Mapping[str, Any]]:
    """Return the rows of data/rates.yaml about single recipe settings, such as `lora_rank`, that apply to a training
    stage, a tuning method (qlora counts as lora) and a preference loss."""
    conditions = {"stage": stage, "method": "lora" if method == "qlora" else method}
    rows: list[Mapping[str, Any]] = tables.yaml_table("rates")["shape"]
    return [
        row
        for row in rows
        if all(row.get(field, value) == value for field, value in conditions.items())
        and loss in row.get("loss", (loss,))
    ]


def usual_setting(key: str) -> float:
    """Return the default value of the recipe setting `key`, such as `lora_rank`, in data/rates.yaml."""
    return float(next(row["default"] for row in tables.yaml_table("rates")["shape"] if row["key"] == key))


def methods_with_rates(methods: Sequence[str], stage: str) -> list[str]:
    """Return the tuning methods among `methods` for which a learning rate in this training stage is published."""
    return [method for method in methods if _rate_rows(stage, method)]


def _rate_rows(stage: str, method: str) -> list[Mapping[str, Any]]:
    tuning = "lora" if method == "qlora" else method
    return [
        entry for entry in tables.yaml_table("rates")["rates"] if (entry["stage"], entry["method"]) == (stage, tuning)
    ]


class SampleFigure(NamedTuple):
    """A number of samples, and who published it."""

    samples: int
    by: str


@dataclass(frozen=True)
class SampleAmounts:
    """Numbers of samples that public work used in one training stage, and the effect of these samples. None: no figure
    is published.

    `form`: the fewest samples that changed form and style. `effect`: the fewest that taught a skill or a preference.
    `low` to `high`: the range of public runs. `saturating`: the number above which more samples hardly help.
    `recommended`: the number that recipes state in their headers. `unit`: what is counted. `report_for`: the model
    size, in billions of parameters, whose number in the field report is recommended. `largest`: size of the largest
    model in the public runs. `sources`: keys of the sources in data/samples.yaml."""

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
        """Clause for messages that states the range of sample numbers in public runs."""
        return f"public runs usually took {self.low:,} to {self.high:,}"

    def whose(self, stated: int | None) -> str | None:
        """Return who published the recommended number of samples, if `stated` is that number; else None. `stated`: the
        number of samples in the recipe's header; None: the header states no number."""
        return self.recommended.by if stated == self.recommended.samples else None

    def few(self, number: int) -> str | None:
        """Return the end of a sentence about a dataset of too few samples: what `number` samples can teach, and what to
        do. None if `number` samples are enough to teach a skill or a preference (`effect`), or if no such figure is
        published."""
        if self.effect is None or number >= self.effect.samples:
            return None
        count, by = f"{self.effect.samples:,}", self.effect.by
        if self.form is None:
            return f"public work saw an effect from {count} ({by}); add different, checked samples"
        if number < self.form.samples:
            return (
                f"form and style change from some {self.form.samples} ({self.form.by}), a skill from {count} ({by}); "
                "add different, checked samples"
            )
        return (
            f"enough to teach form and style, while public work taught a skill from {count} ({by}); "
            "add different, checked samples to teach a skill"
        )

    def many(self, number: int) -> str | None:
        """Return the end of a sentence about a dataset of too many samples: who saw more than `saturating` samples
        wasted. None if `number` does not exceed `saturating`, or if that figure is not published."""
        if self.saturating is None or number <= self.saturating.samples:
            return None
        waste = f"{self.saturating.by} saw more than {self.saturating.samples:,} wasted"
        return f"{waste}; train on a chosen part first, and compare"


def count_in_words(number: int, unit: str) -> str:
    """Return a number with its unit, such as `1 sample` or `30 blocks of 2,048 tokens`."""
    noun, _, rest = unit.partition(" ")
    return f"{number:,} {plural(number, noun)} {rest}".rstrip()


def sample_amounts(stage: str, method: str, billions: float, has_images: bool = False) -> SampleAmounts | None:
    """Return the numbers of samples in data/samples.yaml for a training stage; None if the file has no numbers for the
    stage. `billions`: model size in billions of parameters; where the field report recommends numbers, the number for
    the nearest size is taken. `method`: tuning method; the number of samples above which more are wasted is published
    for some methods only. `has_images`: samples contain images or videos."""
    kind = "sft-pictures" if stage == "sft" and has_images else stage
    if kind == "sources" or kind not in tables.yaml_table("samples"):
        return None
    entry = tables.yaml_table("samples")[kind]
    recommended, saturating = entry["recommended"], entry["saturating"]
    report = recommended.get("field_report")
    size = min(report, key=lambda each: abs(log(billions / each))) if report else None
    if saturating and (method not in saturating["methods"] or size != saturating["billions"]):
        saturating = None
    figures = [entry["form"], entry["effect"], entry["usual"], saturating, recommended]
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
        sources=tuple(dict.fromkeys(key for each in figures if each for key in each["source"])),
    )


def _sample_figure(entry: Mapping[str, Any] | None) -> SampleFigure | None:
    return SampleFigure(entry["samples"], entry["by"]) if entry else None


def field_report_counts() -> Mapping[float, int]:
    """Return the numbers of samples that the field report of data/samples.yaml recommends, by model size in billions of
    parameters."""
    counts: Mapping[float, int] = tables.yaml_table("samples")["sft"]["recommended"]["field_report"]
    return counts


SaverSetting = bool | int | float | str


class MemorySaver(NamedTuple):
    """An optimizer that saves memory. `title`: its name in messages. `gives_up`: its disadvantage. `settings`: the
    recipe's settings that select it. `bits`: width of the optimizer states that bitsandbytes keeps; None for an
    optimizer that does not need bitsandbytes. `approximate`: it approximates AdamW's updates."""

    title: str
    gives_up: str
    settings: Mapping[str, SaverSetting]
    bits: int | None = None
    approximate: bool = False


@cache
def memory_savers() -> Mapping[str, MemorySaver]:
    """Return every memory-saving optimizer of data/savers.yaml, by name. The least approximate come first."""
    return {name: MemorySaver(**entry) for name, entry in yaml_table("savers").items()}


def supports_memory_savers(device: Device) -> bool:
    """True if the memory-saving optimizers run on this device: an NVIDIA or AMD GPU with bf16."""
    return device.bf16 and device.vendor in ("nvidia", "amd")
