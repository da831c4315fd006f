"""Models: those of data/models.yaml, and local folders with a config.json. Names match leniently; an unknown name gets
a suggestion. A model whose type the tables lack is made from the layers that its class holds."""

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
from validator.knowledge.config_fields import checked_size
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
    """A model: its shapes, and what else is known of it by name, folder and chat template."""

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
        """The family of the model's type: what is peculiar to it."""
        if self.unlisted:
            return self.unlisted
        return (
            families.composite_family(self.kind, self.decoder) if self.decoder else families.family_of_type(self.kind)
        )

    @property
    def refused(self) -> frozenset[str]:
        """Linear modules on which peft accepts no adapter."""
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
        """Parameters as people write them: `7.62B`, `0.17M`."""
        return f"{self.billions:.3g}B" if self.billions >= 0.01 else f"{self.parameters / 1e6:.2g}M"


def model_ids() -> list[str]:
    """Return the ids of the models whose shapes are known, in the table's order. Of all others the table knows names
    and templates only."""
    return [key for key, entry in yaml_table("models").items() if families.has_known_shapes(entry["config"])]


def offered_models() -> list[str]:
    """Return the ids of text models that have a short form. The planner and the shell offer these; others are known by
    name."""
    models = yaml_table("models")
    unnamed = {*models.mention("short: null"), *models.mention("vision_config:"), *models.mention("audio_config:")}
    return [key for key in models if key not in unnamed]


@lru_cache(maxsize=1)
def release_months() -> dict[str, str]:
    """Return the month in which each model was first published, such as 2025-04, by id. No entry is parsed."""
    return dict(yaml_table("models").matching(_RELEASED))


@lru_cache(maxsize=1)
def successor_ids() -> dict[str, str]:
    """Return the id of the newer model that replaces a model, by the id of the replaced one. No entry is parsed."""
    return {older: key for key, replaced in yaml_table("models").matching(_REPLACES) for older in replaced.split(", ")}


def find_model(name: str, revision: str = "main", cache_dir: str | None = None) -> Model:
    """Return a model by hub name, file-name form (`qwen32b`), id, or local folder. A name that the catalogue lacks is
    looked for in the local hub caches, with a revision and the recipe's own cache folder. Raises RecipeError if the
    model is not known."""
    if model := find_known_model(name, revision, cache_dir):
        return model
    raise RecipeError(unknown_models.unknown_model_message(name))


def find_known_model(name: str, revision: str = "main", cache_dir: str | None = None) -> Model | None:
    """Return the model as `find_model` does, but None for an unknown name. Raises RecipeError for a folder whose
    config.json cannot be used."""
    if _is_model_folder(Path(name)):
        return _model_in_folder(name, Path(name).absolute())
    if published := _catalogue_model(name):
        return published

    cached = hub_caches.cached_model(name, revision=revision, folder=cache_dir)
    return _model_in_folder(name, cached.folder)._replace(cached=cached.hub) if cached else None


@lru_cache(maxsize=256)
def _catalogue_model(name: str) -> Model | None:
    entry = catalogue_entry(name)
    return _model_of_entry(*entry) if entry else None


def catalogue_entry(name: str) -> tuple[str, dict[str, Any], str] | None:
    """Return id, table entry and hub name of a model by any of its names, even if its type is not known."""
    wanted = name.strip().lower()
    models = yaml_table("models")
    if wanted in models:
        return wanted, models[wanted], models[wanted]["hub"][0]
    for key in models.mention(wanted):
        entry = models[key]
        for hub in [*entry["hub"], *entry["modelscope"]]:
            if hub.lower() == wanted:
                return key, entry, hub
        shorts = {entry["short"]: entry["hub"][0]}
        shorts |= {own["short"]: hub for hub, own in (entry.get("overrides") or {}).items() if "short" in own}
        if wanted in shorts:
            return key, entry, shorts[wanted]
    return None


def find_model_by_any_name(name: str) -> Model:
    """Return the model as `find_model` does, also by a hub name without its owner, as people type it. Raises
    RecipeError if the model is not known."""
    wanted = name.strip().lower()
    mentioned = (yaml_table("models")[key]["hub"] for key in yaml_table("models").mention(f"/{wanted}"))
    full = (hub for hubs in mentioned for hub in hubs if hub.lower().endswith(f"/{wanted}"))
    return find_model(next(full, name))


def _is_model_folder(folder: Path) -> bool:
    return safe_read.path_kind(folder / "config.json") == "file"


def _model_of_entry(key: str, entry: dict[str, Any], hub: str) -> Model:
    own = hub.rpartition("/")[2]  # the same on ModelScope, mostly
    base = own in {name.rpartition("/")[2] for name in entry["base"]}
    overrides: dict[str, dict[str, Any]] = entry.get("overrides") or {}
    special = next((more for name, more in overrides.items() if name.rpartition("/")[2] == own), {})
    config = {**entry["config"], **{k: v for k, v in special.items() if k not in entry}}
    entry = {**entry, **{k: v for k, v in special.items() if k in entry}}
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
    """Return the config.json of a folder. Raises RecipeError if it cannot be used."""
    try:
        config = read_json(str(folder / "config.json"))
    except RecipeError as err:
        raise RecipeError(f"model folder: {err}") from None
    if not isinstance(config, dict):
        raise RecipeError(f"`{folder / 'config.json'}` is not a mapping")
    if not config.get("model_type"):
        raise RecipeError(f"`{folder / 'config.json'}` has no `model_type`")
    return config


def with_folder_template(model: Model, folder: Path, config: Mapping[str, Any]) -> Model:
    """Return the model of a folder with the chat template that its files suggest."""
    template = folder_template(folder, config, model.family)
    own_code, mapped = "auto_map" in config and model.family.layer is None, config.get("auto_map")
    own_class = not own_code and isinstance(mapped, dict) and any(key.startswith("AutoModel") for key in mapped)
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
    """Return the model that a config.json describes: a decoder, or a decoder behind towers."""
    arch = read_architecture(config)
    if not arch.towers:
        return decoder_model(name, config, arch)
    trained = composites.trained_config(config)
    decoder = composites.decoder_config(trained)
    kind, inner = str(config["model_type"]), str(decoder["model_type"])
    return decoder_model(name, decoder, arch)._replace(
        kind=kind, decoder=inner, modules=composites.tower_modules(trained)
    )


def stored_bytes(config: Mapping[str, Any]) -> float:
    """Return the bytes per element of the weights beside a config.json. Without a dtype in the file they are fp32
    (transformers)."""
    return _BYTES_OF_DTYPE.get(str(config.get("dtype") or config.get("torch_dtype") or "float32"), 2.0)


def decoder_model(name: str, config: Mapping[str, Any], arch: Architecture) -> Model:
    """Return the model of a config.json that describes a decoder."""
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
    """Return a number that decides no shape; None if the field is missing or no such number."""
    try:
        return checked_size(name, config.get(name))
    except RecipeError:
        return None


class ConfigSource(NamedTuple):
    """A config.json, bytes per element of its weights, and the folder that it lies in (None: it is the catalogue's)."""

    config: Mapping[str, Any]
    stored_bytes: float
    folder: Path | None = None


def find_config_source(name: str, folder: Path | None, revision: str, cache_dir: str | None) -> ConfigSource | None:
    """Return the config.json of a model: from its folder, the catalogue, or the local hub caches; None if there is
    none. Raises RecipeError for a config.json that cannot be used."""
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
    """Return the shapes of a model whose layers were counted. Elements outside layers, embedding and output layer count
    with the first layers."""
    blocks = sum(each.number * _layer_elements(each) for each in layers)
    rest = size.parameters - blocks - size.embedding - size.head - size.hidden  # which formulas take for a final norm
    outside = (CountedLayers(1, (), 0, rest),) if rest else ()
    return Architecture(
        size.hidden,
        sum(each.number for each in layers),
        size.embedding // size.hidden,
        _PLACEHOLDER_ATTENTION,
        _PLACEHOLDER_FEED_FORWARD,
        not size.head,
        counted_layers=(*outside, *layers),
    )


class CountedSizes(NamedTuple):
    """Elements of the whole model, of its embedding, of an output layer of its own, and of a hidden state."""

    parameters: int
    embedding: int
    head: int
    hidden: int


def counted_model(name: str, source: ConfigSource, layers: Sequence[CountedLayers], size: CountedSizes) -> Model:
    """Return the model of a type that the tables lack, by what its class holds."""
    config, kind = source.config, str(source.config.get("model_type"))
    linear = {each[0] for layer in layers for each in layer.linears}
    model = decoder_model(name, config, counted_architecture(layers, size))
    model = model._replace(unlisted=families.unlisted_family(kind, linear))
    return with_folder_template(model, source.folder, config) if source.folder else model


def _layer_elements(layer: CountedLayers) -> int:
    """Return the elements of one layer. The biases of its linear modules are among the vectors."""
    matrices = sum(number * inputs * outputs for _, inputs, outputs, number, _ in layer.linears)
    return matrices + layer.experts + layer.vectors
