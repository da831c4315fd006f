"""Creates the inputs of multimodal models: one image and one sound in each sequence, in the form that LLaMA-Factory's
collator passes to the model.

Model classes compute shapes from the grids of patches, so these small tensors keep their values (see fake_tensors.py).
The position of an image in its sequence changes no shape: a mask of its tokens is assumed to select as many tokens as
the image has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from validator.simulation.fake_tensors import keep_small_int_values

Tensors = dict[str, torch.Tensor]
InputShapes = dict[str, Sequence[int]]
# Tiles of an image at most, with the whole image (Llama4ImageProcessor, max_patches).
_MAX_TILES = 17
# Tokens of an image at most, if its patches are pooled (Gemma4ImageProcessor, max_soft_tokens).
_MAX_SOFT_TOKENS = 280


def image_inputs(config: Any, pixels: int, sequences: int, length: int) -> Tensors:
    """Return the image tensors of a batch: one image of `pixels` pixels in each of the `sequences` sequences, which
    have `length` tokens. Position and mask tensors are included if the model needs them with images."""
    vision = config.vision_config
    if hasattr(vision, "max_num_tiles"):
        return _tile_inputs(vision, sequences, length)
    inputs = (
        _pooled_inputs(vision, sequences)
        if hasattr(vision, "pooling_kernel_size")
        else _patch_inputs(config, pixels, sequences)
    )
    if "mrope_section" in (config.text_config.rope_parameters or {}):
        inputs["position_ids"] = torch.empty((4, sequences, length), dtype=torch.int64)
    if marked := _image_token_marks(config):  # these tokens see each other
        name, number = marked
        with keep_small_int_values(0):
            inputs[name] = torch.tensor([[int(place < number) for place in range(length)]] * sequences)
    if hasattr(vision, "pixel_shuffle_ratio"):  # the loss leaves out what this hides (modeling_llama4.py)
        with keep_small_int_values(0):
            inputs["attention_mask"] = torch.tensor([[1] * length] * sequences)
    return inputs


def _patch_inputs(config: Any, pixels: int, sequences: int) -> Tensors:
    """Return the image tensors of a model that resizes an image to a grid of patches, to padded rows of patches, or to
    one fixed size."""
    vision = config.vision_config
    if hasattr(vision, "spatial_merge_size"):
        shapes = _patch_grid(vision, pixels)
    else:
        shapes = _padded_patches(config) if hasattr(vision, "num_patches") else _fixed_size(vision)
    with keep_small_int_values(0):
        # A tuple is the shape of a tensor for all images, a list holds the values of a row for each image.
        return {
            name: torch.empty((sequences * shape[0], *shape[1:]))
            if isinstance(shape, tuple)
            else torch.tensor([shape] * sequences)
            for name, shape in shapes.items()
        }


def _image_token_marks(config: Any) -> tuple[str, int] | None:
    """Return the name of the batch tensor that marks image tokens, and the number of tokens of an image. Return None if
    the model needs no marks."""
    if hasattr(config, "mm_tokens_per_image"):
        return "token_type_ids", config.mm_tokens_per_image
    return ("mm_token_type_ids", _MAX_SOFT_TOKENS) if hasattr(config.vision_config, "pooling_kernel_size") else None


def _tile_inputs(vision: Any, pictures: int, length: int) -> Tensors:
    """Return the image tensors of a batch of `pictures` images for a model that cuts an image into tiles, with the
    largest number of tiles. The decoder's layers attend to the tiles (processing_mllama.py)."""
    tiles, size = vision.max_num_tiles, vision.image_size
    return {
        "pixel_values": torch.empty((pictures, 1, tiles, vision.num_channels, size, size)),
        "aspect_ratio_ids": torch.empty((pictures, 1), dtype=torch.int64),
        "aspect_ratio_mask": torch.empty((pictures, 1, tiles), dtype=torch.int64),
        "cross_attention_mask": torch.empty((pictures, length, 1, tiles), dtype=torch.int64),
    }


def _pooled_inputs(vision: Any, pictures: int) -> Tensors:
    """Return the image tensors of a batch of `pictures` images for a model that pools patches: the largest number of
    patches, to which image_processing_gemma4.py pads every image, and their positions."""
    patches = _MAX_SOFT_TOKENS * vision.pooling_kernel_size**2
    return {
        "pixel_values": torch.empty((pictures, patches, 3 * vision.patch_size**2)),
        "image_position_ids": torch.empty((pictures, patches, 2), dtype=torch.int64),
    }


def _padded_patches(config: Any) -> InputShapes:
    """Return the tensor shapes of an image as rows of patches, padded to the largest number of patches (transformers,
    image_processing_lfm2_vl.py)."""
    vision, side = config.vision_config, 16 * config.downsample_factor
    inputs = vision.num_channels * _patch_side(vision) ** 2
    return {"pixel_values": (1, side * side, inputs), "spatial_shapes": [side, side],
            "pixel_attention_mask": [1] * side * side}  # fmt: skip


def _patch_grid(vision: Any, pixels: int) -> InputShapes:
    """Return the tensor shapes of an image as rows of patches and a grid. The sides of the grid are multiples of
    `spatial_merge_size`, the number of patches merged along each side."""
    step = vision.patch_size * vision.spatial_merge_size
    side = max(int(math.sqrt(pixels)) // step, 1) * vision.spatial_merge_size
    inputs = vision.in_channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    return {"pixel_values": (side * side, inputs), "image_grid_thw": [1, side, side]}


def _fixed_size(vision: Any) -> InputShapes:
    """Return the tensor shape of an image that the model resizes to one fixed size."""
    size = vision.image_size if isinstance(vision.image_size, int) else vision.image_size[0]
    tiles = _MAX_TILES if hasattr(vision, "pixel_shuffle_ratio") else 1
    return {"pixel_values": (tiles, getattr(vision, "num_channels", 3), size, size)}


def image_tokens(config: Any, inputs: Tensors) -> int:
    """Return the number of text tokens that stand for the images of a batch."""
    pictures = int(inputs["pixel_values"].shape[0])
    if "image_position_ids" in inputs:
        return pictures * _MAX_SOFT_TOKENS
    if "image_grid_thw" in inputs:
        return pictures // int(config.vision_config.spatial_merge_size) ** 2
    if "spatial_shapes" in inputs:
        return pictures * int(inputs["pixel_values"].shape[1]) // int(config.downsample_factor) ** 2
    side = int(inputs["pixel_values"].shape[-1]) // _patch_side(config.vision_config)
    return pictures * int(getattr(config, "mm_tokens_per_image", 0) or side**2 // _patches_per_token(config))


def _patch_side(vision: Any) -> int:
    return vision.patch_size if isinstance(vision.patch_size, int) else int(vision.patch_size[0])


def _patches_per_token(config: Any) -> int:
    ratio = getattr(config, "downsample_ratio", getattr(config.vision_config, "pixel_shuffle_ratio", 1))
    return int(1 / ratio**2)


# Frames of one second, and of a sound at most (transformers, WhisperFeatureExtractor).
_FRAMES_PER_SECOND, _MAX_FRAMES = 100, 3000


def audio_inputs(config: Any, seconds: int, sequences: int) -> dict[str, torch.Tensor]:
    """Return the audio tensors of a batch: one sound of `seconds` seconds in each of the `sequences` sequences. The
    mapping is empty for 0 seconds."""
    if not seconds:
        return {}
    frames = min(seconds * _FRAMES_PER_SECOND, _MAX_FRAMES)
    with keep_small_int_values(0):
        mask = torch.tensor([[int(frame < frames) for frame in range(_MAX_FRAMES)]] * sequences)
        return {
            "input_features": torch.empty((sequences, config.audio_config.num_mel_bins, _MAX_FRAMES)),
            "feature_attention_mask": mask,
        }
