"""Models of a type that the tables lack, by what their class was counted to hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from validator.memory import Architecture, Attn, Counted, Ffn
from validator.read import disk
from validator.tables import cache, families, models
from validator.tables.models import Model


class Source(NamedTuple):
    """A config.json, bytes per element of its weights, and the folder that it lies in; None: the catalogue tells it."""

    config: Mapping[str, Any]
    stored_bytes: float
    folder: Path | None = None


def source(name: str, folder: Path | None, revision: str, cache_dir: str | None) -> Source | None:
    """What tells the shapes of a model: a folder, the catalogue, the local hub caches. Raises RecipeError for a
    config.json that cannot be used."""
    if folder and disk.kind(folder / "config.json") == "file":
        return _kept(folder)
    if entry := models.listed(name):
        return Source(entry[1]["config"], models.stored_bytes(entry[1]))
    if there := cache.model(name, revision=revision, folder=cache_dir):
        return _kept(there.folder)
    return None


def _kept(folder: Path) -> Source:
    config = models.configuration(folder)
    return Source(config, models.stored_bytes(config), folder)


# In place of what is not known. What a layer keeps, which alone is reckoned from it, is simulated for these models.
_ATTENTION, _FEED_FORWARD = Attn(1, 1, 1), Ffn(1)


def architecture(layers: Sequence[Counted], size: Sizes) -> Architecture:
    """The shapes, with what lies outside layers and tables counted to the first layers."""
    blocks = sum(each.number * _elements(each) for each in layers)
    rest = size.parameters - blocks - size.embedding - size.head - size.hidden  # which formulas take for a final norm
    outside = (Counted(1, (), 0, rest),) if rest else ()
    return Architecture(size.hidden, sum(each.number for each in layers), size.embedding // size.hidden, _ATTENTION,
                        _FEED_FORWARD, not size.head, counted=(*outside, *layers))  # fmt: skip


class Sizes(NamedTuple):
    """Elements of the whole model, of its embedding, of an output layer of its own, and of a hidden state."""

    parameters: int
    embedding: int
    head: int
    hidden: int


def model(name: str, source: Source, layers: Sequence[Counted], size: Sizes) -> Model:
    """The model of a type that the tables lack."""
    config, kind = source.config, str(source.config.get("model_type"))
    linear = {each[0] for layer in layers for each in layer.linears}
    told = models.plain(name, config, architecture(layers, size))
    told = told._replace(unlisted=families.unknown(kind, linear))
    return models.spoken(told, source.folder, config) if source.folder else told


def _elements(layer: Counted) -> int:
    """Of one layer; the biases of its linear modules are among the vectors."""
    matrices = sum(number * inputs * outputs for _, inputs, outputs, number, _ in layer.linears)
    return matrices + layer.experts + layer.vectors
