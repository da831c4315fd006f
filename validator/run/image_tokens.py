"""Tokens that an image of a given size becomes: LLaMA-Factory's own resizing (data/mm_plugin.py), then the rule of the
model's image processor. The facts are rows of data/image_processors.yaml; the model's own preprocessor file comes
first, if it is on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from struct import pack, unpack
from typing import Any, NamedTuple

from validator.knowledge import hub_caches, tables
from validator.knowledge.models import Model
from validator.on_node.checkpoint_integrity import read_json_mapping
from validator.rows.image_header import ImageSize
from validator.run.settings import RunSettings

# Settings by name: plain values, because worker processes are given them.
Facts = Mapping[str, Any]


class ImageTokens(NamedTuple):
    """Tokens of one image. `sequence`: those that the decoder reads, with the marks around them. `tower`: those that
    the vision tower reads, of all pieces that the image is cut into."""

    sequence: int
    tower: int


@dataclass(frozen=True)
class ImageCounter:
    """Counts the tokens of images for one run. `plugin`: the row of LLaMA-Factory's plugin. `facts`: settings of the
    image processor, and of the tower: `patch` pixels of a patch's side, `merge` tower tokens along a side that become
    one of the decoder, `frames` of a patch, and `whole` tower tokens of an image of fixed size (0: none).
    `max_pixels`, `min_pixels`: `image_max_pixels` and `image_min_pixels` of the recipe."""

    plugin: Facts
    facts: Facts
    max_pixels: int
    min_pixels: int

    @property
    def in_front(self) -> bool:
        """True if the tokens of images stand before all turns, whatever the place of <image>."""
        return bool(self.plugin.get("in_front"))

    @cached_property
    def largest(self) -> ImageTokens | None:
        """The most tokens of an image that the recipe allows, which stand for an image whose size is not known. Sides
        are rounded to whole tokens, so that a square is not the longest. An image counts as at most four times as long
        as wide."""
        pixels = max(min(self.max_pixels, _MAX_PIXELS), 1)
        side = math.isqrt(pixels)
        token_side = self.facts["patch"] * self.facts["merge"]
        rounded_up = range(token_side // 2, side, token_side)  # the least sides that become one token longer
        shapes = [(pixels // each, each) for each in (side, *rounded_up) if each and 2 * each >= side]
        found = [self.count(ImageSize(*shape)) for long, short in shapes for shape in ((long, short), (short, long))]
        return max(filter(None, found), default=None)

    def count(self, size: ImageSize) -> ImageTokens | None:
        """Return the tokens of an image of this size; None if Pillow, LLaMA-Factory or the processor refuses the image,
        because it is too large, or too long and narrow."""
        try:
            tokens = _RULES[self.facts["rule"]](self.facts, *_factory_size(self, *size))
        except ValueError:
            return None
        return tokens._replace(sequence=tokens.sequence + self.plugin.get("marks", 0))


def image_counter(run: RunSettings) -> tuple[ImageCounter | None, str]:
    """Return the counter for the images of a run, and the reason if there is none, as text for a message."""
    model = run.model
    if model is None:
        return None, "the model is not known"
    tower = next((tower for tower in model.arch.towers if tower.patch_size), None)
    if tower is None:
        return None, f"{model.name} reads no images"
    table = tables.yaml_table("image_processors")
    name = str((run.template or {}).get("plugin", ""))
    plugin = table["plugins"].get(name)
    processor = table["processors"].get(f"{model.kind}/{name}") or table["processors"].get(model.kind)
    if processor is None:
        return None, f"how the processor of {model.kind} resizes images is not known"
    if plugin is None or processor["rule"] not in plugin["rules"]:
        return None, f"template {run.args.get('template')} is not one for {model.kind}"
    pooled = tables.yaml_table("composites")[model.kind].get("pooled", 1)
    facts = {
        "patch": tower.patch_size,
        "merge": math.isqrt(tower.merge * pooled),
        "frames": tower.temporal_patch_size,
        "whole": tower.fixed_tokens,
        "pan_and_scan": run.args.flag("image_do_pan_and_scan"),
        **processor,
        **_own_settings(run, model),
    }
    if run.args.flag("crop_to_patches"):  # and no other numbers (InternVLPlugin._get_mm_inputs)
        facts |= {"crop_to_patches": True, "min_patches": 1, "max_patches": 12}
    limits = (int(run.args.number(f"image_{end}_pixels")) for end in ("max", "min"))
    return ImageCounter(dict(plugin), facts, *limits), ""


def _own_settings(run: RunSettings, model: Model) -> dict[str, Any]:
    """Return the settings of the model's own image processor, from its folder or a hub's cache on this machine, by the
    names that data/image_processors.yaml has. Empty if neither holds the file."""
    for folder in _model_folders(run, model):
        nested = read_json_mapping(folder / "processor_config.json").get("image_processor")
        own = nested if isinstance(nested, dict) else read_json_mapping(folder / "preprocessor_config.json")
        if own:
            return dict(_named_settings(own))
    return {}


def _model_folders(run: RunSettings, model: Model) -> Iterator[Path]:
    name = run.args.get("model_name_or_path")
    if isinstance(name, str) and (found := run.workspace.find(name)):
        yield found[0]
    for each in dict.fromkeys((name, model.name)):
        if isinstance(each, str) and (cached := hub_caches.cached_model(each, "preprocessor_config.json")):
            yield cached.folder


def _named_settings(own: Facts) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a preprocessor file that count, by the names that data/image_processors.yaml has. Values of
    another type are left out."""
    size, patch = own.get("size"), own.get("patch_size")
    size = size if isinstance(size, dict) else {}
    numbers = {
        "min_pixels": own.get("min_pixels") or size.get("shortest_edge"),
        "max_pixels": own.get("max_pixels") or size.get("longest_edge"),
        "longest_edge": size.get("longest_edge"),
        "tile": size.get("height") or size.get("shortest_edge"),
        "patch": patch.get("height") if isinstance(patch, dict) else patch,
        "merge": own.get("merge_size"),
    }
    kept = ("max_soft_tokens", "in_token_limit", "max_patches", "min_patches", "max_slice_nums", "image_feature_size",
            "min_image_tokens", "max_image_tokens")  # fmt: skip
    for name, value in {**numbers, **{name: own.get(name) for name in kept}}.items():
        if isinstance(value, int) and 0 < value < 1 << 40:
            yield name, value
    if isinstance(own.get("crop_to_patches"), bool):
        yield "crop_to_patches", own["crop_to_patches"]
    grids = own.get("image_grid_pinpoints")
    if isinstance(grids, list) and all(isinstance(grid, list) and len(grid) == 2 for grid in grids):
        yield "image_grid_pinpoints", grids


_MAX_PIXELS = 2 * 89_478_485  # PIL/Image.py, MAX_IMAGE_PIXELS: of twice as many open() raises an error


def _factory_size(counter: ImageCounter, width: int, height: int) -> tuple[int, int]:
    """Return the size to which LLaMA-Factory resizes an image before the processor reads it. Raises ValueError if a
    side vanishes, and for more pixels than Pillow opens. Source: data/mm_plugin.py, MMPluginMixin._preprocess_image and
    Qwen2VLPlugin._preprocess_image."""
    if width * height > _MAX_PIXELS:
        raise ValueError("refused")
    if width * height > counter.max_pixels:
        width, height = _scaled(width, height, counter.max_pixels)
    if width * height < counter.min_pixels:
        width, height = _scaled(width, height, counter.min_pixels)
    least = counter.plugin.get("least_side", 0)
    if least:
        width, height = max(width, least), max(height, least)
        width = height * 180 if width / height > 200 else width
        height = width * 180 if height / width > 200 else height
    return width, height


def _scaled(width: int, height: int, pixels: int) -> tuple[int, int]:
    """Return the sides of an image that is scaled to so many pixels. Raises ValueError if a side vanishes."""
    factor = math.sqrt(pixels / (width * height))
    sides = int(width * factor), int(height * factor)
    if not all(sides):
        raise ValueError("a side of no pixel")
    return sides


def _rounded_sides(facts: Facts, width: int, height: int, frames: int = 1) -> tuple[int, int]:
    """Return the sides of an image in whole tokens, within the pixels that the processor allows. Raises ValueError for
    an image that is refused as too elongated. Source: smart_resize of transformers, in
    image_processing_qwen2_vl.py (of one frame) and image_processing_glm4v.py (of as many as a patch has)."""
    factor = facts["patch"] * facts["merge"]
    if frames > 1 and (width < factor or height < factor):
        scale = max(factor / height, factor / width)
        width, height = int(width * scale), int(height * scale)
    if max(width, height) / min(width, height) > 200:
        raise ValueError("refused")
    columns, rows = round(width / factor), round(height / factor)
    pixels = frames * columns * rows * factor**2
    if pixels > facts["max_pixels"]:
        beta = math.sqrt(frames * width * height / facts["max_pixels"])
        columns, rows = (max(1, math.floor(side / beta / factor)) for side in (width, height))
    elif pixels < facts["min_pixels"]:
        beta = math.sqrt(facts["min_pixels"] / (frames * width * height))
        columns, rows = (math.ceil(side * beta / factor) for side in (width, height))
    return columns, rows


def _grid(facts: Facts, width: int, height: int) -> ImageTokens:
    columns, rows = _rounded_sides(facts, width, height)
    return ImageTokens(columns * rows, columns * rows * facts["merge"] ** 2)


def _frames(facts: Facts, width: int, height: int) -> ImageTokens:
    columns, rows = _rounded_sides(facts, width, height, facts["frames"])
    return ImageTokens(columns * rows, columns * rows * facts["merge"] ** 2)


def _piece_tokens(facts: Facts) -> int:
    """Return the decoder tokens of one image of the tower's size. A class token is not among the patches, and is left
    out (`vision_feature_select_strategy: default`)."""
    return int(math.isqrt(facts["whole"]) ** 2 // facts["merge"] ** 2)


def _whole(facts: Facts, _width: int, _height: int) -> ImageTokens:
    return ImageTokens(_piece_tokens(facts), facts["whole"])


def _mark(facts: Facts, _width: int, _height: int) -> ImageTokens:
    return ImageTokens(1, facts["whole"])


def _tiles(facts: Facts, width: int, height: int) -> ImageTokens:
    """Source: transformers, image_processing_got_ocr2.py, get_optimal_tiled_canvas."""
    pieces = 1
    if facts["crop_to_patches"]:
        least, most, area = facts.get("min_patches", 1), facts.get("max_patches", 12), facts["tile"] ** 2
        grids = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most + 1)
                 if least <= columns * rows <= most]  # fmt: skip
        grids.sort(key=lambda grid: grid[0] * grid[1])
        best, difference = (1, 1), math.inf
        for grid in grids:
            found = abs(width / height - grid[0] / grid[1])
            if found < difference or (found == difference and width * height > 0.5 * area * grid[0] * grid[1]):
                best, difference = grid, found
        pieces = best[0] * best[1] + (best != (1, 1))
    return ImageTokens(pieces * _piece_tokens(facts), pieces * facts["whole"])


def _anyres(facts: Facts, width: int, height: int) -> ImageTokens:
    """Source: transformers, image_processing_utils.py, select_best_resolution, and processing_llava_next.py,
    _get_number_of_features."""
    tile, side = facts["tile"], math.isqrt(facts["whole"])

    def fitness(grid: tuple[int, int]) -> tuple[int, int]:
        scale = min(grid[1] / width, grid[0] / height)
        effective = min(int(width * scale) * int(height * scale), width * height)
        return effective, effective - grid[0] * grid[1]

    best_height, best_width = max(facts["image_grid_pinpoints"], key=fitness)
    rows, columns = best_height // tile * side, best_width // tile * side
    pieces = (best_height // tile) * (best_width // tile) + 1
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    return ImageTokens(rows * columns + rows + side**2, pieces * facts["whole"])


# Of pan and scan, as mm_plugin.py asks for it, and the tokens of the words that stand around the crops, about.
_CROP_SIDE, _MAX_CROPS, _CROP_RATIO, _CROP_WORDS = 256, 4, 1.2, 17


def _crops(facts: Facts, width: int, height: int) -> ImageTokens:
    """Source: transformers, image_processing_gemma3.py, pan_and_scan_batched."""
    long, short, crops = max(width, height), min(width, height), 0
    if facts["pan_and_scan"] and long / short >= _CROP_RATIO:
        wanted = min(long // _CROP_SIDE, math.floor(long / short + 0.5))
        crops = min(_MAX_CROPS, max(2, wanted))
        if min(math.ceil(long / crops), short) < _CROP_SIDE:
            crops = 0
    words = _CROP_WORDS if facts["pan_and_scan"] else 0
    marks = 4 * crops  # those of the first are counted with the plugin's
    return ImageTokens((1 + crops) * _piece_tokens(facts) + marks + words, (1 + crops) * facts["whole"])


def _budget(facts: Facts, width: int, height: int) -> ImageTokens:
    """Source: transformers, image_processing_pil_gemma4.py, get_aspect_ratio_preserving_size."""
    pool = facts["pooling_kernel_size"]
    side, most = pool * facts["patch"], facts["max_soft_tokens"]
    factor = math.sqrt(most * side**2 / (width * height))
    columns, rows = (math.floor(factor * length / side) for length in (width, height))
    if not columns and not rows:
        raise ValueError("refused")
    if not rows:
        rows, columns = 1, min(width // height, most)
    elif not columns:
        rows, columns = min(height // width, most), 1
    return ImageTokens(columns * rows, most * pool**2)


def _padded(facts: Facts, width: int, height: int) -> ImageTokens:
    """Source: image_processing_kimi_vl.py of moonshotai/Kimi-VL-A3B-Instruct, rescale."""
    patch, most = facts["patch"], facts["in_token_limit"]
    patches = (width // patch) * (height // patch)
    if patches > most:
        scale = math.sqrt(most / patches)
        width, height = int(width * scale), int(height * scale)
    side = patch * facts["merge"]
    columns, rows = -(-width // side), -(-height // side)
    if max(columns, rows) * facts["merge"] >= 512:  # the positions that its tower has
        raise ValueError("refused")
    return ImageTokens(columns * rows, columns * rows * facts["merge"] ** 2)


def _chunks(facts: Facts, width: int, height: int) -> ImageTokens:
    """Source: transformers, image_processing_llama4.py, get_best_fit, which compares scales as 32-bit numbers."""
    tile, most = facts["tile"], facts["max_patches"]
    grids = [(rows, chunks // rows) for chunks in range(most, 0, -1) for rows in range(1, chunks + 1)
             if chunks % rows == 0]  # fmt: skip

    def scale(grid: tuple[int, int]) -> float:
        shrunk: float = unpack("f", pack("f", min(grid[0] * tile / height, grid[1] * tile / width)))[0]
        return shrunk

    enlarging = [each for each in map(scale, grids) if each >= 1]
    chosen = min(enlarging) if enlarging else max(map(scale, grids))
    rows, columns = min((grid for grid in grids if scale(grid) == chosen), key=math.prod)
    separators = rows * columns if rows * columns > 1 else 0  # one after each chunk
    pieces = rows * columns + (rows * columns > 1)
    return ImageTokens(pieces * _piece_tokens(facts) + separators, pieces * facts["whole"])


def _slices(facts: Facts, width: int, height: int) -> ImageTokens:
    """Source: image_processing_minicpmv.py of openbmb/MiniCPM-V-2_6, get_sliced_grid and get_slice_image_placeholder.
    An image has a mark at its begin and end, as each slice; before it stands its number between two marks."""
    most = facts["max_slice_nums"]
    multiple = min(math.ceil(width * height / facts["tile"] ** 2), most)
    best, difference = (0, 0), math.inf
    for number in (multiple - 1, multiple, multiple + 1) if multiple > 1 else ():
        for columns in range(1, number + 1) if number != 1 and number <= most else ():
            if number % columns == 0:
                grid = (columns, number // columns)
                error = abs(math.log(width / height) - math.log(grid[0] / grid[1]))
                best, difference = (grid, error) if error < difference else (best, difference)
    slices = best[0] * best[1]
    breaks = max(best[1] - 1, 0)
    return ImageTokens((facts["image_feature_size"] + 2) * (1 + slices) + breaks + 3, (1 + slices) * facts["whole"])


def _rows(facts: Facts, width: int, height: int) -> ImageTokens:
    """Source: transformers, image_processing_pixtral.py, get_resize_output_image_size; a token for the end of each
    row."""
    ratio = max(width, height) / facts["longest_edge"]
    if ratio > 1:
        width, height = math.floor(width / ratio), math.floor(height / ratio)
    patch, merge = facts["patch"], facts["merge"]
    columns, rows = ((side - 1) // patch + 1 for side in (width, height))
    if not rows // merge:
        raise ValueError("refused")
    return ImageTokens((columns // merge + 1) * (rows // merge), columns * rows)


def _single(facts: Facts, width: int, height: int) -> ImageTokens:
    """Source: transformers, image_processing_lfm2_vl.py, smart_resize. LLaMA-Factory counts the first tile alone of an
    image that is split; the run then ends (TRA920)."""
    side = facts["patch"] * facts["merge"]
    rounded = [max(facts["patch"], round(each / side) * side) for each in (width, height)]
    if math.prod(rounded) > facts["max_image_tokens"] * side**2 * facts["max_pixels_tolerance"]:
        return ImageTokens(facts["whole"] // facts["merge"] ** 2, facts["whole"])
    pixels = {f"{end}_pixels": facts[f"{end}_image_tokens"] * side**2 for end in ("min", "max")}
    columns, rows = (max(1, round(each / side)) for each in (width, height))
    if columns * rows > facts["max_image_tokens"]:
        beta = math.sqrt(width * height / pixels["max_pixels"])
        columns, rows = (max(1, math.floor(each / beta / side)) for each in (width, height))
    elif columns * rows < facts["min_image_tokens"]:
        beta = math.sqrt(pixels["min_pixels"] / (width * height))
        columns, rows = (math.ceil(each * beta / side) for each in (width, height))
    return ImageTokens(columns * rows, facts["whole"])


_RULES: dict[str, Callable[[Facts, int, int], ImageTokens]] = {
    "grid": _grid, "frames": _frames, "whole": _whole, "mark": _mark, "tiles": _tiles, "anyres": _anyres,
    "crops": _crops, "budget": _budget, "padded": _padded, "chunks": _chunks, "slices": _slices, "rows": _rows,
    "single": _single,
}  # fmt: skip
