"""Multimodal models: config.json -> the decoder, and the vision and audio towers before it (data/composites.yaml,
data/towers.yaml)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from validator.errors import RecipeError
from validator.knowledge.config_fields import Config, checked_size, default_head_dim
from validator.knowledge.tables import yaml_table
from validator.physics import Tower
from validator.physics.architecture import Linear

_FEED_FORWARD_ROLES = ("gate", "up", "down")
# Lists of layers, of which only the number counts.
_LAYER_INDEXES = ("deepstack_visual_indexes",)
# What a config.json says of a model as a whole.
_WHOLE_MODEL_FIELDS = ("dtype", "torch_dtype", "quantization_config")


def is_omni_type(kind: str) -> bool:
    """True if models of this type are omni models: a thinker, which alone is trained, beside what speaks."""
    return kind in yaml_table("composites") and bool(yaml_table("composites")[kind].get("thinker"))


def trained_config(config: Config) -> Config:
    """Return the part of a config.json that LLaMA-Factory trains: the thinker of an omni model, else all of it
    (model/loader.py)."""
    kind = str(config.get("model_type"))
    thinker = _optional_part(config, "thinker_config")
    if not is_omni_type(kind) or thinker is None:
        return config
    whole_model = {name: config[name] for name in _WHOLE_MODEL_FIELDS if name in config}
    return {**whole_model, **thinker, "model_type": kind}


def decoder_config(config: Config) -> Config:
    """Return the decoder's own config.json. Older files keep its fields beside the others', newer ones in
    `text_config`; some leave out the class's defaults."""
    entry = _composite_entry(config)
    text_config = _optional_part(config, "text_config") or {}
    fields = {**config, **text_config}
    default, own_kind = entry["text"], str(config["model_type"])
    kind = str(text_config.get("model_type", own_kind))
    has_other_decoder = kind != default["model_type"] and not kind.startswith(own_kind)
    tied = config.get("tie_word_embeddings", fields.get("tie_word_embeddings", entry["tied"]))
    if has_other_decoder:
        return {**fields, "model_type": kind, "tie_word_embeddings": tied}
    return {**default, **fields, "model_type": default["model_type"], "tie_word_embeddings": tied}


def read_towers(config: Config, text: int) -> tuple[Tower, ...]:
    """Return the towers of a model whose decoder is `text` wide, in the order of the table."""
    entry, layers = _composite_entry(config), config.get("vision_feature_layer")
    extra_fields = {
        "text": text,
        "features": len(layers) if isinstance(layers, list) else 1,
        "tiles": _max_tiles(config),
    }
    extra_fields |= {name: config.get(name, usual) for name, usual in entry.get("defaults", {}).items()}
    return tuple(
        _read_tower(entry, part, _tower_fields(config, entry, part), extra_fields)
        for part in _tower_parts(config, entry)
    )


def _max_tiles(config: Config) -> int:
    """Return the most tiles of a picture, with the whole picture, if config.json lists their grids; else 0."""
    grids, vision = config.get("image_grid_pinpoints"), config.get("vision_config")
    side = vision.get("image_size") if isinstance(vision, Mapping) else None
    if side is None or not isinstance(grids, list):
        return 0
    side, name = checked_size("image_size", side), "image_grid_pinpoints"
    if wrong := next((grid for grid in grids if not isinstance(grid, list) or len(grid) != 2), None):
        raise RecipeError(f"config.json: `{name}` holds {wrong!r}, not a height and a width")
    return 1 + max((prod(-(-checked_size(name, length) // side) for length in grid) for grid in grids), default=0)


def tower_modules(config: Config) -> tuple[Mapping[str, str], ...]:
    """Return for each tower the linear modules of it and of its projector: full name in the model -> role in its
    shapes."""
    entry = _composite_entry(config)
    return tuple(
        dict(_module_roles(entry, part, _tower_fields(config, entry, part))) for part in _tower_parts(config, entry)
    )


def _tower_parts(config: Config, entry: Config) -> Iterator[str]:
    """Return the towers of the table that a model has."""
    absent = [part for part in entry.get("optional", ()) if _optional_part(config, part) is None]
    return (part for part in entry["towers"] if part not in absent)


def _tower_fields(config: Config, entry: Config, part: str) -> Config:
    """Return the fields of config.json about a tower. Two towers may share a part."""
    return _optional_part(config, entry.get("shares", {}).get(part, part)) or {}


def _module_roles(entry: Config, part: str, given: Config) -> Iterator[tuple[str, str]]:
    tower, at = _tower_entry(entry, part, given), entry["at"][part]
    yield from ((f"{at}.{tower['at']}.{name}", role) for name, role in tower["linears"].items())
    yield from ((f"{at}.{name}", name) for name in tower.get("outside", ()))
    yield from ((f"{entry['projector_at'][part]}.{name}", name) for name in entry["projector"][part])


def _optional_part(config: Config, name: str) -> Config | None:
    """Return a part of a config.json; None if it is absent or null, so that the class's defaults hold. Raises
    RecipeError if it is no mapping."""
    part = config.get(name)
    if part is not None and not isinstance(part, Mapping):
        raise RecipeError(f"config.json: `{name}` is {part!r}, not a mapping")
    return part


def _composite_entry(config: Config) -> Any:
    entry = yaml_table("composites")[str(config.get("model_type"))]
    return _with_conditional_parts(entry, {**entry.get("defaults", {}), **config})


def _is_field_set(fields: Config, condition: str) -> bool:
    """True if config.json sets a field, or sets it to a value."""
    name, _, value = condition.partition(".")
    return str(fields.get(name)) == value if value else bool(fields.get(name))


def _tower_entry(entry: Config, part: str, given: Any) -> Any:
    fields = given if isinstance(given, Mapping) else {}
    kind = str(fields.get("model_type"))
    known = kind in yaml_table("towers") and not entry.get("own_towers")
    tower = yaml_table("towers")[kind if known else entry["towers"][part]]
    return _with_conditional_parts(tower, {**tower["defaults"], **fields})


def _with_conditional_parts(entry: Config, fields: Config) -> Config:
    """Return an entry with the parts that it has only if fields of config.json (`where`) are true, or have a value."""
    additions = [added for condition, added in entry.get("where", {}).items() if _is_field_set(fields, condition)]
    return {**entry, **{key: {**entry.get(key, {}), **part} for added in additions for key, part in added.items()}}


class _ShapeSizes:
    """Sizes that stand for the words of a shape, from one part of a config.json."""

    def __init__(self, tower: Config, given: Any, beside: Mapping[str, int]) -> None:
        self._fields = {**tower["defaults"], **(given if isinstance(given, Mapping) else {}), **beside}

    def __call__(self, shape: Any) -> int:
        """Return the elements of a shape, or one size."""
        return prod(self._size(word) for word in (shape if isinstance(shape, list) else [shape]))

    def has(self, condition: str) -> bool:
        """True if config.json sets a field, or sets it to a value."""
        return condition == "always" or _is_field_set(self._fields, condition)

    def _size(self, word: str | int) -> int:
        if word == "patches":
            return self._patches()
        value = self._fields.get(word) if isinstance(word, str) else word
        if isinstance(value, list) and word in _LAYER_INDEXES:
            value = len(value)
        elif isinstance(value, list) and len(set(map(str, value))) == 1:
            value = value[0]
        return checked_size(str(word), value)

    def _patches(self) -> int:
        """Return the number of patches of an image, over both of its sides."""
        sides = zip(self._sides("image_size"), self._sides("patch_size"), strict=True)
        return checked_size("patches", prod(image // patch for image, patch in sides))

    def _sides(self, word: str) -> list[int]:
        value = self._fields.get(word)
        if isinstance(value, list) and len(value) == 2:
            return [checked_size(word, each) for each in value]
        return [self._size(word)] * 2


def _read_tower(entry: Config, part: str, given: Any, beside: Mapping[str, int]) -> Tower:
    tower = _tower_entry(entry, part, given)
    size = _ShapeSizes(tower, given, beside)
    named = tower["sizes"]
    hidden, layers, width = size(named["hidden"]), size(named["layers"]), size(named["width"])
    layers += size(tower["more_layers"]) if "more_layers" in tower else 0
    linears = tuple(_layer_linear(role, hidden, width) for role in tower["linears"].values())
    biased = [role for role, condition in tower["biased"].items() if condition is True or size.has(condition)]
    biases = sum(linear.outputs for linear in linears if linear.role in biased)
    vectors = sum(number for condition, number in tower["vectors"].items() if size.has(condition))
    heads = size(named["heads"])
    return Tower(
        hidden=hidden,
        layers=layers,
        heads=heads,
        head_dim=default_head_dim(hidden, heads),
        width=width,
        linears=linears,
        vectors=hidden * vectors + biases + (2 * default_head_dim(hidden, heads) if tower.get("head_norms") else 0),
        gated="gate" in tower["linears"].values(),
        quick_gelu=size.has("hidden_act.quick_gelu"),
        rms=tower.get("rms", False),
        fp32=tower.get("fp32", "never"),
        outside=_named_linears(tower.get("outside", {}), size, size(tower.get("times", 1))),
        others=_total_elements(tower["others"], size),
        never_frozen=_total_elements(tower.get("loose", {}), size)
        + _total_elements(entry.get("loose", {}).get(part, {}), size),
        never_frozen_first=bool(tower.get("loose")),
        projector=_named_linears(entry["projector"][part], size),
        projector_others=_total_elements(entry["further"][part], size),
        merge=size(named["merge"]) ** 2,
        has_input_embeddings=tower.get("exposed", True),
        input_values=size(tower["input"]),
        patch_size=size(tower["side"]) if "side" in tower else 0,
        min_pixels=tower.get("smallest", 0) ** 2,
        temporal_patch_size=size(tower.get("frames", 1)),
        fixed_tokens=sum(size(word) for word in tower.get("whole", ())),
        max_tiles=beside["tiles"],
        output_hidden_states=tower.get("collects", False),
        qk_norm=tower.get("head_norms", False),
        own_rotary_tables=tower.get("angles", False),
    )


def _layer_linear(role: str, hidden: int, width: int) -> Linear:
    """Return a linear module of a layer by its role."""
    if role == "qkv":
        return Linear(role, hidden, 3 * hidden)
    if role == "double":  # a half of it is the other's gate
        return Linear(role, hidden, 2 * hidden)
    inputs, outputs = (width, hidden) if role == "down" else (hidden, width if role in _FEED_FORWARD_ROLES else hidden)
    return Linear(role, inputs, outputs)


def _named_linears(named: Config, size: _ShapeSizes, number: int = 1) -> tuple[Linear, ...]:
    return tuple(Linear(name, size(inputs), size(outputs), number) for name, (inputs, outputs) in named.items())


def _total_elements(named: Config, size: _ShapeSizes) -> int:
    return sum(size(shape) for shape in named.values())
