"""Which releases can load a model type."""

from __future__ import annotations

import pytest

from validator.knowledge import model_classes
from validator.knowledge.tables import yaml_table

# Looked up by hand: the first release whose wheel has the folder transformers/models/<type>.
FIRST = """
    gemma 4.38.0, phi3 4.41.0, gemma2 4.42.0, mllama 4.45.0, qwen2_vl 4.45.0, glm 4.46.0, olmo2 4.47.0,
    qwen2_5_vl 4.49.0, gemma3 4.50.0, mistral3 4.50.0, qwen3 4.51.0, llama4 4.51.0, deepseek_v3 4.51.0, glm4 4.51.3,
    qwen2_5_omni 4.52.0, internvl 4.52.0, glm4v 4.53.0, smollm3 4.53.0, falcon_h1 4.53.0, ernie4_5 4.54.0,
    deepseek_v2 4.54.0, gpt_oss 4.55.0, seed_oss 4.56.0, hunyuan_v1_dense 4.56.0, qwen3_vl 4.57.0, qwen3_next 4.57.0,
    ministral3 5.0.0, minimax_m2 5.0.0, glm_ocr 5.1.0, youtu 5.1.0, qwen3_5 5.2.0, gemma4 5.5.0, hy_v3 5.6.0
"""


@pytest.mark.parametrize(("kind", "first"), [pair.split() for pair in FIRST.split(",")])
def test_first_release_of_a_type(kind: str, first: str) -> None:
    assert model_classes.first_release([kind]) == first


@pytest.mark.parametrize(
    ("kinds", "pair", "loadable"),
    [
        (["qwen3_5"], ("0.9.5", "5.1.0"), False),
        (["qwen3_5"], ("0.9.5", "5.2.0"), True),
        (["qwen3_5"], ("0.9.5", "5.2.0.dev0"), True),
        (["glm4"], ("0.9.3", "4.51.2"), False),
        (["qwen3_vl"], ("0.9.4", "4.57.0"), True),  # which the index has no more
        (["mistral3", "mistral"], ("0.9.4", "4.57.1"), True),
        (["mistral3", "ministral3"], ("0.9.4", "4.57.1"), False),
        (["pixtral"], ("0.9.5", "5.5.0"), True),
        (["pixtral"], ("0.9.5", "5.6.0"), False),  # known, but a tower alone
        (["transfo-xl"], ("0.9.5", "4.57.1"), True),
        (["transfo-xl"], ("0.9.5", "5.0.0"), False),
        (["video_llava"], ("0.9.4", "4.57.1"), True),
        (["video_llava"], ("0.9.5", "4.57.1"), False),
        (["granitevision"], ("0.9.5", "4.57.1"), True),  # has the configuration of llava_next
        (["bert"], ("0.9.5", "4.36.0"), True),  # older than the table, which has it from the start
        (["nobody_knows"], ("0.9.5", "5.24.0"), False),
        (["nobody_knows"], ("0.9.5", "5.25.0"), True),  # later than the table
    ],
)
def test_loadable(kinds: list[str], pair: tuple[str, str], loadable: bool) -> None:
    assert model_classes.is_loadable(kinds, pair) == loadable


def test_the_newest_releases_load_all_models_but_those_with_code_of_their_own() -> None:
    models = yaml_table("models")
    kinds = {str(entry["config"]["model_type"]) for entry in models.values() if not entry.get("remote_code")}
    assert not [kind for kind in kinds if not model_classes.is_loadable([kind], ("0.9.5", "5.6.0"))]
