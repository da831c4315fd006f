"""Whether there are as many samples as the model and method call for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from validator.diagnostic import plural
from validator.job.job import Job
from validator.tables import data, guidance

FIGURES = ("minimum", "useful", "good", "saturating")
# The field report's own ratio: 5,000 samples are of use to a 7B, 20,000 are recommended.
_USEFUL = 0.25
# The figures are round numbers, and a "14B" has up to 14.8 billion parameters.
_ABOUT = 0.9


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
    """The verdict on so many different samples, the figures it rests on and how sure each is, and a model size that
    suits them better."""

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

    def figures(self) -> dict[str, int]:
        """The figures that are known, the smallest first."""
        figures = zip(FIGURES, (self.minimum, self.useful, self.good, self.saturating), strict=True)
        return {name: samples for name, samples in figures if samples}


def judged(job: Job, rows: int, epochs: float) -> Amount:
    """The amount for the job's model, method and stage."""
    model = job.model
    figures = {name: guidance.samples(job.stage, job.method, model.billions, name) if model else None
               for name in FIGURES}  # fmt: skip
    sure = {name: words for name in FIGURES
            if model and (words := guidance.sure(job.stage, job.method, model.billions, name))}  # fmt: skip
    good = figures["good"]
    if good and figures["useful"] is None:
        figures["useful"] = max(int(good * _USEFUL), figures["minimum"] or 0)
        sure["useful"] = f"{_USEFUL:.0%} of good".replace("%", " %")
    verdict = _verdict(rows, figures)
    return Amount(
        rows=rows,
        verdict=verdict,
        **figures,
        recommended=job.samples or good,
        message=_message(job, verdict, figures),
        better_size=_better(job, rows, verdict),
        epochs=_passes(rows, epochs, figures),
        sources=list(_sources(job)),
        sure=sure,
    )


def _verdict(rows: int, figures: Mapping[str, int | None]) -> str:
    good, most = figures["good"], figures["saturating"]
    if not good:
        return "unknown"
    if rows < (figures["minimum"] or 0):
        return "too few"
    if rows < (figures["useful"] or 0):
        return "few"
    if most and rows > most:
        return "saturated"
    return "good" if rows >= _ABOUT * good else "useful"


def _message(job: Job, verdict: str, figures: Mapping[str, int | None]) -> str:
    size = f"a model of {job.model.size}" if job.model else "this model"
    good, what = figures["good"] or 0, f"{job.stage} {job.method}"
    return {
        "unknown": f"no public guidance for {what} of {size}" if job.model else "name a model with --model",
        "too few": f"public work starts at {figures['minimum'] or 0:,} for {size}; {good:,} are recommended",
        "few": f"too few for {size} to gain much; {figures['useful'] or 0:,} are of use, {good:,} are recommended",
        "useful": f"of use to {size}; {good:,} are recommended",
        "good": f"enough for {size}; better samples now help more than further ones",
        "saturated": f"more than {figures['saturating'] or 0:,} are wasted on {size}; choose the best ones",
    }[verdict]


def _better(job: Job, rows: int, verdict: str) -> Size | None:
    """The largest size whose recommended number is there; smaller ones need fewer samples, larger ones use more."""
    if job.model is None or verdict in ("unknown", "useful", "good"):
        return None
    fitting = [entry for entry in guidance.sizes(job.stage, job.method) if (entry["good"] or 0) * _USEFUL <= rows]
    if verdict == "saturated":
        fitting = [entry for entry in guidance.sizes(job.stage, job.method) if (entry["good"] or 0) <= rows]
    if not fitting:
        return None
    best = fitting[-1]
    larger = best["billions"] > job.model.billions
    if larger is not (verdict == "saturated") or abs(best["billions"] / job.model.billions - 1) < 0.5:
        return None
    return Size(best["billions"], best["good"])


def _passes(rows: int, epochs: float, figures: Mapping[str, int | None]) -> Passes:
    few = rows < (figures["minimum"] or 0)
    message = ""
    if few and epochs >= guidance.MANY_EPOCHS:
        held = f"{rows:,} {plural(rows, 'sample')}"
        message = f"{epochs:g} epochs of {held} are learned by heart; take 2 to 5, or more samples"
    elif figures["saturating"] and rows <= figures["saturating"] < rows * epochs:
        message = f"{epochs:g} epochs of {rows:,} samples are {rows * epochs:,.0f} seen; fewer epochs will do"
    return Passes(epochs, round(rows * epochs), message)


def _sources(job: Job) -> Iterator[dict[str, str]]:
    known = data.listing("samples")["sources"]
    names = dict.fromkeys(name for entry in guidance.sizes(job.stage, job.method) for name in entry["source"])
    return ({"name": name, **known[name]} for name in names)
