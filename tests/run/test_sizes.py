"""Up to which size a model that is not known may be."""

from __future__ import annotations

import pytest

from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import resolve
from validator.run.variants import model_sizes_that_fit

RECIPE = "model_name_or_path: someone/model\nbf16: true\nfinetuning_type: full\ncutoff_len: 1024\n"


@pytest.mark.parametrize(
    ("template", "machine", "largest", "beyond"),
    [
        ("llama3", "8xa100-80g", "llama-3.2-3b", "llama-3-8b"), ("qwen3", "8xa100-80g", "qwen3-1.7b", "qwen3-4b"),
        # the same models are trained with and without thinking
        ("qwen3_nothink", "8xa100-80g", "qwen3-1.7b", "qwen3-4b"), ("gemma", "8xh200-141g", "gemma-2b", "gemma-7b"),
        ("qwen2_vl", "1xt4-16g", None, "qwen2-vl-2b"), ("glm4", "1xt4-16g", None, "glm-4-9b"),
    ],
)  # fmt: skip
def test_sizes(template: str, machine: str, largest: str | None, beyond: str | None) -> None:
    there = model_sizes_that_fit(resolve(parse_recipe("-", f"{RECIPE}template: {template}\n"), machine, 1024))
    assert there is not None
    assert tuple(one and one.id for one in there) == (largest, beyond)


@pytest.mark.parametrize(
    "more", ["", "template: default\n", "template: 3\n", "template: qwen\ndo_train: false\ndo_predict: true\n"]
)
def test_nothing_to_tell(more: str) -> None:
    assert model_sizes_that_fit(resolve(parse_recipe("-", RECIPE + more), "8xa100-80g", 1024)) is None
