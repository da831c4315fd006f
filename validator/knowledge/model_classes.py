"""Releases that can load a model type: transformers must have a configuration for it, and LLaMA-Factory must find a
class for it. From the generated data/model_classes.json, which has all types of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from validator.knowledge import releases
from validator.knowledge.releases import ReleasePair, range_admits, release_series
from validator.knowledge.tables import json_table

_CONFIG = "AutoConfig"


@cache
def listed_releases() -> list[str]:
    """Return the transformers releases in which types came or went, oldest first. The first release of a minor version
    that was read stands for all of this version, from its release .0 on."""
    versions: list[str] = json_table("model_classes")["source"]["transformers"]
    earlier = [None, *map(release_series, versions)]
    return [
        version if release_series(version) == before else f"{release_series(version)}.0"
        for version, before in zip(versions, earlier, strict=False)
    ]


def is_known_type(kind: str, version: str) -> bool:
    """True if a transformers release has a configuration for a model type. Later releases than data/model_classes.json
    has are taken to have one."""
    return _has(_CONFIG, kind, version)


def is_loadable(kinds: Sequence[str], pair: ReleasePair) -> bool:
    """True if a pair of releases can load a model. `kinds`: the model's type, and behind it other types that its
    configuration looks up (`looks_text_type_up`)."""
    return not unknown_type(kinds, pair[1]) and has_class(kinds[0], pair)


def unknown_type(kinds: Sequence[str], version: str) -> str:
    """Return the first of `kinds` that a transformers release does not know; empty if it knows all of them."""
    return next((kind for kind in kinds if not is_known_type(kind, version)), "")


def has_class(kind: str, pair: ReleasePair) -> bool:
    """True if one of the Auto classes that LLaMA-Factory tries (model/loader.py, load_model) has a class for a model
    type. `pair`: a LLaMA-Factory release, of which an unlisted one counts as the newest, and a transformers release."""
    loaders = json_table("model_classes")["loaders"]
    return any(_has(name, kind, pair[1]) for name in loaders.get(pair[0], loaders[releases.newest_pair()[0]]))


def looks_text_type_up(kind: str) -> bool:
    """True if the configuration of a model type looks the type of its text model up among all types. Then transformers
    must know that type, too. Other configurations have a class of their own for their text model."""
    return kind in json_table("model_classes")["nested"]["types"]


def loading_releases(kinds: Sequence[str], factory: str) -> list[str]:
    """Return the transformers releases, oldest first, that a LLaMA-Factory release admits and that can load a model."""
    oldest, newest = releases.admitted_transformers(factory)
    admitted = (version for version in listed_releases() if range_admits(f">={oldest}, <={newest}", version))
    return [version for version in admitted if is_loadable(kinds, (factory, version))]


def first_release(kinds: Sequence[str]) -> str | None:
    """Return the first transformers release that knows all of `kinds`; None if no listed release does."""
    return next((version for version in listed_releases() if not unknown_type(kinds, version)), None)


def _has(auto_class: str, kind: str, version: str) -> bool:
    """True if an Auto class of a transformers release has a model type."""
    table = json_table("model_classes")
    if not range_admits(f"<={table['source']['transformers'][-1]}", version):
        return True
    names = dict(zip(table["source"]["transformers"], listed_releases(), strict=True))
    since = next((names[release] for release, kinds in table[auto_class].items() if kind in kinds), None)
    if since is None or not (since == listed_releases()[0] or range_admits(f">={since}", version)):
        return False
    removed = (release for release, gone in table["removed"].items() if kind in gone.get(auto_class, ()))
    return not any(range_admits(f">={release}", version) for release in removed)
