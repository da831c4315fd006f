"""Vision and audio towers of a run's model: the tokens that each tower reads for one sample, and the parts of the model
that train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from validator.knowledge import tables
from validator.knowledge.models import Model
from validator.physics import Tower, TowerWorkload
from validator.run.adapted_modules import adapted_modules
from validator.run.dataset_registry import Dataset
from validator.run.image_tokens import image_counter
from validator.run.model_parts import part_words
from validator.run.settings import RunSettings

# What a sample holds where no data are at hand.
_ONE_OF_EACH = {"images": 1, "videos": 0, "audios": 1}
# Values of `flash_attn` with which towers, too, use PyTorch's scaled_dot_product_attention.
_SDPA_CHOICES = ("auto", "sdpa")
# An entry of data/sets.yaml.
PublishedFacts = Mapping[str, Any]


def tower_encodings(run: RunSettings, model: Model, datasets: Iterable[Dataset]) -> tuple[TowerWorkload, ...]:
    """Return the workload of each tower of the model: its tokens per sample and its trained parts."""
    media, watched = _media_of_fullest_row(run, datasets), _has_gradients_through_towers(run)
    is_unbatched = run.args.get("flash_attn") in _SDPA_CHOICES and model.kind in run.releases.older_tower_types
    return tuple(
        trained_parts(run, model, number)._replace(
            tokens=_tower_tokens(run, model, tower, media),
            input_requires_grad=watched and tower.has_input_embeddings,
            attends_to_batch=is_unbatched and tower.patch_size > 0,
        )
        for number, tower in enumerate(model.arch.towers)
    )


def _has_gradients_through_towers(run: RunSettings) -> bool:
    """True if gradients also run through frozen towers. If layers are checkpointed and nothing is quantized, peft asks
    for gradients of the embeddings' output (peft_model.py, prepare_model_for_gradient_checkpointing). Since
    transformers 5 that includes the towers' embeddings (modeling_utils.py, enable_input_require_grads). LLaMA-Factory
    does not recompute layers that have no trained weights."""
    plain = run.quantization.weights == 0 and run.activation_checkpointing.llamafactory_mode != "off"
    return run.task.uses_adapter and plain and run.releases.requires("transformers 5.0.0")


def trained_parts(run: RunSettings, model: Model, number: int) -> TowerWorkload:
    """Return the workload of the model's tower `number`, in which only the trained parts are filled in: adapted
    modules, number of trained layers, projector, or the whole tower."""
    tower, names = model.arch.towers[number], model.modules[number]
    if run.task.uses_adapter:
        adapted = adapted_modules(run, model, fused=True).towers[number]
        numbers = {linear.role: linear.number for linear in (*tower.outside, *tower.projector)}
        numbers |= {linear.role: tower.layers for linear in tower.linears}
        some = tuple((role, modules) for role, modules in adapted if 0 < modules < numbers.get(role, 0))
        leaves_layers_out = any(linear.role in dict(some) for linear in tower.linears)
        return TowerWorkload(
            targets=tuple(role for role, _ in adapted),
            adapted_modules=some,
            recomputed=False if leaves_layers_out else None,
        )
    registered = bool(part_words(model))
    words = part_words(model).get("vision_model_keys", ())
    thawed = not (run.args.flag("freeze_vision_tower") and any(word in name for name in names for word in words))
    projector = not (registered and run.args.flag("freeze_multi_modal_projector"))
    if run.task.method == "freeze":
        return TowerWorkload(
            projector=projector and registered,
            trainable_layers=_trained_tower_layers(run, model, tower) if thawed else 0,
        )
    return TowerWorkload(trains=thawed, projector=projector, never_frozen=True)


def _trained_tower_layers(run: RunSettings, model: Model, tower: Tower) -> int:
    """Return how many tower layers the method freeze trains. LLaMA-Factory selects the numbers of the trained decoder
    layers, and every tower layer with one of these numbers trains, too (model/adapter.py)."""
    trainable_layers, layers = int(run.args.number("freeze_trainable_layers")), model.arch.layers
    first = max(layers - trainable_layers, 0) if trainable_layers > 0 else 0
    last = layers if trainable_layers > 0 else min(-trainable_layers, layers)
    return max(min(last, tower.layers) - first, 0)


# How much is read.

# Tokens of a sample that are left for its text where its images make it long.
_TEXT_TOKENS = 512

# Data sets of LLaMA-Factory's own registry whose samples have one picture each.
_DATASETS_WITH_IMAGES = frozenset(
    {"llava_1k_en", "llava_1k_zh", "llava_150k_en", "llava_150k_zh", "mllm_demo", "pokemon_cap", "rlhf_v"}
)


def with_images_up_to_cutoff(
    run: RunSettings, model: Model, datasets: Iterable[Dataset], encodings: tuple[TowerWorkload, ...]
) -> tuple[TowerWorkload, ...]:
    """Return the workloads of the model's towers for samples with as many images as the longest sequence can hold.
    `encodings`: the workloads as `tower_encodings` returns them. They are returned unchanged if the decoder reads
    images by cross-attention, or if the number of images is known: from rows on this machine, from the columns in
    dataset_info.json, or from the name of a published data set."""
    datasets = tuple(datasets)
    crossed = tables.yaml_table("composites")[model.kind].get("crossed", False)
    if (
        crossed
        or _media_of_fullest_row(run, datasets) is not None
        or _names_only(run, _text_only_names(datasets) | _DATASETS_WITH_IMAGES)
    ):
        return encodings
    return tuple(
        encoding._replace(tokens=run.batch.max_tokens * _tower_tokens_per_token(model, tower))
        if tower.patch_size
        else encoding
        for tower, encoding in zip(model.arch.towers, encodings, strict=True)
    )


def _text_only_names(datasets: Iterable[Dataset]) -> set[str]:
    """Return the names of the data sets that have no column of images, videos or audio."""
    return {one.name for one in datasets if not one.attr.has_media}


def _names_only(run: RunSettings, names: Set[str]) -> bool:
    """True if the recipe names at least one data set, and all data sets that it names are in `names`."""
    dataset_names = set(run.args.words("dataset"))
    return bool(dataset_names) and dataset_names <= names


def _media_of_fullest_row(run: RunSettings, datasets: Iterable[Dataset]) -> dict[str, int] | None:
    """Return the most images, videos and audios that any of the first rows has. If no row can be read: zeros if no data
    set has a column for media, else None."""
    key = (_media_of_fullest_row, datasets := tuple(datasets))
    if key not in run.derived:
        run.derived[key] = _count_fullest_row(run, datasets)
    found: dict[str, int] | None = run.derived[key]
    return found


def _count_fullest_row(run: RunSettings, datasets: Sequence[Dataset]) -> dict[str, int] | None:
    rows = [(one, row) for one in datasets if one.rows for row in one.rows.head]
    if rows:
        return {part: max(_media_in_row(one, row, part) for one, row in rows) for part in _ONE_OF_EACH}
    return dict.fromkeys(_ONE_OF_EACH, 0) if _names_only(run, _text_only_names(datasets)) else None


def max_tower_pieces(run: RunSettings, model: Model, datasets: Sequence[Dataset]) -> int:
    """Return the most pieces of images and frames of videos that one sample has: those of the fullest of the data sets'
    first rows, or of one image and one video, as far as the data sets have a column for them, if no row can be read."""
    columns = {part: int(any(one.attr.columns.get(part) for one in datasets)) for part in _ONE_OF_EACH}
    media = _media_of_fullest_row(run, datasets) or columns
    return media["images"] * _tiles_of_image(run, model) + media["videos"] * int(run.args.number("video_maxlen"))


def media_of_rows(dataset: Dataset) -> frozenset[frozenset[str]]:
    """Return the kinds of media (images, videos, audios) that rows of a data set hold together, such as {images} and
    {images, videos}. Rows are the first ones; beyond them, and where none can be read, a row may hold each kind for
    which the data set has a column."""
    rows, columns = dataset.rows, [part for part in _ONE_OF_EACH if dataset.attr.columns.get(part)]
    head = rows.head if rows else ()
    held = {frozenset(part for part in columns if _media_in_row(dataset, row, part)) for row in head}
    if not head or (rows and rows.number > len(head)):
        held |= {frozenset({part}) for part in columns} or {frozenset()}
    return frozenset(held)


def _media_in_row(dataset: Dataset, row: Mapping[str, Any], part: str) -> int:
    value = row.get(dataset.attr.columns.get(part) or "")
    return len(value) if isinstance(value, list) else int(value is not None)


def _tower_tokens(run: RunSettings, model: Model, tower: Tower, number: dict[str, int] | None) -> int:
    """Return the tower tokens of one sample, or of one packed sequence. `number`: images, videos and audios of the
    sample; None means one image or one audio. The result is limited to the tokens that fit in `cutoff_len`, because a
    sample that is cut inside an image cannot be trained. A packed sequence may consist of media only and counts as
    full."""
    media = number or _ONE_OF_EACH
    if not any(media.values()):  # a white picture or silence in each batch, so that all devices run it
        return -(-_tokens_of_media(run, model, tower, media) // run.batch.micro_batch)
    token_limit = max(int(run.args.number("cutoff_len")), 1) * _tower_tokens_per_token(model, tower)
    return token_limit if run.batch.packing else min(_tokens_of_media(run, model, tower, media), token_limit)


def _tower_tokens_per_token(model: Model, tower: Tower) -> int:
    """Return how many tower tokens become one token of the decoder, because the tower or the projector merges them."""
    pooled: int = tables.yaml_table("composites")[model.kind].get("pooled", 1)
    return tower.merge * pooled


def max_media_tokens(run: RunSettings, model: Model, datasets: Iterable[Dataset]) -> int:
    """Return the most decoder tokens that the images and videos of one sample become. The sample has as many as the
    fullest of the data sets' first rows, or one image if no row can be read."""
    media, counter = _media_of_fullest_row(run, datasets) or _ONE_OF_EACH, image_counter(run)[0]
    if counter and counter.largest and not media["videos"]:
        return media["images"] * counter.largest.sequence
    return _media_tokens_by_area(run, model, datasets)


def _media_tokens_by_area(run: RunSettings, model: Model, datasets: Iterable[Dataset]) -> int:
    """Return the decoder tokens of one sample's images and videos at the pixels that the recipe allows, without
    rounding and without the marks around an image."""
    media = _media_of_fullest_row(run, datasets) or _ONE_OF_EACH
    if not media["images"] and not media["videos"]:
        return 0
    read = (
        _tokens_of_media(run, model, tower, media) // _tower_tokens_per_token(model, tower)
        for tower in model.arch.towers
        if tower.patch_size
    )
    return max(read, default=0)


def cutoff_for_media(tokens: int) -> int:
    """Return a `cutoff_len` for samples whose images and videos have so many tokens, and some text."""
    return -(-(tokens + _TEXT_TOKENS) // 1024) * 1024


def usual_media_tokens(
    run: RunSettings, model: Model, datasets: Iterable[Dataset], published: Sequence[PublishedFacts]
) -> int:
    """Return the decoder tokens of one sample's images at the image size that is published for the data sets.
    `published`: the recipe's data sets as data/sets.yaml describes them (`DataSources.published`)."""
    return math.ceil(_usual_share(run, published) * _media_tokens_by_area(run, model, datasets))


def with_published_images(
    run: RunSettings, model: Model, published: Sequence[PublishedFacts], encodings: tuple[TowerWorkload, ...]
) -> tuple[TowerWorkload, ...]:
    """Return the workloads of the model's towers with the tokens of images that have the published size. `published`:
    the recipe's data sets as data/sets.yaml describes them (`DataSources.published`). `encodings`: the workloads as
    `tower_encodings` returns them."""
    share = _usual_share(run, published)
    return tuple(
        encoding._replace(tokens=math.ceil(share * encoding.tokens))
        if tower.patch_size and not tower.fixed_tokens
        else encoding
        for tower, encoding in zip(model.arch.towers, encodings, strict=True)
    )


def with_tower_tokens(
    run: RunSettings, model: Model, tokens: int, encodings: tuple[TowerWorkload, ...]
) -> tuple[TowerWorkload, ...]:
    """Return the workloads of the model's towers for samples whose images have so many tower tokens, at most as many
    as `cutoff_len` holds. 0 leaves the workloads as they are: LLaMA-Factory puts a blank image into a batch without
    images. `encodings`: the workloads as `tower_encodings` returns them."""
    longest = run.batch.max_tokens
    return tuple(
        encoding._replace(tokens=min(tokens, longest * _tower_tokens_per_token(model, tower)))
        if tower.patch_size and tokens
        else encoding
        for tower, encoding in zip(model.arch.towers, encodings, strict=True)
    )


def _usual_share(run: RunSettings, published: Sequence[PublishedFacts]) -> float:
    """Return the pixels of a usual image of the data sets, divided by `image_max_pixels`; 1 if the images' size is not
    published. The result is at most 1, because LLaMA-Factory scales large images down but never up (data/mm_plugin.py,
    _preprocess_image)."""
    if not published or not all("pixels" in entry for entry in published):
        return 1.0
    pixels = max(float(entry["pixels"]) for entry in published)
    return min(1.0, pixels / max(run.args.number("image_max_pixels"), 1.0))


def _tokens_of_media(run: RunSettings, model: Model, tower: Tower, media: Mapping[str, int]) -> int:
    """Return the most tower tokens of a sample. `media`: the sample's numbers of images, videos and audios."""
    if not tower.patch_size:
        return int(max(media["audios"], 1) * tower.fixed_tokens)
    if not tower.fixed_tokens:
        return _patch_tokens(run, tower, media)
    tiles = tower.max_tiles or _tiles_of_image(run, model)
    pieces = max(media["images"], 1) * tiles + media["videos"] * int(run.args.number("video_maxlen"))
    return int(pieces * tower.fixed_tokens)


def _patch_tokens(run: RunSettings, tower: Tower, media: Mapping[str, int]) -> int:
    """Return the tower tokens of a sample whose images have the most pixels, and whose videos have the most frames and
    pixels, that the recipe allows. `media`: the sample's numbers of images and videos. Without either, the tokens of
    the blank image that LLaMA-Factory puts into such a batch (data/collator.py)."""
    area = tower.patch_size**2
    if not media["images"] and not media["videos"]:  # a white picture, by which all devices run it (data/collator.py)
        return tower.min_pixels // area
    pictures = media["images"] * int(run.args.number("image_max_pixels"))
    films = media["videos"] * int(run.args.number("video_maxlen")) * int(run.args.number("video_max_pixels"))
    return -(-pictures // area) + -(-films // (area * tower.temporal_patch_size))


def _tiles_of_image(run: RunSettings, model: Model) -> int:
    """Return the most tiles that an image is cut into. The scaled-down image that accompanies the tiles counts as a
    tile."""
    tiles = tables.yaml_table("composites")[model.kind].get("tiles", 1)
    if isinstance(tiles, list):
        key, pieces = tiles
        return int(pieces) if run.args.flag(key) else 1
    return int(tiles)
