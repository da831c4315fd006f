"""Tokens of images: as LLaMA-Factory's plugins and the image processors of transformers make them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from validator.knowledge import tables
from validator.rows.image_header import ImageSize
from validator.run.image_tokens import ImageCounter, image_counter
from validator.run.settings import run_of_values
from validator.run.workspace import Workspace

SIZES = [(640, 480), (480, 640), (28, 28), (1, 1), (1000, 37), (37, 1000), (3000, 1000), (768, 768), (769, 767),
         (2000, 3), (3, 900), (1920, 1080), (500, 333), (336, 672), (100, 99)]  # fmt: skip
COUNTED = {
    ("Qwen/Qwen2-VL-7B-Instruct", "qwen2_vl"): [(640, 480, 393), (28, 28, 6), (3000, 1000, 770)],
    ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_vl"): [(640, 480, 393), (2000, 3, 73)],
    ("Qwen/Qwen3-VL-8B-Instruct", "qwen3_vl_nothink"): [(640, 480, 302), (28, 28, 66), (1920, 1080, 578)],
    ("google/gemma-3-4b-it", "gemma3"): [(640, 480, 260), (28, 28, 260)],
    ("OpenGVLab/InternVL3-8B-hf", "intern_vl"): [(640, 480, 258), (3000, 1000, 258)],
    ("llava-hf/llava-1.5-7b-hf", "llava"): [(640, 480, 576), (28, 28, 576)],
    ("llava-hf/llava-v1.6-mistral-7b-hf", "llava_next_mistral"): [(640, 480, 2340), (336, 672, 1776)],
    ("mistral-community/pixtral-12b", "pixtral"): [(640, 480, 1230), (28, 28, 6)],
    ("google/paligemma-3b-pt-224", "paligemma"): [(640, 480, 256)],
    ("moonshotai/Kimi-VL-A3B-Instruct", "kimi_vl"): [(640, 480, 418), (28, 28, 8)],
    ("openbmb/MiniCPM-V-2_6", "minicpm_v"): [(640, 480, 201), (28, 28, 69)],
}  # fmt: skip


def counter(values: dict[str, Any], folder: Path = Path()) -> ImageCounter:
    found, why = image_counter(run_of_values(values, workspace=Workspace("recipe.yaml", (folder,))))
    assert found, why
    return found


@pytest.mark.parametrize(("model", "counts"), list(COUNTED.items()))
def test_tokens_of_published_models(model: tuple[str, str], counts: list[tuple[int, int, int]]) -> None:
    by = counter({"model_name_or_path": model[0], "template": model[1]})
    assert [(*size, by.count(ImageSize(*size)).sequence) for *size, _ in counts] == counts  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({}, 258),
        ({"crop_to_patches": True}, 258 + 3 * 256),  # three tiles and the whole
        ({"image_max_pixels": 4_000_000, "crop_to_patches": True}, 258 + 12 * 256),
    ],
)
def test_keys_of_the_recipe_count(keys: dict[str, Any], tokens: int) -> None:
    by = counter({"model_name_or_path": "OpenGVLab/InternVL3-8B-hf", "template": "intern_vl", **keys})
    assert by.count(ImageSize(3000, 1000)).sequence == tokens  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("file", "content", "tokens"),
    [
        ("preprocessor_config.json", {"min_pixels": 50176}, 66),
        ("preprocessor_config.json", {"size": {"shortest_edge": 50176, "longest_edge": 60000}}, 66),
        ("processor_config.json", {"image_processor": {"size": {"shortest_edge": 50176}}}, 66),
        ("preprocessor_config.json", {"min_pixels": "many", "size": 7}, 6),
        ("preprocessor_config.json", [], 6),
    ],
)
def test_the_models_own_file_goes_first(file: str, content: Any, tokens: int, tmp_path: Path) -> None:
    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 1, "mlp_ratio": 4, "in_chans": 3,
              "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}  # fmt: skip
    config = {"model_type": "qwen2_vl", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 99,
              "vision_config": vision}  # fmt: skip
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config), "utf-8")
    (tmp_path / "mine" / file).write_text(json.dumps(content), "utf-8")
    by = counter({"model_name_or_path": str(tmp_path / "mine"), "template": "qwen2_vl"}, tmp_path)
    assert by.count(ImageSize(28, 28)).sequence == tokens  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "template", "why"),
    [
        ("Qwen/Qwen3-8B", "qwen3", "reads no images"),
        ("somebody/unheard-of", "qwen2_vl", "the model is not known"),
        ("Kwai-Keye/Keye-VL-8B-Preview", "keye_vl", "how the processor of Keye resizes images is not known"),
        ("Qwen/Qwen2-VL-7B-Instruct", "llava", "template llava is not one for qwen2_vl"),
    ],
)
def test_what_is_not_counted_says_why(model: str, template: str, why: str) -> None:
    found, reason = image_counter(run_of_values({"model_name_or_path": model, "template": template}))
    assert found is None
    assert why in reason


def test_a_picture_that_no_processor_takes_has_no_tokens() -> None:
    by = counter({"model_name_or_path": "Qwen/Qwen2-VL-7B-Instruct", "template": "qwen2_vl"})
    assert by.count(ImageSize(1, 5_000_000)) is None
    assert by.largest.sequence == 786  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "template"), [("Qwen/Qwen3-VL-8B-Instruct", "qwen3_vl"), ("OpenGVLab/InternVL3-8B-hf", "intern_vl")]
)
def test_no_picture_of_a_usual_shape_has_more_tokens_than_the_largest(model: str, template: str) -> None:
    by = counter({"model_name_or_path": model, "template": template, "image_max_pixels": 1048576})
    shapes = [ImageSize(1600 + 37 * i, 1600 + 31 * j) for i in range(0, 40, 3) for j in range(40)]
    assert by.largest is not None
    assert all(found and found.sequence <= by.largest.sequence for found in map(by.count, shapes))


class Case(NamedTuple):
    """A model type with a plugin of LLaMA-Factory, the shape of its tower, its processor in transformers, and what the
    tests must give the processor around it."""

    kind: str
    plugin: str
    facts: dict[str, Any]
    processor: Callable[[], Any]
    extra: Mapping[str, Any] = MappingProxyType({})
    crop: bool = False


def built(module: str, name: str, **values: Any) -> Callable[[], Any]:
    """Return a function that makes an image processor of transformers, of those that need no torchvision."""

    def make() -> Any:
        from importlib import import_module

        where = f"transformers.models.{module}.image_processing_pil_{module}"
        return getattr(import_module(where), f"{name}ImageProcessorPil")(**values)

    return make


FOURTEEN = {"patch": 14, "merge": 2, "frames": 2, "whole": 0}
SQUARE = {"size": {"height": 336, "width": 336}}
CLIP = {"patch": 14, "merge": 1, "frames": 1, "whole": 577}
STRATEGY = {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
GLM = {"size": {"shortest_edge": 12544, "longest_edge": 9633792}}
MARKS = {"boi_token": "@", "eoi_token": "@", "boa_token": "", "eoa_token": "", "image_token": "@", "video_token": "",
         "audio_token": ""}  # fmt: skip
CASES = [
    Case("qwen2_vl", "qwen2_vl", FOURTEEN,
         built("qwen2_vl", "Qwen2VL", size={"shortest_edge": 3136, "longest_edge": 12845056})),
    Case("qwen3_vl", "qwen3_vl", {**FOURTEEN, "patch": 16},
         built("qwen2_vl", "Qwen2VL", size={"shortest_edge": 65536, "longest_edge": 16777216}, patch_size=16)),
    Case("glm4v", "glm4v", FOURTEEN, built("glm4v", "Glm4v", **GLM)),
    Case("glm_ocr", "glm4v", FOURTEEN, built("glm46v", "Glm46V", **GLM)),
    Case("ernie4_5_vl_moe", "ernie_vl", {**FOURTEEN, "frames": 1}, built("ernie4_5_vl_moe", "Ernie4_5_VLMoe")),
    Case("internvl", "intern_vl", {**FOURTEEN, "whole": 1025},
         built("got_ocr2", "GotOcr2", size={"height": 448, "width": 448}), {"image_seq_length": 256}),
    Case("internvl", "intern_vl", {**FOURTEEN, "whole": 1025},
         built("got_ocr2", "GotOcr2", size={"height": 448, "width": 448}), {"image_seq_length": 256}, crop=True),
    Case("llava", "llava", CLIP,
         built("clip", "CLIP", size={"shortest_edge": 336}, crop_size=SQUARE["size"]), STRATEGY),
    Case("llava_next", "llava_next", CLIP,
         built("llava_next", "LlavaNext", size={"shortest_edge": 336}, crop_size=SQUARE["size"]), STRATEGY),
    Case("gemma3", "gemma3", {"patch": 14, "merge": 4, "frames": 1, "whole": 4096},
         built("gemma3", "Gemma3", size={"height": 896, "width": 896}),
         {"boi_token": "", "full_image_sequence": "@" * 260}),
    Case("gemma4", "gemma4", {"patch": 16, "merge": 3, "frames": 1, "whole": 2520}, built("gemma4", "Gemma4"), MARKS),
    Case("mistral3", "pixtral", FOURTEEN,
         built("pixtral", "Pixtral", size={"longest_edge": 1540}, patch_size={"height": 14, "width": 14}),
         {"patch_size": 14, "spatial_merge_size": 2, "image_break_token": "@", "image_end_token": "@"}),
    Case("llava", "pixtral", {**FOURTEEN, "patch": 16}, built("pixtral", "Pixtral"),
         {"patch_size": 16, "image_break_token": "@", "image_end_token": "@"}),
]  # fmt: skip
# What stands around an image in the text that a plugin makes, each one token; the words of ERNIE's are counted as four.
WRAPPERS = ("<|vision_start|>", "<|vision_end|>", "<|begin_of_image|>", "<|end_of_image|>", "<img>", "</img>",
            "<IMG_CONTEXT>", "<|IMAGE_START|>", "<|IMAGE_END|>")  # fmt: skip


def real_tokens(case: Case, size: tuple[int, int], pixels: int) -> int | None:
    """The tokens that LLaMA-Factory's plugin writes for one blank image; None if plugin or processor refuse it."""
    from llamafactory.data.mm_plugin import get_mm_plugin
    from PIL import Image
    from transformers import LlavaNextProcessor

    image_processor = case.processor()
    limits = {"image_max_pixels": pixels, "image_min_pixels": 32 * 32, "crop_to_patches": case.crop,
              "image_do_pan_and_scan": False}  # fmt: skip
    processor: Any = SimpleNamespace(image_processor=image_processor, video_processor=image_processor,
                                     feature_extractor=None, **limits, **case.extra)  # fmt: skip
    if case.plugin == "llava_next":
        for name in ("_get_number_of_features", "_get_unpadded_features"):
            setattr(processor, name, getattr(LlavaNextProcessor, name).__get__(processor))
    films = {} if case.plugin in ("gemma3", "llava", "llava_next", "pixtral") else {"video_token": "<V>"}
    plugin = get_mm_plugin(case.plugin, image_token="@", **films)
    turns = [{"role": "user", "content": "<image>"}]
    try:
        text = plugin.process_messages(turns, [Image.new("RGB", size)], [], [], processor)[0]["content"]
    except (ValueError, IndexError):
        return None
    words = 4 if case.plugin == "ernie_vl" else 0
    return words + sum(int(text.count(each)) for each in ("@", *WRAPPERS))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "pixels"),
    [*((case, 768 * 768) for case in CASES), (CASES[0], 200_000), (CASES[6], 2_000_000)],
    ids=lambda value: f"{value.kind}-{value.plugin}{'-crop' * value.crop}" if isinstance(value, Case) else None,
)
def test_tokens_are_those_of_the_real_plugins_and_processors(case: Case, pixels: int) -> None:
    table = tables.yaml_table("image_processors")
    row = table["processors"].get(f"{case.kind}/{case.plugin}") or table["processors"][case.kind]
    crop = {"crop_to_patches": True, "min_patches": 1, "max_patches": 12} if case.crop else {}
    facts = {**case.facts, "pan_and_scan": False, **row, **crop}
    by = ImageCounter(table["plugins"][case.plugin], facts, pixels, 32 * 32)
    found = {size: by.count(ImageSize(*size)) for size in SIZES}
    assert {size: tokens and tokens.sequence for size, tokens in found.items()} == {
        size: real_tokens(case, size, pixels) for size in SIZES
    }
