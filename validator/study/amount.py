"""Whether there are as many samples as the model and method call for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from validator.diagnostic import plural
from validator.job.job import Job
from validator.tables import data, guidance
from validator.tables.guidance import Amounts, Figure

# In their order; what each begins is in `judged`.
FIGURES = ("minimum", "useful", "good", "saturating")


@dataclass(frozen=True)
class Size:
    """A size of model in billions of parameters, and the samples recommended for it."""

    billions: float
    good: int


@dataclass(frozen=True)
class Passes:
    """Epochs, samples seen in all, and whether the repetition does harm."""

    epochs: float
    seen: int
    message: str


@dataclass(frozen=True)
class Amount:
    """The verdict on so many different samples, the figures it rests on and who each is from, and a model size that
    suits them better. `minimum`: fewest with which form and style change; `useful`: with which a skill or a preference
    does; `good`: where the range of public runs begins; `saturating`: more hardly helps; `recommended`: what the header
    states, else would state. `unit`: what is counted."""

    rows: int
    verdict: str
    minimum: int | None
    useful: int | None
    good: int | None
    saturating: int | None
    recommended: int | None
    message: str
    better_size: Size | None
    epochs: Passes
    sources: list[dict[str, str]]
    sure: dict[str, str]
    unit: str = guidance.SAMPLE

    @property
    def counted(self) -> str:
        """The number with its noun."""
        words = guidance.counted(self.rows, self.unit)
        return words.replace(" ", " different ", 1) if self.unit == guidance.SAMPLE else words

    def figures(self) -> dict[str, int]:
        """The figures that are known, the smallest first."""
        figures = zip(FIGURES, (self.minimum, self.useful, self.good, self.saturating), strict=True)
        return {name: samples for name, samples in figures if samples}


def judged(job: Job, rows: int, epochs: float) -> Amount:
    """The amount for the job's stage, method and model; of pre-training `rows` are blocks of tokens."""
    known = job.guidance
    stated: dict[str, Figure | None] = dict.fromkeys(FIGURES)
    if known:
        effect = known.effect if known.effect and known.effect.samples < known.low else None
        usual = Figure(known.low, "public runs")
        stated = dict(zip(FIGURES, (known.form, effect, usual, known.saturating), strict=True))
    figures = {name: figure and figure.samples for name, figure in stated.items()}
    verdict = _verdict(rows, known)
    return Amount(
        rows=rows,
        verdict=verdict,
        **figures,
        recommended=job.samples or (known.recommended.samples if known else None),
        message=_message(job, rows),
        better_size=_better(rows, verdict),
        epochs=_passes(rows, epochs, known),
        sources=list(_sources(known)),
        sure={name: figure.by for name, figure in stated.items() if figure},
        unit=known.unit if known else guidance.SAMPLE,
    )


def _verdict(rows: int, known: Amounts | None) -> str:
    if known is None:
        return "unknown"
    if known.form and rows < known.form.samples:
        return "too few"
    if known.few(rows) or (known.effect is None and rows < known.low):
        return "few"
    if known.many(rows):
        return "saturated"
    return "good" if rows >= known.low else "useful"


def _message(job: Job, rows: int) -> str:
    known = job.guidance
    if known is None:
        return f"no public guidance for stage {job.stage}" if job.model else "name a model with --model"
    if judged := known.few(rows) or known.many(rows):
        return judged
    advice = "fewer may do if each is checked" if rows < known.low else "checked ones count more than many"
    return f"{known.usual}; {advice}"


def _better(rows: int, verdict: str) -> Size | None:
    """The largest size whose count in the field report is there, where they are more than the model's own size uses."""
    fitting = [Size(*each) for each in guidance.report().items() if each[1] <= rows]
    return fitting[-1] if fitting and verdict == "saturated" else None


def _passes(rows: int, epochs: float, known: Amounts | None) -> Passes:
    message, most = "", known.saturating.samples if known and known.saturating else 0
    if known and known.few(rows) and epochs >= guidance.MANY_EPOCHS:
        held = f"{rows:,} {plural(rows, 'sample')}"
        message = f"{epochs:g} epochs of {held} are learned by heart; take 2 to 5, or add different, checked samples"
    elif rows <= most < rows * epochs:
        message = f"{epochs:g} epochs of {rows:,} samples are {rows * epochs:,.0f} seen; fewer epochs will do"
    return Passes(epochs, round(rows * epochs), message)


def _sources(known: Amounts | None) -> Iterator[dict[str, str]]:
    listed = data.listing("samples")["sources"]
    return ({"name": name, **listed[name]} for name in (known.sources if known else ()))
