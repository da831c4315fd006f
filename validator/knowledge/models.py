"""Finds models: the models of the catalogue (data/models.yaml), and local folders with a config.json. Names match
leniently, and for an unknown name a known one is suggested. If the tables lack a model's type, the model is described
by the layers that its class holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import composites, families, hub_caches, unknown_models
from validator.knowledge.architectures import read_architecture
from validator.knowledge.chat_templates import folder_template
from validator.knowledge.config_fields import checked_size, refuse_impossible_numbers
from validator.knowledge.families import Family
from validator.knowledge.tables import yaml_table
from validator.physics import Architecture, AttentionShape, CountedLayers, FeedForwardShape, parameter_count
from validator.recipe import safe_read
from validator.recipe.safe_read import read_json

# What types call the number of positions: most, GPT-2 and GPT-J, ChatGLM, MPT.
_POSITION_FIELDS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
_RELEASED = re.compile(r"\n  released: (\S+)")
_REPLACES = re.compile(r"\n  replaces: \[(.*)\]")
_BYTES_OF_DTYPE = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}


class Model(NamedTuple):
    """A model: its shapes, and the facts known about it from its name, its folder and its chat template."""

    id: str | None  # of the catalogue; None for a local folder
    name: str
    short: str | None
    arch: Architecture
    parameters: int
    kind: str  # model_type of its config.json
    dtype_bytes: float = 2.0
    template: str | None = None  # of LLaMA-Factory for this very name; None: none is registered
    base: bool = False
    positions: int | None = None
    quantized: str | None = None  # the method of a checkpoint that is quantized already
    quantized_bits: int = 0
    remote_code: bool = False
    hub: tuple[str, ...] = ()
    identified_from: str = ""  # the run or recipe that identifies the model; for a folder, the reason of its template
    speaks: frozenset[str] = frozenset()  # templates whose turns the folder's own chat template writes
    cached: str = ""  # the only hub whose cache holds this name
    # Why this model stands for the one that the recipe names: "name": words in the name; "base": `base:` of the header
    # block; "run": the run of another recipe, `identified_from`, trains it; "recipe": the recipe's own name
    identified_by: Literal["", "name", "base", "run", "recipe"] = ""
    decoder: str = ""  # model_type of the decoder behind towers
    modules: tuple[Mapping[str, str], ...] = ()  # linear modules of each tower: full name -> role
    unlisted: Family | None = None  # the family of a type that the table lacks
    own_class: bool = False  # config.json names a class of the folder's own for a type that transformers has one for

    @property
    def family(self) -> Family:
        """The facts about the model's type, such as how it differs from the usual decoder."""
        if self.unlisted:
            return self.unlisted
        return (
            families.composite_family(self.kind, self.decoder) if self.decoder else families.family_of_type(self.kind)
        )

    @property
    def refused(self) -> frozenset[str]:
        """Names of the linear modules on which PEFT accepts no adapter. Empty if the model type can have fused experts,
        but this model has no experts."""
        return frozenset() if self.family.fused_experts and not self.arch.ffn.experts else self.family.peft_refuses

    @property
    def reads_images(self) -> bool:
        """True if the model reads images."""
        return any(tower.patch_size for tower in self.arch.towers)

    @property
    def billions(self) -> float:
        return self.parameters / 1e9

    @property
    def size(self) -> str:
        """Number of parameters as people write it, such as `7.62B` or `0.17M`."""
        return f"{self.billions:.3g}B" if self.billions >= 0.01 else f"{self.parameters / 1e6:.2g}M"


def model_ids() -> list[str]:
    """Return the ids of the models in data/models.yaml whose shapes are known, in the file's order. For the other
    models the file has only names and templates."""
    return [key for key, entry in yaml_table("models").items() if families.has_known_shapes(entry["config"])]


def offered_models() -> list[str]:
    """Return the ids of the text models that have a short form. The planner and the shell offer these models; all other
    models must be named in full."""
    models = yaml_table("models")
    unnamed = {*models.mention("short: null"), *models.mention("vision_config:"), *models.mention("audio_config:")}
    return [key for key in models if key not in unnamed]


@lru_cache(maxsize=1)
def release_months() -> dict[str, str]:
    """Return the month in which each model was first published, such as 2025-04, by the model's id. The entries of
    data/models.yaml are not parsed for this."""
    return dict(yaml_table("models").matching(_RELEASED))


@lru_cache(maxsize=1)
def successor_ids() -> dict[str, str]:
    """Return the id of the newer model that replaces an older model, by the older model's id. The entries of
    data/models.yaml are not parsed for this."""
    return {older: key for key, replaced in yaml_table("models").matching(_REPLACES) for older in replaced.split(", ")}


# Starts of the licences of each owner's models that Hugging Face asks to be accepted before it gives the weights
# (`extra_gated` fields of their cards, such as that of google/gemma-3-27b-pt). Others may be gated, too.
_GATED_LICENCES = {"meta-llama": ("llama",), "google": ("gemma",)}


def gated_licence(name: str) -> str:
    """Return the licence that a Hugging Face account must have accepted to download the model of this hub name; empty
    if none is known."""
    model = _catalogue_model(name)
    licence = str(yaml_table("models")[model.id]["licence"]) if model and model.id else ""
    return licence if licence.startswith(_GATED_LICENCES.get(name.partition("/")[0], ("-",))) else ""


def find_model(name: str, revision: str = "main", cache_dir: str | None = None) -> Model:
    """Return the model that a name stands for: a hub name, a short form for file names (`qwen32b`), an id, or a local
    folder. Names that the catalogue lacks are searched in the local hub caches, at `revision` and in the recipe's
    `cache_dir`. Raises RecipeError if the model is not known."""
    if model := find_known_model(name, revision, cache_dir):
        return model
    raise RecipeError(unknown_models.unknown_model_message(name))


def find_known_model(name: str, revision: str = "main", cache_dir: str | None = None) -> Model | None:
    """Return the model as `find_model` does, but None for an unknown name. Raises RecipeError if the config.json of a
    folder cannot be used."""
    if _is_model_folder(Path(name)):
        return _model_in_folder(name, Path(name).absolute())
    if model := _catalogue_model(name):
        return model

    cached = hub_caches.cached_model(name, revision=revision, folder=cache_dir)
    return _model_in_folder(name, cached.folder)._replace(cached=cached.hub) if cached else None


@lru_cache(maxsize=256)
def _catalogue_model(name: str) -> Model | None:
    entry = catalogue_entry(name)
    return _model_of_entry(*entry) if entry else None


@lru_cache(maxsize=256)
def catalogue_entry(name: str) -> tuple[str, dict[str, Any], str] | None:
    """Return (id, entry, hub name) of a model in data/models.yaml by any of its names; None if no entry has the name.
    The model's type need not be known."""
    query = name.strip().lower()
    models = yaml_table("models")
    if query in models:
        return query, models[query], models[query]["hub"][0]
    for key in models.mention(query):
        entry = models[key]
        for hub in [*entry["hub"], *entry["modelscope"]]:
            if hub.lower() == query:
                return key, entry, hub
        shorts = {entry["short"]: entry["hub"][0]}
        shorts |= {fields["short"]: hub for hub, fields in (entry.get("overrides") or {}).items() if "short" in fields}
        if query in shorts:
            return key, entry, shorts[query]
    return None


def find_model_by_any_name(name: str) -> Model:
    """Return the model that is named on the command line: as `find_model` does, or by a hub name without its owner.
    Raises RecipeError if the model is not known; the message has no advice on recipes."""
    query = name.strip().lower()
    hub_lists = (yaml_table("models")[key]["hub"] for key in yaml_table("models").mention(f"/{query}"))
    matches = (hub for hubs in hub_lists for hub in hubs if hub.lower().endswith(f"/{query}"))
    if model := find_known_model(next(matches, name)):
        return model
    raise RecipeError(unknown_models.unknown_asked_model_message(name))


def _is_model_folder(folder: Path) -> bool:
    return safe_read.path_kind(folder / "config.json") == "file"


def _model_of_entry(key: str, entry: dict[str, Any], hub: str) -> Model:
    last_part = hub.rpartition("/")[2]  # the same on ModelScope, mostly
    base = last_part in {name.rpartition("/")[2] for name in entry["base"]}
    overrides: dict[str, dict[str, Any]] = entry.get("overrides") or {}
    override = next((fields for name, fields in overrides.items() if name.rpartition("/")[2] == last_part), {})
    config = {**entry["config"], **{k: v for k, v in override.items() if k not in entry}}
    entry = {**entry, **{k: v for k, v in override.items() if k in entry}}
    model = _model_of_config(hub, config)
    return model._replace(
        id=key,
        short=entry["short"],
        parameters=entry["parameters"],
        dtype_bytes=stored_bytes(entry),
        # LLaMA-Factory registers one for base models, too, where they see or hear.
        template=None if base and not model.arch.towers else entry["template"],
        base=base,
        remote_code=bool(entry.get("remote_code")),
        hub=tuple(entry["hub"]),
    )


@lru_cache(maxsize=256)
def _model_in_folder(name: str, folder: Path) -> Model:
    config = read_config(folder)
    return with_folder_template(_model_of_config(name, config), folder, config)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder. Raises RecipeError if the file cannot be read, is not a mapping, or has no
    `model_type`."""
    try:
        config = read_json(str(folder / "config.json"))
    except RecipeError as err:
        raise RecipeError(f"model folder: {err}") from None
    if not isinstance(config, dict):
        raise RecipeError(f"`{folder / 'config.json'}` is not a mapping")
    if not config.get("model_type"):
        raise RecipeError(f"`{folder / 'config.json'}` has no `model_type`")
    refuse_impossible_numbers(config)
    return config


def with_folder_template(model: Model, folder: Path, config: Mapping[str, Any]) -> Model:
    """Return the model with facts from its folder: the LLaMA-Factory template that the files suggest, and whether the
    model needs Python code from the folder. `config`: the folder's config.json."""
    template = folder_template(folder, config, model.family)
    own_code, auto_map = "auto_map" in config and model.family.layer is None, config.get("auto_map")
    own_class = not own_code and isinstance(auto_map, dict) and any(key.startswith("AutoModel") for key in auto_map)
    return model._replace(
        template=template.name,
        base=template.base,
        identified_from=template.how,
        speaks=template.speaks,
        hub=template.hub,
        remote_code=own_code,
        own_class=own_class,
    )


def _model_of_config(name: str, config: Mapping[str, Any]) -> Model:
    """Return the model that a config.json describes, with or without towers."""
    arch = read_architecture(config)
    if not arch.towers:
        return decoder_model(name, config, arch)
    fields = composites.trained_config(config)
    decoder = composites.decoder_config(fields)
    kind, inner = str(config["model_type"]), str(decoder["model_type"])
    return decoder_model(name, decoder, arch)._replace(
        kind=kind, decoder=inner, modules=composites.tower_modules(fields)
    )


def stored_bytes(config: Mapping[str, Any]) -> float:
    """Return the bytes per element of a model's stored weights, by the dtype in its config.json. Without a dtype the
    weights count as fp32, as in transformers."""
    return _BYTES_OF_DTYPE.get(str(config.get("dtype") or config.get("torch_dtype") or "float32"), 2.0)


def decoder_model(name: str, config: Mapping[str, Any], arch: Architecture) -> Model:
    """Return the model of a decoder, from its config.json (`config`) and from the shapes that were read from this file
    (`arch`)."""
    described = config.get("quantization_config")
    quantization = described if isinstance(described, Mapping) else {}
    method = quantization.get("quant_method")
    return Model(
        id=None,
        name=name,
        short=None,
        arch=arch,
        parameters=parameter_count(arch),
        kind=str(config.get("model_type")),
        dtype_bytes=stored_bytes(config),
        positions=next(
            filter(None, (_positive_field(config, name) for name in _POSITION_FIELDS)), arch.position_rows or None
        ),
        quantized=method if isinstance(method, str) else None,
        quantized_bits=_positive_field(quantization, "bits") or 0,
    )


def _positive_field(config: Mapping[str, Any], name: str) -> int | None:
    """Return the positive whole number in the config.json field `name`; None if the field is missing or has another
    value. For fields that do not decide the model's shapes, so that a bad value is no error."""
    try:
        return checked_size(name, config.get(name))
    except RecipeError:
        return None


class ConfigSource(NamedTuple):
    """A model's config.json, the bytes per element of its stored weights, and the folder of the config.json (None: it
    is from data/models.yaml)."""

    config: Mapping[str, Any]
    stored_bytes: float
    folder: Path | None = None


def find_config_source(name: str, folder: Path | None, revision: str, cache_dir: str | None) -> ConfigSource | None:
    """Return the config.json of a model from `folder`, else from data/models.yaml, else from the local hub caches; None
    if the config.json is in none of these places. `revision` and `cache_dir`: the recipe's revision and cache folder,
    for the hub caches. Raises RecipeError if the config.json cannot be used."""
    if folder and _is_model_folder(folder):
        return _source_in_folder(folder)
    if entry := catalogue_entry(name):
        return ConfigSource(entry[1]["config"], stored_bytes(entry[1]))
    if cached := hub_caches.cached_model(name, revision=revision, folder=cache_dir):
        return _source_in_folder(cached.folder)
    return None


def _source_in_folder(folder: Path) -> ConfigSource:
    config = read_config(folder)
    return ConfigSource(config, stored_bytes(config), folder)


# In place of what is not known. What a layer keeps, which alone is reckoned from it, is simulated for these models.
_PLACEHOLDER_ATTENTION, _PLACEHOLDER_FEED_FORWARD = AttentionShape(1, 1, 1), FeedForwardShape(1)


def counted_architecture(layers: Sequence[CountedLayers], size: CountedSizes) -> Architecture:
    """Return the shapes of a model whose layers (`layers`) and total sizes (`size`) were counted on the model's class.
    All other elements (outside layers, embedding and output layer) count as one more layer at the beginning."""
    blocks = sum(each.number * _layer_elements(each) for each in layers)
    rest = size.parameters - blocks - size.embedding - size.head - size.hidden  # which formulas take for a final norm
    extra_layers = (CountedLayers(1, (), 0, rest),) if rest else ()
    return Architecture(
        size.hidden,
        sum(each.number for each in layers),
        size.embedding // size.hidden,
        _PLACEHOLDER_ATTENTION,
        _PLACEHOLDER_FEED_FORWARD,
        not size.head,
        counted_layers=(*extra_layers, *layers),
    )


class CountedSizes(NamedTuple):
    """Numbers of elements: of the whole model, of its embedding, of its output layer (0 if tied to the embedding), and
    of one hidden state."""

    parameters: int
    embedding: int
    head: int
    hidden: int


def counted_model(name: str, source: ConfigSource, layers: Sequence[CountedLayers], size: CountedSizes) -> Model:
    """Return a model whose type the tables lack, from the layers and sizes that were counted on its class."""
    config, kind = source.config, str(source.config.get("model_type"))
    linear = {each[0] for layer in layers for each in layer.linears}
    model = decoder_model(name, config, counted_architecture(layers, size))
    model = model._replace(unlisted=families.unlisted_family(kind, linear))
    return with_folder_template(model, source.folder, config) if source.folder else model


def _layer_elements(layer: CountedLayers) -> int:
    """Return the number of elements of one layer. The biases of linear modules are included in `vectors`."""
    matrices = sum(number * inputs * outputs for _, inputs, outputs, number, _ in layer.linears)
    return matrices + layer.experts + layer.vectors
