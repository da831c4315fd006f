"""Settings with which a run ruins the model, or teaches it nothing: each is told, whatever the method."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from validator.check import checking
from validator.recipe.recipe_file import parse_recipe

pytestmark = pytest.mark.usefixtures("from_the_root")

RECIPES = Path(__file__).parents[2] / "recipes"
METHODS = ("qwen3-8b-4090x1-qlora", "qwen3-8b-a100-full", "qwen3-8b-a100-lora-dpo")
# What is set -> the code that tells it.
RUINOUS: dict[str, tuple[dict[str, str], str]] = {
    "a rate of a hundredth": ({"learning_rate": "1.0e-2"}, "TRA418"),
    "a rate that changes nothing": ({"learning_rate": "1.0e-9"}, "TRA418"),
    "a negative rate": ({"learning_rate": "-1.0e-4"}, "TRA410"),
    "a rate of zero": ({"learning_rate": "0.0"}, "TRA411"),
    "fifty epochs": ({"num_train_epochs": "50"}, "TRA418"),
    "a hundredth of an epoch": ({"num_train_epochs": "0.01"}, "TRA418"),
    "five steps": ({"max_steps": "5"}, "TRA015"),
    "batches of half the data": ({"gradient_accumulation_steps": "8192"}, "TRA420"),
    "no warm-up": ({"warmup_ratio": "0.0"}, "TRA421"),
    "warm-up nearly to the end": ({"warmup_ratio": "0.9"}, "TRA418"),
    "a warm-up longer than the run": ({"warmup_steps": "100000"}, "TRA417"),
    "a rate that never falls": ({"lr_scheduler_type": "constant", "num_train_epochs": "10"}, "TRA422"),
    "weights that decay to nothing": ({"weight_decay": "10"}, "TRA418"),
    "gradients that are never clipped": ({"max_grad_norm": "1000"}, "TRA418"),
    "an average of the last gradient": ({"adam_beta2": "0.1"}, "TRA418"),
    "a tenth added to each denominator": ({"adam_epsilon": "0.1"}, "TRA418"),
    "labels that are all but equal": ({"label_smoothing_factor": "0.9"}, "TRA418"),
    "noise beyond the embeddings": ({"neftune_noise_alpha": "500"}, "TRA418"),
    "answers cut to sixteen tokens": ({"cutoff_len": "16"}, "TRA620"),
    "ten samples": ({"max_samples": "10"}, "TRA009"),
    "nearly all data held back": ({"val_size": "0.9"}, "DAT006"),
    "nothing measured": ({"val_size": "0.0", "eval_strategy": "'no'", "load_best_model_at_end": "false"}, "TRA423"),
    "no checkpoint before the end": ({"save_steps": "1000000"}, "TRA424"),
    "turns of another model": ({"template": "llama3"}, "TRA605"),
    "empty thoughts before each answer": ({"enable_thinking": "true"}, "TRA618"),
}


@cache
def codes(name: str, *settings: tuple[str, str]) -> frozenset[str]:
    """What `check` finds in a recipe with other settings."""
    text = (RECIPES / f"{name}.yaml").read_text("utf-8")
    for key, value in settings:
        text, replaced = re.subn(rf"(?m)^{key}:.*$", f"{key}: {value}", text)
        text += "" if replaced else f"{key}: {value}\n"
    return frozenset(each.code for each in checking.check_document(parse_recipe("recipes/x.yaml", text)).diagnostics)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("what", RUINOUS)
def test_what_ruins_a_run_is_told(what: str, name: str) -> None:
    settings, code = RUINOUS[what]
    assert code in codes(name, *settings.items()) - codes(name)
