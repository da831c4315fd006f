"""What becomes of a sample: trained, left out without a word in the summary, or the end of the run."""

from __future__ import annotations

from validator.samples.conversion import Sample, StopsRunError

KEPT = 0
# Reasons, by code. The processors of LLaMA-Factory (data/processor/*.py) log each such row and go on.
REASONS = (
    "trained",
    "no answer: null, missing, or not text",
    "turns out of order, or not in pairs",
    "an incomplete pair: chosen or rejected is not text",
    "no label: neither true nor false",
    "two answers, which only dpo, rm and kto use",
    "every answer of the column reads as a date, and dates are no text",
    "the run stops",
)
NO_ANSWER, TURNS, PAIR, LABEL, TWO_ANSWERS, DATE, STOPS = range(1, 8)


def fate(sample: Sample, stage: str) -> int:
    """The code of a sample in a training stage. Raises StopsRunError."""
    if stage == "pt":
        if not sample.prompt:
            raise StopsRunError("no turn; pre-training reads the first one")
        return KEPT
    if sample.broken or len(sample.prompt) % 2 != 1:
        return TURNS
    if stage in ("dpo", "rm", "kto"):
        return KEPT if len(sample.answers) >= 2 else LABEL if stage == "kto" else PAIR
    if stage == "sft" and len(sample.answers) != 1:
        return TWO_ANSWERS if sample.answers else NO_ANSWER
    return KEPT
