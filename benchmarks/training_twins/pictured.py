"""Tiny models that see or hear, of the recipes' own classes, with real processors, and small data sets of made pictures
and sounds. Nothing is downloaded: a processor is its class's defaults, resized to the tiny towers."""

from __future__ import annotations

import json
import math
import wave
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy
import torch
import transformers
from PIL import Image
from training_twins.shrunk import ROOT, SMALL, SPARE, small
from transformers import CONFIG_MAPPING, PreTrainedTokenizerFast

SIDE = 56  # pixels of a picture, which is four by four patches
RATE = 16000  # of sound, in hertz
TOWER: Mapping[str, Any] = {
    "hidden_size": 32, "embed_dim": 32, "intermediate_size": 128, "depth": 2, "num_hidden_layers": 2, "num_heads": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "attention_heads": 2, "head_dim": 16, "out_hidden_size": 64,
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "output_dim": 64,
    "image_size": SIDE, "deepstack_visual_indexes": [0], "fullatt_block_indexes": [1], "num_position_embeddings": 64,
    "num_global_layers": 1, "vision_output_dim": 96, "intermediate_layers_indices": [0, 1], "projection_dim": 64,
    "downsample_hidden_size": 16, "projector_input_dim": 96, "projector_output_dim": 96, "output_proj_dims": 64,
}  # fmt: skip
QWEN = {
    "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}  # fmt: skip
GLM = {
    "image_token_id": "<|image|>", "video_token_id": "<|video|>", "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>", "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}  # fmt: skip
_TURNS = {"rope_type": "default", "rope_theta": 1e6}
# What goes with the sizes in the language part, by its type: how many pairs of a head turn with time, height and width,
# and layers of each kind of attention, of which the last two share the keys and values of the first two.
FITTED: Mapping[str, Mapping[str, Any]] = {
    "qwen2_vl_text": {"rope_parameters": {**_TURNS, "mrope_section": [2, 3, 3]}},
    "qwen2_5_vl_text": {"rope_parameters": {**_TURNS, "mrope_section": [2, 3, 3]}},
    "qwen2_5_omni_text": {"rope_parameters": {**_TURNS, "mrope_section": [2, 3, 3]}},
    "glm4v_text": {"rope_parameters": {**_TURNS, "mrope_section": [2, 3, 3]}},
    "glm4v_moe_text": {"rope_parameters": {**_TURNS, "mrope_section": [1, 1, 2]}},
    "gemma4_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
}


class Sight(NamedTuple):
    """How a model type sees: its processor, the parts of that by class with settings, the tokens that it puts in, by
    the field of config.json that names them, those that the tokenizer knows by an attribute, and further settings."""

    processor: str
    parts: Mapping[str, tuple[str, Mapping[str, Any]]]
    ids: Mapping[str, str]
    named: Mapping[str, str] = {}
    config: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}


_SIZE = {"height": SIDE, "width": SIDE}
_GRID = {"image_grid_pinpoints": [[SIDE, 2 * SIDE], [2 * SIDE, SIDE]]}
_CROPPED = {"size": {"shortest_edge": SIDE}, "crop_size": _SIZE}
_PIXELS = {"size": {"shortest_edge": SIDE * SIDE, "longest_edge": SIDE * SIDE}}
_QWEN_PARTS = {"image_processor": ("Qwen2VLImageProcessor", _PIXELS)}
_QWEN3_PARTS = {"image_processor": ("Qwen2VLImageProcessor", {**_PIXELS, "patch_size": 16})}
_GLM_PARTS = {"image_processor": ("Glm4vImageProcessor", _PIXELS)}
_LLAVA = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
_PIXTRAL = {"image_processor": ("PixtralImageProcessor", {"size": {"longest_edge": SIDE}, "patch_size": 14})}
_PIXTRAL_IDS = {"image_token_index": "[IMG]", "": "[IMG_BREAK] [IMG_END]"}
_SOUND = {"feature_extractor": ("WhisperFeatureExtractor", {"feature_size": 128})}
_OMNI = {
    "image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>", "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip
SIGHTS: Mapping[str, Sight] = {
    "qwen2_vl": Sight("Qwen2VLProcessor", _QWEN_PARTS, QWEN),
    "qwen2_5_vl": Sight("Qwen2_5_VLProcessor", _QWEN_PARTS, QWEN),
    "qwen3_vl": Sight("Qwen3VLProcessor", _QWEN3_PARTS, QWEN),
    "qwen3_vl_moe": Sight("Qwen3VLProcessor", _QWEN3_PARTS, QWEN),
    "qwen3_5": Sight("Qwen3VLProcessor", _QWEN3_PARTS, QWEN),
    "qwen3_5_moe": Sight("Qwen3VLProcessor", _QWEN3_PARTS, QWEN),
    "glm4v": Sight("Glm4vProcessor", _GLM_PARTS, GLM),
    "glm4v_moe": Sight("Glm4vProcessor", _GLM_PARTS, GLM),
    "internvl": Sight(
        "InternVLProcessor",
        {"image_processor": ("GotOcr2ImageProcessor", {"size": _SIZE, "crop_to_patches": True})},
        {"image_token_id": "<IMG_CONTEXT>"},
        {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
         "video_token": "<video>"},
        settings={"image_seq_length": 4},
    ),
    "llava": Sight(
        "LlavaProcessor",
        {"image_processor": ("CLIPImageProcessor", _CROPPED)},
        {"image_token_index": "<image>"},
        settings=_LLAVA,
    ),
    "llava_next": Sight(
        "LlavaNextProcessor",
        {"image_processor": ("LlavaNextImageProcessor", {**_CROPPED, **_GRID})},
        {"image_token_index": "<image>"},
        config=_GRID,
        settings=_LLAVA,
    ),
    "gemma3": Sight(
        "Gemma3Processor",
        {"image_processor": ("Gemma3ImageProcessor", {"size": _SIZE, "image_seq_length": 4})},
        {"image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>",
         "eoi_token_index": "<end_of_image>"},
        {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        {"mm_tokens_per_image": 4},
        {"image_seq_length": 4},
    ),
    "gemma4": Sight(
        "Gemma4Processor",
        {"image_processor": ("Gemma4ImageProcessor", {"max_soft_tokens": 70}),
         "feature_extractor": ("Gemma4AudioFeatureExtractor", {})},
        {"image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>",
         "audio_token_id": "<|audio|>", "boa_token_id": "<|audio>", "eoa_token_index": "<audio|>",
         "video_token_id": "<|video|>"},
        {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>",
         "boa_token": "<|audio>", "eoa_token": "<audio|>"},
    ),
    "llama4": Sight(
        "Llama4Processor",
        {"image_processor": ("GotOcr2ImageProcessor", {"size": _SIZE, "image_processor_type": "Llama4ImageProcessor"})},
        {"image_token_index": "<|patch|>", "boi_token_index": "<|image_start|>", "eoi_token_index": "<|image_end|>",
         "": "<|image|> <|tile_x_separator|> <|tile_y_separator|>"},
        settings={"patch_size": 14},
    ),
    "paligemma": Sight(
        "PaliGemmaProcessor",
        {"image_processor": ("SiglipImageProcessor", {"size": _SIZE, "image_seq_length": 16})},
        {"image_token_index": "<image>"},
        {"image_token": "<image>"},
        {"projection_dim": SMALL["hidden_size"]},
    ),
    "mllama": Sight(
        "MllamaProcessor",
        {"image_processor": ("MllamaImageProcessor", {"size": _SIZE, "max_image_tiles": 4})},
        {"image_token_index": "<|image|>", "": "<|python_tag|>"},
    ),
    "pixtral": Sight("PixtralProcessor", _PIXTRAL, _PIXTRAL_IDS, settings={"patch_size": 14}),
    "mistral3": Sight(
        "PixtralProcessor", _PIXTRAL, _PIXTRAL_IDS, settings={"patch_size": 14, "spatial_merge_size": 2}
    ),
    "qwen2_audio": Sight("Qwen2AudioProcessor", _SOUND, {"audio_token_index": "<|AUDIO|>",
                                                         "": "<|audio_bos|> <|audio_eos|>"}),
    "qwen2_5_omni": Sight(
        "Qwen2_5OmniProcessor",
        {**_QWEN_PARTS, **_SOUND},
        {"image_token_id": "<|IMAGE|>", "image_token_index": "<|IMAGE|>", "video_token_id": "<|VIDEO|>",
         "video_token_index": "<|VIDEO|>", "audio_token_id": "<|AUDIO|>", "audio_token_index": "<|AUDIO|>",
         "vision_start_token_id": "<|vision_bos|>", "vision_end_token_id": "<|vision_eos|>",
         "audio_start_token_id": "<|audio_bos|>", "audio_end_token_id": "<|audio_eos|>"},
        _OMNI,
    ),
}  # fmt: skip


def sight(config: Mapping[str, Any]) -> str | None:
    """By which entry of the table a published config.json sees; None for a model of text alone."""
    if config.get("vision_config", {}).get("model_type") == "pixtral" and config["model_type"] == "llava":
        return "pixtral"
    return str(config["model_type"]) if config["model_type"] in SIGHTS else None


def model(published: Mapping[str, Any], target: Path) -> None:
    """Write a model of the published configuration's class, in bf16, with a tokenizer and a processor."""
    seen = SIGHTS[sight(published) or ""]
    tokenizer = _tokenizer(seen)
    shrunk = _config(published, seen, tokenizer)
    torch.manual_seed(0)
    config = CONFIG_MAPPING[published["model_type"]](**shrunk)
    _class(config).from_config(config).to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
    if "thinker_config" in published:
        torch.save({}, target / "spk_dict.pt")  # voices of the talker, without which the class does not load
    _processor(seen, target)


def _tokenizer(seen: Sight) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        ROOT / "demo" / "tiny-qwen3", extra_special_tokens=dict(seen.named)
    )
    tokens = [token for words in seen.ids.values() for token in words.split()] + list(seen.named.values())
    tokenizer.add_tokens(list(dict.fromkeys(tokens)), special_tokens=True)
    return tokenizer


def _config(published: Mapping[str, Any], seen: Sight, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The published configuration with small parts and the tokenizer's numbers."""
    ids = {field: tokenizer.convert_tokens_to_ids(token) for field, token in seen.ids.items() if field}
    ends = {
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    inside = published.get("thinker_config", published)
    parts = {name: _tower(part) for name, part in inside.items() if name in ("vision_config", "audio_config")}
    spoken = _text(inside["text_config"])
    rows = {name: len(tokenizer) + SPARE for name in ("vocab_size", "vocab_size_per_layer_input") if name in spoken}
    text = {**spoken, **ends, **rows}
    plain = {name: value for name, value in inside.items() if not isinstance(value, dict) and name != "model_type"}
    whole = {**plain, **parts, **seen.config, **ids, "text_config": text}
    return {"thinker_config": whole, "enable_audio_output": False} if "thinker_config" in published else whole


def _text(published: Mapping[str, Any]) -> dict[str, Any]:
    kind = published["model_type"]
    return {**small(published), **FITTED.get(kind, {}), "model_type": kind}


def _tower(published: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: TOWER.get(key, value) for key, value in published.items()}
    if "embed_dim" in published:  # Qwen2-VL, whose hidden_size is the language part's
        kept["hidden_size"] = SMALL["hidden_size"]
    return {**kept, "image_size": [SIDE, SIDE]} if isinstance(published.get("image_size"), list) else kept


def _class(config: Any) -> Any:
    """The class that LLaMA-Factory loads (model/loader.py:load_model)."""
    order = ("AutoModelForImageTextToText", "AutoModelForSeq2SeqLM", "AutoModelForTextToWaveform")
    return next(auto for name in order if type(config) in (auto := getattr(transformers, name))._model_mapping)


def _processor(seen: Sight, target: Path) -> None:
    """Write what makes a processor of the folder, as published ones do: all its parts in preprocessor_config.json."""
    told: dict[str, Any] = {"processor_class": seen.processor}
    for kind, settings in seen.parts.values():
        told |= {**json.loads(getattr(transformers, kind)(**settings).to_json_string()), **settings}
    (target / "preprocessor_config.json").write_text(json.dumps(told), "utf-8")
    whole = {"processor_class": seen.processor, **seen.settings}
    (target / "processor_config.json").write_text(json.dumps(whole), "utf-8")


def data(target: Path) -> None:
    """Write a picture and a sound for each of the rows of every set, and say so in the registry."""
    place = target / "dataset_info.json"
    registry = json.loads(place.read_text("utf-8"))
    for number in range(4):
        _picture(number).save(target / f"{number}.png")
        _sound(number, target / f"{number}.wav")
    for part, mark, suffix in (("images", "<image>", "png"), ("audios", "<audio>", "wav")):
        for name in ("sft", "dpo"):
            rows = json.loads((target / f"{name}.json").read_text("utf-8"))
            held = [{**row, "instruction": f"{mark}{row['instruction']}", part: [f"{number % 4}.{suffix}"]}
                    for number, row in enumerate(rows)]  # fmt: skip
            (target / f"{name}_{part}.json").write_text(json.dumps(held, ensure_ascii=False), "utf-8")
            usual = {"prompt": "instruction", "query": "input", "response": "output"}
            columns = {**registry[name].get("columns", usual), part: part}
            registry[f"{name}_{part}"] = {**registry[name], "file_name": f"{name}_{part}.json", "columns": columns}
    place.write_text(json.dumps(registry), "utf-8")


def _picture(number: int) -> Image.Image:
    """A ramp of colours, of another direction for each number."""
    across, down = numpy.meshgrid(numpy.arange(80), numpy.arange(60))
    layers = [(across * (number + 1) * 3 + down * step) % 256 for step in (1, 2, 3)]
    return Image.fromarray(numpy.stack(layers, axis=-1).astype(numpy.uint8))


def _sound(number: int, file: Path) -> None:
    """A tenth of a second of one tone."""
    tone = [int(8000 * math.sin(2 * math.pi * 220 * (number + 1) * step / RATE)) for step in range(RATE // 10)]
    with wave.open(str(file), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(RATE)
        stream.writeframes(numpy.array(tone, dtype="<i2").tobytes())


def _read(file: str) -> tuple[torch.Tensor, int]:
    with wave.open(file, "rb") as stream:
        held = numpy.frombuffer(stream.readframes(stream.getnframes()), dtype="<i2")
        return torch.tensor(held / 32768.0, dtype=torch.float32).unsqueeze(0), stream.getframerate()


@contextmanager
def senses() -> Iterator[None]:
    """Where torchvision and torchaudio are missing, what stands in for what a twin needs of them: films, which it has
    not, are a matter for the processor of pictures, two classes that need torchvision have a namesake here, and a wave
    file is read by Python's own library."""
    from transformers import Llama4Config, processing_utils
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    with ExitStack() as stack:
        if find_spec("torchvision") is None:
            stack.enter_context(patch.dict(processing_utils.MODALITY_TO_BASE_CLASS_MAPPING,
                                           {"video_processor": "ImageProcessingMixin"}))  # fmt: skip
            stack.enter_context(patch.object(processing_utils, "MODALITY_TO_AUTOPROCESSOR_MAPPING", _Pictures()))
            stack.enter_context(patch.dict(IMAGE_PROCESSOR_MAPPING._extra_content,
                                           {Llama4Config: {"pil": Llama4ImageProcessor}}))  # fmt: skip
            stack.enter_context(patch("transformers.models.pixtral.PixtralProcessor", PixtralProcessor))
        stack.enter_context(patch("torchaudio.load", _read, create=True))
        yield


class Llama4ImageProcessor(transformers.GotOcr2ImageProcessorPil):
    """Of the pictures of Llama 4, each of which is one tile."""

    def preprocess(self, images: Any, **settings: Any) -> Any:
        seen = super().preprocess(images, **settings)
        return type(seen)({"pixel_values": seen["pixel_values"], "aspect_ratios": [[1, 1]] * len(seen["pixel_values"])})


class PixtralProcessor(transformers.ProcessorMixin):
    """What LLaMA-Factory asks for: how many patches become one token, and which tokens end a row and a picture."""

    def __init__(
        self, image_processor: Any, tokenizer: Any, patch_size: int, spatial_merge_size: int = 1, **settings: Any
    ) -> None:
        super().__init__(image_processor, tokenizer, **settings)
        self.patch_size, self.spatial_merge_size = patch_size, spatial_merge_size
        self.image_break_token, self.image_end_token = "[IMG_BREAK]", "[IMG_END]"


class _Pictures(dict[str, Any]):
    """The parts of a processor by their kind."""

    def __init__(self) -> None:
        from transformers import AutoFeatureExtractor, AutoTokenizer
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        super().__init__(tokenizer=AutoTokenizer, image_processor=AutoImageProcessor,
                         video_processor=AutoImageProcessor, feature_extractor=AutoFeatureExtractor)  # fmt: skip
