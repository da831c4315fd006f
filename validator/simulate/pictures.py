"""Models that see: their class, and one picture in each sequence, as LLaMA-Factory's collator hands it over.

What the classes compute from the grids of patches decides shapes, so these small tensors keep their values (see
`known`). Where a picture stands in a sequence does not: a mask of its tokens is taken to name as many as there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from validator.simulate.known import values_known

Tensors = dict[str, torch.Tensor]
Described = dict[str, Sequence[int]]
# Pieces of a picture at most, with the whole of it (Llama4ImageProcessor, max_patches).
_TILES = 17
# Tokens that a picture becomes at most where its patches are pooled (Gemma4ImageProcessor, max_soft_tokens).
_SOFT = 280


def maker(config: Any) -> Any:
    """The family of classes that LLaMA-Factory loads a model of this configuration by (model/loader.py)."""
    import transformers

    seeing = hasattr(config, "vision_config")
    return transformers.AutoModelForImageTextToText if seeing else transformers.AutoModelForCausalLM


def made(config: Any, half: torch.dtype, **more: Any) -> Any:
    """The model of a configuration, its weights in this type."""
    named = "dtype" if hasattr(config, "dtype") else "torch_dtype"  # as older releases call it
    return maker(config).from_config(config, **{named: half}, **more)


def still(model: Any) -> Any:
    """The model, where a class pairs the frames of films by values of their grids: of a picture it takes the one frame
    twice (models/ernie4_5_vl_moe/modeling_ernie4_5_vl_moe.py, _temporal_slicing)."""
    for module in model.modules():
        if hasattr(module, "_temporal_slicing"):
            module._temporal_slicing = _twice
    return model


def _twice(hidden: torch.Tensor, _grid: torch.Tensor) -> torch.Tensor:
    places = torch.empty(hidden.shape[:1], dtype=torch.int64)
    return torch.concat([hidden.index_select(0, places), hidden.index_select(0, places)], dim=-1)


def batch(config: Any, pixels: int, sequences: int, length: int) -> Tensors:
    """What a batch holds beside its tokens: one picture of so many pixels in each sequence."""
    seen = config.vision_config
    if hasattr(seen, "max_num_tiles"):
        return _tiled(seen, sequences, length)
    made = _pooled(seen, sequences) if hasattr(seen, "pooling_kernel_size") else _brought(config, pixels, sequences)
    if "mrope_section" in (config.text_config.rope_parameters or {}):
        made["position_ids"] = torch.empty((4, sequences, length), dtype=torch.int64)
    if marked := _marked(config):  # these tokens see each other
        name, number = marked
        with values_known(0):
            made[name] = torch.tensor([[int(place < number) for place in range(length)]] * sequences)
    if hasattr(seen, "pixel_shuffle_ratio"):  # the loss leaves out what this hides (modeling_llama4.py)
        with values_known(0):
            made["attention_mask"] = torch.tensor([[1] * length] * sequences)
    return made


def _brought(config: Any, pixels: int, sequences: int) -> Tensors:
    """Brought to a grid of patches, to rows of them, or to one size."""
    seen = config.vision_config
    if hasattr(seen, "spatial_merge_size"):
        shaped = _patches(seen, pixels)
    else:
        shaped = _padded(config) if hasattr(seen, "num_patches") else _square(seen)
    with values_known(0):
        return {name: _made(described, sequences) for name, described in shaped.items()}


def _marked(config: Any) -> tuple[str, int] | None:
    """What the batch calls the marks of a picture's tokens, and how many these are."""
    if hasattr(config, "mm_tokens_per_image"):
        return "token_type_ids", config.mm_tokens_per_image
    return ("mm_token_type_ids", _SOFT) if hasattr(config.vision_config, "pooling_kernel_size") else None


def _tiled(seen: Any, pictures: int, length: int) -> Tensors:
    """As many tiles as a picture has at most, which the decoder's layers attend to (processing_mllama.py)."""
    tiles, size = seen.max_num_tiles, seen.image_size
    return {
        "pixel_values": torch.empty((pictures, 1, tiles, seen.num_channels, size, size)),
        "aspect_ratio_ids": torch.empty((pictures, 1), dtype=torch.int64),
        "aspect_ratio_mask": torch.empty((pictures, 1, tiles), dtype=torch.int64),
        "cross_attention_mask": torch.empty((pictures, length, 1, tiles), dtype=torch.int64),
    }


def _pooled(seen: Any, pictures: int) -> Tensors:
    """As many patches as a picture has at most, with their places (image_processing_gemma4.py pads to them)."""
    patches = _SOFT * seen.pooling_kernel_size**2
    return {
        "pixel_values": torch.empty((pictures, patches, 3 * seen.patch_size**2)),
        "image_position_ids": torch.empty((pictures, patches, 2), dtype=torch.int64),
    }


def _padded(config: Any) -> Described:
    """Rows of patches, of as many as a picture has at most (transformers, image_processing_lfm2_vl.py)."""
    seen, side = config.vision_config, 16 * config.downsample_factor
    inputs = seen.num_channels * _side(seen) ** 2
    return {"pixel_values": (1, side * side, inputs), "spatial_shapes": [side, side],
            "pixel_attention_mask": [1] * side * side}  # fmt: skip


def _patches(seen: Any, pixels: int) -> Described:
    """Of the grid, a multiple of what is merged along each side."""
    step = seen.patch_size * seen.spatial_merge_size
    side = max(int(math.sqrt(pixels)) // step, 1) * seen.spatial_merge_size
    inputs = seen.in_channels * getattr(seen, "temporal_patch_size", 1) * seen.patch_size**2
    return {"pixel_values": (side * side, inputs), "image_grid_thw": [1, side, side]}


def _square(seen: Any) -> Described:
    """Brought to one size."""
    size = seen.image_size if isinstance(seen.image_size, int) else seen.image_size[0]
    tiles = _TILES if hasattr(seen, "pixel_shuffle_ratio") else 1
    return {"pixel_values": (tiles, getattr(seen, "num_channels", 3), size, size)}


def _made(described: Sequence[int], number: int) -> torch.Tensor:
    """Of a shape, a tensor for all pictures; of numbers, a row for each."""
    if isinstance(described, tuple):
        return torch.empty((number * described[0], *described[1:]))
    return torch.tensor([described] * number)


def tokens(config: Any, given: Tensors) -> int:
    """Tokens that stand for the pictures of a batch."""
    pictures = int(given["pixel_values"].shape[0])
    if "image_position_ids" in given:
        return pictures * _SOFT
    if "image_grid_thw" in given:
        return pictures // int(config.vision_config.spatial_merge_size) ** 2
    if "spatial_shapes" in given:
        return pictures * int(given["pixel_values"].shape[1]) // int(config.downsample_factor) ** 2
    side = int(given["pixel_values"].shape[-1]) // _side(config.vision_config)
    return pictures * int(getattr(config, "mm_tokens_per_image", 0) or side**2 // _merged(config))


def _side(seen: Any) -> int:
    return seen.patch_size if isinstance(seen.patch_size, int) else int(seen.patch_size[0])


def _merged(config: Any) -> int:
    ratio = getattr(config, "downsample_ratio", getattr(config.vision_config, "pixel_shuffle_ratio", 1))
    return int(1 / ratio**2)
