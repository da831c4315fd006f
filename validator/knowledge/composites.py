"""Reads the config.json of multimodal models: the decoder, and the vision and audio towers before it
(data/composites.yaml, data/towers.yaml)."""

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
    """True if models of this type are omni models. An omni model has a thinker, the only part that LLaMA-Factory
    trains, and parts that produce speech."""
    return kind in yaml_table("composites") and bool(yaml_table("composites")[kind].get("thinker"))


def trained_config(config: Config) -> Config:
    """Return the part of a config.json that LLaMA-Factory trains: the thinker of an omni model, or the whole
    config.json of other models (model/loader.py)."""
    kind = str(config.get("model_type"))
    thinker = _optional_part(config, "thinker_config")
    if not is_omni_type(kind) or thinker is None:
        return config
    whole_model = {name: config[name] for name in _WHOLE_MODEL_FIELDS if name in config}
    return {**whole_model, **thinker, "model_type": kind}


def decoder_config(config: Config) -> Config:
    """Return the config.json fields of a multimodal model's decoder. Older files keep these fields beside the others,
    newer files keep them in `text_config`. Fields that a file leaves out get the defaults of the model's class."""
    entry = _composite_entry(config)
    text_config = _optional_part(config, "text_config") or {}
    fields = {**config, **text_config}
    default, own_kind = entry["text"], str(config["model_type"])
    kind = str(text_config.get("model_type", own_kind))
    has_other_decoder = kind != default["model_type"] and not kind.startswith(own_kind)
    is_tied = config.get("tie_word_embeddings", fields.get("tie_word_embeddings", entry["tied"]))
    if has_other_decoder:
        return {**fields, "model_type": kind, "tie_word_embeddings": is_tied}
    return {**default, **fields, "model_type": default["model_type"], "tie_word_embeddings": is_tied}


def read_towers(config: Config, text: int) -> tuple[Tower, ...]:
    """Return the towers of a multimodal model, in the order of data/composites.yaml. `text`: hidden size of the
    decoder."""
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
    """Return the largest number of tiles for one image, including the tile that shows the whole image; 0 if config.json
    lists no tile grids. Raises RecipeError if a grid is not a height and a width."""
    grids, vision = config.get("image_grid_pinpoints"), config.get("vision_config")
    side = vision.get("image_size") if isinstance(vision, Mapping) else None
    if side is None or not isinstance(grids, list):
        return 0
    side, name = checked_size("image_size", side), "image_grid_pinpoints"
    if malformed_grid := next((grid for grid in grids if not isinstance(grid, list) or len(grid) != 2), None):
        raise RecipeError(f"config.json: `{name}` holds {malformed_grid!r}, not a height and a width")
    return 1 + max((prod(-(-checked_size(name, length) // side) for length in grid) for grid in grids), default=0)


def tower_modules(config: Config) -> tuple[Mapping[str, str], ...]:
    """Return for each tower the linear modules of the tower and its projector, as a mapping: full name in the model ->
    role in the tower's shapes. N stands for the number of a layer, or of one of several modules of the same shape."""
    entry = _composite_entry(config)
    return tuple(
        dict(_module_roles(entry, part, _tower_fields(config, entry, part))) for part in _tower_parts(config, entry)
    )


def _tower_parts(config: Config, entry: Config) -> Iterator[str]:
    """Return the names of the towers that this model has. `entry` (data/composites.yaml) lists the towers of the model
    type; optional towers are left out if config.json has no part for them."""
    absent = [part for part in entry.get("optional", ()) if _optional_part(config, part) is None]
    return (part for part in entry["towers"] if part not in absent)


def _tower_fields(config: Config, entry: Config, part: str) -> Config:
    """Return the config.json fields of the tower that data/composites.yaml calls `part`; empty if config.json has no
    such fields. Two towers may read the same part of config.json."""
    return _optional_part(config, entry.get("shares", {}).get(part, part)) or {}


def _module_roles(entry: Config, part: str, fields: Config) -> Iterator[tuple[str, str]]:
    tower, at = _tower_entry(entry, part, fields), entry["at"][part]
    yield from ((f"{at}.{tower['at']}.N.{name}", role) for name, role in tower["linears"].items())
    for name in tower.get("outside", ()):
        place, _, last = name.rpartition(".")
        yield f"{at}.{place}.N.{last}" if "times" in tower else f"{at}.{name}", name
    yield from ((f"{entry['projector_at'][part]}.{name}", name) for name in entry["projector"][part])


def _optional_part(config: Config, name: str) -> Config | None:
    """Return the part `name` of a config.json. None if the part is absent or null, so that the defaults of the model's
    class hold. Raises RecipeError if the part is not a mapping."""
    part = config.get(name)
    if part is not None and not isinstance(part, Mapping):
        raise RecipeError(f"config.json: `{name}` is {part!r}, not a mapping")
    return part


def _composite_entry(config: Config) -> Any:
    entry = yaml_table("composites")[str(config.get("model_type"))]
    return _with_conditional_parts(entry, {**entry.get("defaults", {}), **config})


def _is_field_set(fields: Config, condition: str) -> bool:
    """True if `fields` of config.json meet a condition of data/composites.yaml or data/towers.yaml. The condition
    `FIELD` is met if the field has a true value, the condition `FIELD.VALUE` if the field has this value."""
    name, _, value = condition.partition(".")
    return str(fields.get(name)) == value if value else bool(fields.get(name))


def _tower_entry(entry: Config, part: str, config: Any) -> Any:
    fields = config if isinstance(config, Mapping) else {}
    kind = str(fields.get("model_type"))
    is_known = kind in yaml_table("towers") and not entry.get("own_towers")
    tower = yaml_table("towers")[kind if is_known else entry["towers"][part]]
    return _with_conditional_parts(tower, {**tower["defaults"], **fields})


def _with_conditional_parts(entry: Config, fields: Config) -> Config:
    """Return a table entry, with the additions under `where` whose condition the config.json fields meet. An addition
    is made to a part of the entry, such as its linear modules."""
    additions = [addition for condition, addition in entry.get("where", {}).items() if _is_field_set(fields, condition)]
    return {
        **entry,
        **{key: {**entry.get(key, {}), **part} for addition in additions for key, part in addition.items()},
    }


class _ShapeSizes:
    """Computes the sizes of a tower. The shapes in data/towers.yaml consist of words, and a word is the name of a field
    in the tower's part of config.json."""

    def __init__(self, tower: Config, fields: Any, model_sizes: Mapping[str, int]) -> None:
        self._fields = {**tower["defaults"], **(fields if isinstance(fields, Mapping) else {}), **model_sizes}

    def __call__(self, shape: Any) -> int:
        """Return the number of elements of a shape (a list of words or numbers), or the size that a single word or
        number stands for."""
        return prod(self._size(word) for word in (shape if isinstance(shape, list) else [shape]))

    def has(self, condition: str) -> bool:
        """True if the tower's config.json fields meet a condition of data/towers.yaml. The condition `always` is met
        for every model, `FIELD` if the field has a true value, `FIELD.VALUE` if the field has this value."""
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
        """Return the number of patches of an image: patches along its height x patches along its width."""
        sides = zip(self._sides("image_size"), self._sides("patch_size"), strict=True)
        return checked_size("patches", prod(image // patch for image, patch in sides))

    def _sides(self, word: str) -> list[int]:
        value = self._fields.get(word)
        if isinstance(value, list) and len(value) == 2:
            return [checked_size(word, each) for each in value]
        return [self._size(word)] * 2


def _read_tower(entry: Config, part: str, fields: Any, model_sizes: Mapping[str, int]) -> Tower:
    tower = _tower_entry(entry, part, fields)
    size = _ShapeSizes(tower, fields, model_sizes)
    sizes = tower["sizes"]
    hidden, layers, width = size(sizes["hidden"]), size(sizes["layers"]), size(sizes["width"])
    layers += size(tower["more_layers"]) if "more_layers" in tower else 0
    linears = tuple(_layer_linear(role, hidden, width) for role in tower["linears"].values())
    biased_roles = [role for role, condition in tower["biased"].items() if condition is True or size.has(condition)]
    biases = sum(linear.outputs for linear in linears if linear.role in biased_roles)
    vectors = sum(number for condition, number in tower["vectors"].items() if size.has(condition))
    heads = size(sizes["heads"])
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
        merge=size(sizes["merge"]) ** 2,
        has_input_embeddings=tower.get("exposed", True),
        input_values=size(tower["input"]),
        patch_size=size(tower["side"]) if "side" in tower else 0,
        min_pixels=tower.get("smallest", 0) ** 2,
        temporal_patch_size=size(tower.get("frames", 1)),
        fixed_tokens=sum(size(word) for word in tower.get("whole", ())),
        max_tiles=model_sizes["tiles"],
        output_hidden_states=tower.get("collects", False),
        qk_norm=tower.get("head_norms", False),
        own_rotary_tables=tower.get("angles", False),
    )


def _layer_linear(role: str, hidden: int, width: int) -> Linear:
    """Return the linear module that has `role` in one layer of a tower, with its inputs and outputs. `hidden`: hidden
    size of the tower; `width`: width of its feed-forward block."""
    if role == "qkv":
        return Linear(role, hidden, 3 * hidden)
    if role == "double":  # a half of it is the other's gate
        return Linear(role, hidden, 2 * hidden)
    inputs, outputs = (width, hidden) if role == "down" else (hidden, width if role in _FEED_FORWARD_ROLES else hidden)
    return Linear(role, inputs, outputs)


def _named_linears(shapes: Config, size: _ShapeSizes, number: int = 1) -> tuple[Linear, ...]:
    return tuple(Linear(name, size(inputs), size(outputs), number) for name, (inputs, outputs) in shapes.items())


def _total_elements(shapes: Config, size: _ShapeSizes) -> int:
    return sum(size(shape) for shape in shapes.values())
