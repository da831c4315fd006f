"""How many samples are recommended, and how sure that is."""

from __future__ import annotations

import pytest

from validator.diagnostic import RecipeError
from validator.tables import guidance, models


@pytest.mark.parametrize(
    ("stage", "method", "billions", "figure", "sure"),
    [
        ("sft", "lora", 7.6, "good", "several sources agree roughly"),
        ("sft", "lora", 8.2, "good", "one field report, interpolated"),
        ("sft", "lora", 32.8, "good", "one field report"),
        ("sft", "qlora", 72.7, "good", "one field report"),
        ("sft", "lora", 72.7, "useful", "what one public work used"),
        ("sft", "lora", 235, "good", "one field report, for 72B"),
        ("sft", "lora", 0.5, "saturating", "one field report, for 7B"),
        ("sft", "lora", 8.2, "saturating", "one field report, for 7B"),
        ("sft", "full", 7.6, "good", "several sources agree roughly"),
        ("sft", "full", 32.8, "good", "what one public work used"),
        ("dpo", "full", 14.8, "good", "what one public work used, interpolated"),
        ("sft", "lora", 72.7, "saturating", None),
        ("rm", "lora", 7.6, "good", None),
        ("sources", "lora", 7.6, "good", None),
    ],
)
def test_how_sure_a_figure_is(stage: str, method: str, billions: float, figure: str, sure: str | None) -> None:
    assert guidance.sure(stage, method, billions, figure) == sure


@pytest.mark.parametrize(
    ("samples", "basis"), [(80_000, "one field report"), (81_000, "one field report"), (60_000, None), (None, None)]
)
def test_only_the_guidances_own_number_has_its_basis(samples: int | None, basis: str | None) -> None:
    assert guidance.basis(models.model("qwen32b"), "lora", "sft", samples) == basis
    assert guidance.basis(None, "lora", "sft", samples) is None


@pytest.mark.parametrize(
    ("billions", "good"), [("qwen7b", 22_000), ("qwen14b", 42_000), ("qwen32b", 81_000), ("qwen72b", 150_000)]
)
def test_the_field_reports_numbers(billions: str, good: int) -> None:
    assert guidance.samples("sft", "lora", models.model(billions).billions) == good


def test_methods_without_a_published_rate_are_told() -> None:
    assert guidance.rated(guidance.METHODS, "kto") == ["lora", "qlora"]
    assert guidance.rated(guidance.METHODS, "pt") == ["lora", "qlora", "full"]
    with pytest.raises(RecipeError, match="no learning rate for full in stage rm is published; for lora, qlora one is"):
        guidance.rates(models.model("qwen7b"), "full", "rm")
