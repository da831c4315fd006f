"""Judges whether there are enough samples for the model, the method and the stage, based on public guidance such as
papers and field reports."""

from __future__ import annotations

from dataclasses import dataclass

from validator.knowledge import guidance, tables
from validator.knowledge.guidance import SampleAmounts, SampleFigure
from validator.run.settings import RunSettings
from validator.wording import plural

# Figures of the guidance, in ascending order; SampleGuidance says what begins with each.
GUIDANCE_FIGURES = ("minimum", "useful", "good", "saturating")


@dataclass(frozen=True)
class RecommendedModelSize:
    """A model size in billions of parameters, and `good`, the number of samples recommended for this size."""

    billions: float
    good: int


@dataclass(frozen=True)
class EpochGuidance:
    """The number of epochs, the number of samples that all epochs together process (`seen`), and a message if so much
    repetition does harm."""

    epochs: float
    seen: int
    message: str


@dataclass(frozen=True)
class SampleGuidance:
    """The verdict on the number of different samples (`rows`), and the figures of public guidance that the verdict
    rests on.

    `minimum` is the smallest number that changed form and style. `useful` is the smallest number that taught a skill or
    a preference. `good` is where the range of public runs begins. Beyond `saturating`, more samples hardly help.
    `recommended` is the number that the recipe's header states or, without one, would state. `better_size` is a model
    size that suits the samples better. `sure` names the origin of each figure. `unit` is what is counted."""

    rows: int
    verdict: str
    minimum: int | None
    useful: int | None
    good: int | None
    saturating: int | None
    recommended: int | None
    message: str
    better_size: RecommendedModelSize | None
    epochs: EpochGuidance
    sources: list[dict[str, str]]
    sure: dict[str, str]
    unit: str = guidance.SAMPLE_UNIT

    @property
    def counted(self) -> str:
        """The number of samples with its noun, such as "3,000 different samples"."""
        words = guidance.count_in_words(self.rows, self.unit)
        return words.replace(" ", " different ", 1) if self.unit == guidance.SAMPLE_UNIT else words

    def figures(self) -> dict[str, int]:
        """Return the figures of the guidance that are known, in ascending order: minimum, useful, good, saturating."""
        figures = zip(GUIDANCE_FIGURES, (self.minimum, self.useful, self.good, self.saturating), strict=True)
        return {name: samples for name, samples in figures if samples}


def judge_sample_count(run: RunSettings, rows: int, epochs: float) -> SampleGuidance:
    """Return the verdict on a number of samples for the run's stage, method and model. In pre-training, `rows` counts
    blocks of tokens instead of samples."""
    amounts = run.guidance
    stated: dict[str, SampleFigure | None] = dict.fromkeys(GUIDANCE_FIGURES)
    if amounts:
        effect = amounts.effect if amounts.effect and amounts.effect.samples < amounts.low else None
        usual = SampleFigure(amounts.low, "public runs")
        stated = dict(zip(GUIDANCE_FIGURES, (amounts.form, effect, usual, amounts.saturating), strict=True))
    figures = {name: figure and figure.samples for name, figure in stated.items()}
    verdict = _sample_verdict(rows, amounts)
    # The largest model for which there are enough samples, by the field report.
    fitting = [RecommendedModelSize(*each) for each in guidance.field_report_counts().items() if each[1] <= rows]
    sources = tables.yaml_table("samples")["sources"]
    return SampleGuidance(
        rows=rows,
        verdict=verdict,
        **figures,
        recommended=run.declared.samples or (amounts.recommended.samples if amounts else None),
        message=_sample_message(run, rows),
        better_size=fitting[-1] if fitting and verdict == "saturated" else None,
        epochs=_epoch_guidance(rows, epochs, amounts),
        sources=[{"name": name, **sources[name]} for name in (amounts.sources if amounts else ())],
        sure={name: figure.by for name, figure in stated.items() if figure},
        unit=amounts.unit if amounts else guidance.SAMPLE_UNIT,
    )


def _sample_verdict(rows: int, amounts: SampleAmounts | None) -> str:
    if amounts is None:
        return "unknown"
    if amounts.form and rows < amounts.form.samples:
        return "too few"
    if amounts.few(rows) or (amounts.effect is None and rows < amounts.low):
        return "few"
    if amounts.many(rows):
        return "saturated"
    return "good" if rows >= amounts.low else "useful"


def _sample_message(run: RunSettings, rows: int) -> str:
    amounts = run.guidance
    if amounts is None:
        return f"no public guidance for stage {run.task.stage}" if run.model else "name a model with --model"
    if verdict := amounts.few(rows) or amounts.many(rows):
        return verdict
    advice = "fewer may do if each is checked" if rows < amounts.low else "checked ones count more than many"
    return f"{amounts.usual}; {advice}"


def _epoch_guidance(rows: int, epochs: float, amounts: SampleAmounts | None) -> EpochGuidance:
    message, saturating = "", amounts.saturating.samples if amounts and amounts.saturating else 0
    if amounts and amounts.few(rows) and epochs >= guidance.MANY_EPOCHS:
        samples = f"{rows:,} {plural(rows, 'sample')}"
        message = f"{epochs:g} epochs of {samples} are learned by heart; take 2 to 5, or add different, checked samples"
    elif rows <= saturating < rows * epochs:
        message = f"{epochs:g} epochs of {rows:,} samples are {rows * epochs:,.0f} seen; fewer epochs will do"
    return EpochGuidance(epochs, round(rows * epochs), message)
