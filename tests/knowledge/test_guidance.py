"""How many samples public work used: one picture for every size and method, which contradicts itself nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from validator.errors import RecipeError
from validator.knowledge import guidance, models
from validator.knowledge.guidance import SampleAmounts
from validator.run.settings import run_of_values

STAGES = ("sft", "dpo", "kto", "rm", "pt")
SIZES = (0.5, 1.5, 3.1, 7.6, 8.2, 9.9, 14.8, 20.9, 32.8, 47, 72.7, 235, 685)
# Runs of the guidance's own sources that had an effect.
PUBLIC = {"sft": {"LIMO": 817, "LIMA": 1_000, "s1": 1_000, "QLoRA": 9_000}, "dpo": {"RLHF-V": 1_400, "Deita": 10_000},
          "rm": {"HelpSteer2": 10_000}, "pt": {"400 million tokens": 195_313}}  # fmt: skip


def known(stage: str, method: str = "lora", billions: float = 7.6, pictures: bool = False) -> SampleAmounts:
    found = guidance.sample_amounts(stage, method, billions, pictures)
    assert found
    return found


def everything() -> Iterator[SampleAmounts]:
    for stage in STAGES:
        for method in guidance.TUNING_METHODS:
            yield from (known(stage, method, size, pictures) for size in SIZES for pictures in (False, True))


@pytest.mark.parametrize(
    ("billions", "report"),
    [(0.5, 20_000), (7.6, 20_000), (8.2, 20_000), (9.8, 20_000), (10, 40_000), (14.8, 40_000), (21, 40_000),
     (21.3, 80_000), (32.8, 80_000), (47, 80_000), (49, 150_000), (72.7, 150_000), (685, 150_000)],
)  # fmt: skip
def test_headers_have_the_field_reports_count_for_the_nearest_size(billions: float, report: int) -> None:
    assert known("sft", "lora", billions).recommended.samples == report
    assert known("sft", "lora", billions).recommended.by == "one field report's count (Ascend 910B, LoRA)"


def test_full_training_is_never_told_to_need_less_than_lora() -> None:
    for stage in STAGES:
        for size in SIZES:
            counts = [known(stage, method, size).recommended.samples for method in guidance.TUNING_METHODS]
            assert len(set(counts)) == 1


def test_figures_rise_from_form_to_what_is_wasted() -> None:
    for each in everything():
        steps = [each.form and each.form.samples, each.effect and each.effect.samples, each.low, each.high]
        if each.saturating:
            steps.append(each.saturating.samples)
        stated = [step for step in steps if step is not None]
        assert stated == sorted(stated)
        assert each.low <= each.recommended.samples <= each.high


@pytest.mark.parametrize("stage", PUBLIC)
def test_no_public_run_with_an_effect_is_called_too_few_or_wasted(stage: str) -> None:
    for method in guidance.TUNING_METHODS:
        for size in SIZES:
            for samples in PUBLIC[stage].values():
                assert known(stage, method, size).few(samples) is None
                assert known(stage, method, size).many(samples) is None


@pytest.mark.parametrize(
    ("stage", "samples", "says"),
    [
        ("sft", 2, "form and style change from some 50 (OpenAI's guide), a skill from 400 (LIMO"),
        ("sft", 50, "enough to teach form and style, while public work taught a skill from 400 (LIMO"),
        ("sft", 399, "enough to teach form and style"),
        ("sft", 400, None),
        ("dpo", 1_399, "public work saw an effect from 1,400 (RLHF-V, fewer hallucinations); add different"),
        ("dpo", 1_400, None),
        ("kto", 2, None),
    ],
)
def test_what_few_samples_can_teach_is_said(stage: str, samples: int, says: str | None) -> None:
    assert (known(stage).few(samples) or "").startswith(says or "")
    assert (known(stage).few(samples) is None) is (says is None)


@pytest.mark.parametrize(
    ("method", "billions", "samples", "wasted"),
    [
        ("lora", 7.6, 200_001, True),
        ("qlora", 7.6, 200_001, True),
        ("lora", 7.6, 200_000, False),
        ("full", 7.6, 200_001, False),
        ("lora", 14.8, 200_001, False),
    ],
)
def test_samples_are_wasted_only_where_somebody_saw_it(
    method: str, billions: float, samples: int, wasted: bool
) -> None:
    assert bool(known("sft", method, billions).many(samples)) is wasted


@pytest.mark.parametrize(
    ("model", "stage", "values", "recommended"),
    [
        ("qwen2.5-vl-7b", "sft", {}, 10_000),
        ("qwen2.5-vl-7b", "sft", {"dataset": "llava_1k_en"}, 10_000),
        ("qwen2.5-vl-7b", "sft", {"dataset": "alpaca_gpt4_en"}, 20_000),
        ("qwen2.5-vl-7b", "sft", {"dataset": "alpaca_gpt4_en,llava_1k_en"}, 10_000),
        ("qwen7b", "sft", {"dataset": "llava_1k_en"}, 20_000),
        ("qwen2.5-vl-7b", "dpo", {"dataset": "rlhf_v"}, 10_000),
    ],
)
def test_pictures_are_guided_where_there_are_some(
    model: str, stage: str, values: dict[str, str], recommended: int
) -> None:
    job = run_of_values({"model_name_or_path": model, "stage": stage, "finetuning_type": "lora", **values})
    assert job.guidance
    assert job.guidance.recommended.samples == recommended


def test_what_nobody_published_is_not_known() -> None:
    assert guidance.sample_amounts("ppo", "lora", 7.6) is None
    assert guidance.sample_amounts("sources", "lora", 7.6) is None
    assert run_of_values({"stage": "sft", "finetuning_type": "lora"}).guidance is None


@pytest.mark.parametrize(
    ("samples", "whose"), [(80_000, "one field report's count (Ascend 910B, LoRA)"), (60_000, None), (None, None)]
)
def test_only_the_guidances_own_number_is_somebody_elses(samples: int | None, whose: str | None) -> None:
    assert known("sft", "lora", 32.8).whose(samples) == whose


def test_methods_without_a_published_rate_are_told() -> None:
    assert guidance.methods_with_rates(guidance.TUNING_METHODS, "kto") == ["lora", "qlora", "full"]
    assert guidance.methods_with_rates(guidance.TUNING_METHODS, "pt") == ["lora", "qlora", "full"]
    with pytest.raises(
        RecipeError, match="no learning rate for freeze in stage rm is published; for lora, qlora, full one is"
    ):
        guidance.published_rates(models.find_model("qwen7b"), "freeze", "rm")
