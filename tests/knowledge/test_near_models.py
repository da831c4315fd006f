"""Models near a name that is not known: those of its family, and never a near spelling of another family."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.knowledge import models, unknown_models
from validator.knowledge.near_models import near_models

FAMILIES = [
    ("qwen", ["qwen3.6-27b", "qwen3.6-35b-a3b", "qwen3.5-0.8b"]),
    ("qwen3", ["qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b"]),
    ("Qwen/Qwen3", ["qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b"]),
    ("qwen2.5", ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b"]),
    ("qwen3-vl", ["qwen3-vl-2b", "qwen3-vl-4b", "qwen3-vl-8b"]),
    ("qwen-vl", ["qwen3-vl-2b", "qwen3-vl-4b"]),
    ("qwen2.5-coder", ["Qwen/Qwen2.5-Coder-0.5B-Instruct", "Qwen/Qwen2.5-Coder-1.5B-Instruct"]),
    ("llama", ["llama4-scout", "llama4-maverick", "llama3.3-70b"]),
    ("llama3", ["llama3-8b", "llama3-70b", "llama3.3-70b", "llama3.2-1b"]),
    ("meta-llama/Meta-Llama-3", ["llama3-8b", "llama3-70b", "llama3.3-70b"]),
    ("llama-vision", ["llama3.2-vision-11b", "llama3.2-vision-90b"]),
    ("gemma-3", ["gemma-3-270m", "gemma3-1b", "gemma3-4b"]),
    ("gemma-27b", ["gemma3-27b", "gemma2-27b"]),
    ("qwen3-8b-vl", ["qwen3-vl-8b"]),
    ("mixtral", ["mixtral-8x22b", "mixtral8x7b"]),
]
# A name with words that no model has, the beginning that some have, and the nearest of these.
OTHERS = [
    ("qwen3-8b-chat", "qwen3-8b", ["qwen3-8b"]),
    ("Qwen/Qwen3-8b-instruct", "Qwen3-8b", ["qwen3-8b"]),
    ("someone/Llama-3.1-8B-Legal", "Llama-3.1-8B", ["llama3.1-8b"]),
    ("qwen3-7b", "qwen3", ["qwen3-8b", "qwen3-4b", "qwen3-14b"]),
    ("qwen3-70b", "qwen3", ["qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b"]),
    ("llama3-13b", "llama3", ["llama3-8b"]),
    ("qwen4-8b", "qwen", ["qwen3-8b"]),
    ("deepseek-v4", "deepseek-v", ["deepseek-v3"]),
    ("gpt-4o", "gpt", ["gpt-oss-20b", "gpt-oss-120b"]),
]


@pytest.mark.parametrize(("name", "first"), FAMILIES, ids=[name for name, _ in FAMILIES])
def test_a_family_has_its_newest_models_first(name: str, first: list[str]) -> None:
    near = near_models(name)
    assert near is not None
    assert near.is_family
    assert near.names[: len(first)] == first
    assert len(set(near.names)) == len(near.names)
    assert all(models.find_known_model(each) for each in near.names)


@pytest.mark.parametrize(("name", "beginning", "first"), OTHERS, ids=[name for name, _, _ in OTHERS])
def test_another_size_or_suffix_has_the_nearest_models_first(name: str, beginning: str, first: list[str]) -> None:
    near = near_models(name)
    assert near is not None
    assert not near.is_family
    assert (near.beginning, near.names[: len(first)]) == (beginning, first)


@pytest.mark.parametrize("name", ["", " ", "/", "8b", "3", "Qwen/Whatever-9B", "my-model", "中文", "\0", "x" * 5000])
def test_other_names_have_no_near_model(name: str) -> None:
    assert near_models(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen3", "`qwen3` is not known; it is a family of models: `qwen3-0.6b`"),
        ("qwen", "and 5[0-9] more \\(docs/reference/models.md\\)"),
        ("qwen8b", "did you mean `qwen3-8b`, `qwen3-vl-8b`?"),
        ("qwen3-70b", "known of `qwen3` are `qwen3-32b`, "),
        ("qwne3-8b", "did you mean `qwen3-8b`?"),
        ("kimi-k2", "known of `kimi` is `kimi-vl-a3b`; any other model"),
        ("deepseek-r1-32b", "did you mean `deepseek-r1-distill-qwen-32b`?"),
        ("llama3:8b", "did you mean `llama3-8b`?"),
        ("Qwen3_8B/", "did you mean `qwen3-8b`?"),
        ("https://huggingface.co/Qwen/Qwen3-8B/tree/main", "is a link; name it by `Qwen/Qwen3-8B`"),
        ("https://modelscope.cn/models/Qwen/Qwen3-8B", "is a link; name it by `Qwen/Qwen3-8B`"),
        ("gwen7b", "did you mean `qwen7b`?"),
        ("someone/new-1b", "docs/reference/models.md lists the known ones; any other model is named by a folder"),
        ("my-modell", "did you mean `./my-model`?"),
        ("./my-modell", "no folder with a config.json; did you mean `./my-model`?"),
        ("./other", "no folder with a config.json$"),
        ("unsloth/Qwen3-8B-GGUF", "llama.cpp's format"),
    ],
)
def test_a_name_of_the_command_line(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=said) as refused:
        models.find_model_by_any_name(name)
    assert not any(each in str(refused.value) for each in ("base:", "check --base", "header block"))


def test_a_recipe_is_told_hub_names_of_a_family() -> None:
    said = unknown_models.unknown_model_message("qwen3")
    assert "it is a family of models, such as `Qwen/Qwen3-0.6B`" in said
    assert "qwen3b" not in said
