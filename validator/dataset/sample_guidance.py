"""Judges by public guidance whether there are enough samples for the model, the method and the stage."""

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
    """A model size in billions of parameters, and the number of samples recommended for it."""

    billions: float
    good: int


@dataclass(frozen=True)
class EpochGuidance:
    """Epochs, samples seen in all of them together, and what the repetition does if it does harm."""

    epochs: float
    seen: int
    message: str


@dataclass(frozen=True)
class SampleGuidance:
    """The verdict on a number of different samples (`rows`), and the figures that it rests on.

    `minimum`: fewest samples that changed form and style; `useful`: fewest that taught a skill or a preference; `good`:
    where the range of public runs begins; `saturating`: more hardly help; `recommended`: what the header states, else
    would state. `better_size`: a model size that suits the samples better. `sure`: who each figure is from. `unit`:
    what is counted."""

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
        """The number with its noun, such as "3,000 different samples"."""
        words = guidance.count_in_words(self.rows, self.unit)
        return words.replace(" ", " different ", 1) if self.unit == guidance.SAMPLE_UNIT else words

    def figures(self) -> dict[str, int]:
        """Return the figures that are known, the smallest first."""
        figures = zip(GUIDANCE_FIGURES, (self.minimum, self.useful, self.good, self.saturating), strict=True)
        return {name: samples for name, samples in figures if samples}


def judge_sample_count(run: RunSettings, rows: int, epochs: float) -> SampleGuidance:
    """Return the verdict on a number of samples for the run's stage, method and model. In pre-training, `rows` are
    blocks of tokens."""
    known = run.guidance
    stated: dict[str, SampleFigure | None] = dict.fromkeys(GUIDANCE_FIGURES)
    if known:
        effect = known.effect if known.effect and known.effect.samples < known.low else None
        usual = SampleFigure(known.low, "public runs")
        stated = dict(zip(GUIDANCE_FIGURES, (known.form, effect, usual, known.saturating), strict=True))
    figures = {name: figure and figure.samples for name, figure in stated.items()}
    verdict = _sample_verdict(rows, known)
    # The largest model for which there are enough samples, by the field report.
    fitting = [RecommendedModelSize(*each) for each in guidance.field_report_counts().items() if each[1] <= rows]
    sources = tables.yaml_table("samples")["sources"]
    return SampleGuidance(
        rows=rows,
        verdict=verdict,
        **figures,
        recommended=run.declared.samples or (known.recommended.samples if known else None),
        message=_sample_message(run, rows),
        better_size=fitting[-1] if fitting and verdict == "saturated" else None,
        epochs=_epoch_guidance(rows, epochs, known),
        sources=[{"name": name, **sources[name]} for name in (known.sources if known else ())],
        sure={name: figure.by for name, figure in stated.items() if figure},
        unit=known.unit if known else guidance.SAMPLE_UNIT,
    )


def _sample_verdict(rows: int, known: SampleAmounts | None) -> str:
    if known is None:
        return "unknown"
    if known.form and rows < known.form.samples:
        return "too few"
    if known.few(rows) or (known.effect is None and rows < known.low):
        return "few"
    if known.many(rows):
        return "saturated"
    return "good" if rows >= known.low else "useful"


def _sample_message(run: RunSettings, rows: int) -> str:
    known = run.guidance
    if known is None:
        return f"no public guidance for stage {run.task.stage}" if run.model else "name a model with --model"
    if judged := known.few(rows) or known.many(rows):
        return judged
    advice = "fewer may do if each is checked" if rows < known.low else "checked ones count more than many"
    return f"{known.usual}; {advice}"


def _epoch_guidance(rows: int, epochs: float, known: SampleAmounts | None) -> EpochGuidance:
    message, most = "", known.saturating.samples if known and known.saturating else 0
    if known and known.few(rows) and epochs >= guidance.MANY_EPOCHS:
        held = f"{rows:,} {plural(rows, 'sample')}"
        message = f"{epochs:g} epochs of {held} are learned by heart; take 2 to 5, or add different, checked samples"
    elif rows <= most < rows * epochs:
        message = f"{epochs:g} epochs of {rows:,} samples are {rows * epochs:,.0f} seen; fewer epochs will do"
    return EpochGuidance(epochs, round(rows * epochs), message)
