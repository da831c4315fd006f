"""What a run asks of a model's towers: how much each reads of a sample, and what of it trains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from validator.job.datasets import Dataset
from validator.job.quantization import quantization
from validator.job.settings import Settings
from validator.job.task import Task
from validator.memory import Encoding, Tower, linear_roles
from validator.tables import data, releases
from validator.tables.models import Model

# What a sample holds where no data are at hand.
_ONE = {"images": 1, "videos": 0, "audios": 1}
_Names = Mapping[str, list[str]]
# An entry of data/sets.yaml.
Published = Mapping[str, Any]


def encodings(settings: Settings, model: Model, datasets: Iterable[Dataset]) -> tuple[Encoding, ...]:
    """One for each tower of the model."""
    number, watched = _media(settings, datasets), _watched(settings, model)
    return tuple(
        trained(settings, model, tower, names)._replace(
            tokens=_tokens(settings, model, tower, number), watched=watched and tower.exposed
        )
        for tower, names in zip(model.arch.towers, model.modules, strict=True)
    )


def forbidden(task: Task, model: Model) -> tuple[str, ...]:
    """Words in the names of parameters that the recipe freezes (model_utils/visual.py, get_forbidden_modules)."""
    asked = {"freeze_vision_tower": "vision_model_keys", "freeze_multi_modal_projector": "projector_keys",
             "freeze_language_model": "language_model_keys"}  # fmt: skip
    keys = _keys(model)
    return tuple(word for key, part in asked.items() if task.flag(key) for word in keys.get(part, ()))


def trains_decoder(task: Task, model: Model) -> bool:
    """Whether anything of the decoder trains."""
    place = data.listing("composites")[model.kind].get("decoder", "model.language_model") if model.modules else ""
    words = _keys(model).get("language_model_keys", ())
    return not (task.flag("freeze_language_model") and any(word in place for word in words))


def _keys(model: Model) -> _Names:
    """Empty for a type whose parts LLaMA-Factory does not know: it freezes none of them."""
    entry = data.listing("composites")[model.kind] if model.modules else {}
    known: Mapping[str, _Names] = data.table("families")["composites"]
    return known.get(entry.get("registered", model.kind), {})


def _watched(settings: Settings, model: Model) -> bool:
    """Whether gradients run through frozen towers, too. Where layers are checkpointed and nothing is quantized, peft
    asks for gradients of what the embeddings give (peft_model.py, prepare_model_for_gradient_checkpointing); since
    transformers 5 that means those of the towers as well (modeling_utils.py, enable_input_require_grads), and
    LLaMA-Factory recomputes no layer that has nothing to train."""
    plain = quantization(settings, model).weights == 0 and settings.own_checkpointing != "off"
    return settings.adapts and plain and releases.holds(settings.header, "transformers 5.0.0")


def trained(task: Task, model: Model, tower: Tower, names: Mapping[str, str]) -> Encoding:
    """What trains of a tower, whose linear modules have these names."""
    if task.adapts:
        return Encoding(targets=_adapted(task, model, names))
    registered = bool(_keys(model))
    words = _keys(model).get("vision_model_keys", ())
    thawed = not (task.flag("freeze_vision_tower") and any(word in name for name in names for word in words))
    projector = not (registered and task.flag("freeze_multi_modal_projector"))
    if task.method == "freeze":
        return Encoding(
            projector=projector and registered, trainable_layers=_layers(task, model, tower) if thawed else 0
        )
    return Encoding(trains=thawed, projector=projector, loose=True)


def _layers(task: Task, model: Model, tower: Tower) -> int:
    """Layers of the tower whose numbers are those of trained layers of the decoder (model/adapter.py)."""
    asked, layers = int(task.number("freeze_trainable_layers")), model.arch.layers
    first = max(layers - asked, 0) if asked > 0 else 0
    last = layers if asked > 0 else min(-asked, layers)
    return max(min(last, tower.layers) - first, 0)


def _adapted(task: Task, model: Model, names: Mapping[str, str]) -> tuple[str, ...]:
    """Roles of the adapted linear modules. `all` means the last parts of the names of linear modules that are neither
    in the projector nor in a frozen tower; whatever has such a word anywhere in its name is adapted, unless it is
    frozen (model_utils/misc.py, find_all_linear_modules; model_utils/visual.py, patch_target_modules)."""
    keys = _keys(model)
    targets = tuple(_all(task, model, keys)) if task.targets_all else task.words("lora_target")
    spared = (*forbidden(task, model), *keys.get("lora_conflict_keys", ()))
    return tuple(dict.fromkeys(
        role for name, role in names.items()
        if any(target in name for target in targets) and not any(word in name for word in spared)
    ))  # fmt: skip


def _all(task: Task, model: Model, keys: _Names) -> Iterator[str]:
    left = [
        *keys.get("projector_keys", ()),
        *(keys.get("vision_model_keys", ()) if task.flag("freeze_vision_tower") else ()),
    ]
    yield from sorted(model.family.names(linear_roles(model.arch)))
    for names in model.modules:
        yield from (name.rpartition(".")[2] for name in names if not any(word in name for word in left))


# How much is read.

# Data sets of LLaMA-Factory's own registry whose samples have one picture each.
_PICTURED = frozenset(
    {"llava_1k_en", "llava_1k_zh", "llava_150k_en", "llava_150k_zh", "mllm_demo", "pokemon_cap", "rlhf_v"}
)


def crowded(
    settings: Settings, model: Model, datasets: Iterable[Dataset], given: tuple[Encoding, ...]
) -> tuple[Encoding, ...]:
    """The encodings where a sample has as many pictures as its longest length admits; as given where their number is
    known: from rows at hand, from the registry's columns, or by the name of a published data set."""
    datasets = tuple(datasets)
    crossed = data.listing("composites")[model.kind].get("crossed", False)
    if crossed or _media(settings, datasets) is not None or _within(settings, _plain(datasets) | _PICTURED):
        return given
    return tuple(
        encoding._replace(tokens=settings.longest * _merged(model, tower)) if tower.side else encoding
        for tower, encoding in zip(model.arch.towers, given, strict=True)
    )


def _plain(datasets: Iterable[Dataset]) -> set[str]:
    """Names of those whose columns hold no pictures, films or sounds."""
    return {one.name for one in datasets if not (one.pictured or one.mapping.get("audios"))}


def _within(task: Task, names: Set[str]) -> bool:
    """Whether the recipe names data sets, and all of them are among these."""
    named = set(task.words("dataset"))
    return bool(named) and named <= names


def _media(task: Task, datasets: Iterable[Dataset]) -> dict[str, int] | None:
    """The most pictures, films and sounds that one of the first rows has. Where no row is at hand, none if no data set
    has a column for them, else None."""
    datasets = tuple(datasets)
    rows = [(one, row) for one in datasets if one.rows for row in one.rows.head]
    if rows:
        return {part: max(_count(one, row, part) for one, row in rows) for part in _ONE}
    return dict.fromkeys(_ONE, 0) if _within(task, _plain(datasets)) else None


def _count(dataset: Dataset, row: Mapping[str, Any], part: str) -> int:
    value = row.get(dataset.named(part))
    return len(value) if isinstance(value, list) else int(value is not None)


def _tokens(task: Settings, model: Model, tower: Tower, number: dict[str, int] | None) -> int:
    """Tower tokens of a sample, no more than `cutoff_len` admits: a sample that is cut inside a picture cannot be
    trained. One picture, or one sound, where the data are not at hand; a packed sequence may hold nothing else."""
    given, most = number or _ONE, _admitted(task, model, tower)
    if not any(given.values()):  # a white picture or silence in each batch, so that all devices run it
        return -(-_read(task, model, tower, given) // task.micro_batch)
    return most if task.packs else min(_read(task, model, tower, given), most)


def _admitted(task: Task, model: Model, tower: Tower) -> int:
    """Tower tokens that a sequence of `cutoff_len` tokens holds at most."""
    return max(int(task.number("cutoff_len")), 1) * _merged(model, tower)


def _merged(model: Model, tower: Tower) -> int:
    """Tower tokens that become one token of the decoder, by the tower's own merging or by the projector's."""
    pooled: int = data.listing("composites")[model.kind].get("pooled", 1)
    return tower.merge * pooled


def longest(task: Task, model: Model, datasets: Iterable[Dataset]) -> int:
    """Tokens of the decoder that the pictures and films of the fullest of the first rows become at most; those of one
    picture where no row is at hand."""
    given = _media(task, datasets) or _ONE
    if not given["images"] and not given["videos"]:
        return 0
    read = (_read(task, model, tower, given) // _merged(model, tower) for tower in model.arch.towers if tower.side)
    return max(read, default=0)


def usual(task: Task, model: Model, datasets: Iterable[Dataset], published: Sequence[Published]) -> int:
    """Decoder tokens of a sample's pictures, if these have the size that is published for the data sets
    (`Resolved.published`)."""
    return math.ceil(_usual_share(task, published) * longest(task, model, datasets))


def as_published(
    task: Task, model: Model, published: Sequence[Published], given: tuple[Encoding, ...]
) -> tuple[Encoding, ...]:
    """Return the encodings for pictures of the size that is published for the data sets (`Resolved.published`)."""
    share = _usual_share(task, published)
    return tuple(
        encoding._replace(tokens=math.ceil(share * encoding.tokens)) if tower.side and not tower.whole else encoding
        for tower, encoding in zip(model.arch.towers, given, strict=True)
    )


def _usual_share(task: Task, published: Sequence[Published]) -> float:
    """Pixels of the data sets' usual picture as a share of `image_max_pixels`, at most 1, because LLaMA-Factory only
    scales down (data/mm_plugin.py, _preprocess_image); 1 if the size is not known."""
    if not published or not all("pixels" in entry for entry in published):
        return 1.0
    pixels = max(float(entry["pixels"]) for entry in published)
    return min(1.0, pixels / max(task.number("image_max_pixels"), 1.0))


def _read(task: Task, model: Model, tower: Tower, given: Mapping[str, int]) -> int:
    """Tower tokens of so many pictures, films and sounds, at most."""
    if not tower.side:
        return int(max(given["audios"], 1) * tower.whole)
    if not tower.whole:
        return _patches(task, tower, given)
    tiles = tower.tiles or _pieces(task, model)
    pieces = max(given["images"], 1) * tiles + given["videos"] * int(task.number("video_maxlen"))
    return int(pieces * tower.whole)


def _patches(task: Task, tower: Tower, given: Mapping[str, int]) -> int:
    """Of pictures as large as the recipe lets them be, and of the longest films."""
    area = tower.side**2
    if not given["images"] and not given["videos"]:  # a white picture, by which all devices run it (data/collator.py)
        return tower.smallest // area
    pictures = given["images"] * int(task.number("image_max_pixels"))
    films = given["videos"] * int(task.number("video_maxlen")) * int(task.number("video_max_pixels"))
    return -(-pictures // area) + -(-films // (area * tower.frames))


def _pieces(task: Task, model: Model) -> int:
    """Into how many a picture is cut at most, the whole of it counted."""
    tiles = data.listing("composites")[model.kind].get("tiles", 1)
    if isinstance(tiles, list):
        key, pieces = tiles
        return int(pieces) if task.flag(key) else 1
    return int(tiles)
