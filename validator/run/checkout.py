"""LLaMA-Factory's own source in the repository of a recipe: a checkout or a fork, which is what the recipes beside it
are written for and run with. Its release counts for them, and so do keys, templates and formats that it adds."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from validator.errors import RecipeError
from validator.knowledge import releases
from validator.recipe import known_folders, safe_read
from validator.recipe.known_folders import search_folders

_PACKAGE = "src/llamafactory"
_CHECKOUT_FOLDERS = ("", "LLaMA-Factory", "LlamaFactory")
_VERSION = re.compile(r"(?m)^VERSION = [\"'](\d+\.\d+\.\d+)(\.dev\d*)?[\"']")
_REQUIREMENTS = ("pyproject.toml", "setup.py", "requirements.txt")
_LIMIT = re.compile(r"<=(\d+\.\d+\.\d+)")
_HPARAMS = ("data_args", "finetuning_args", "generating_args", "model_args", "training_args")


class Checkout(NamedTuple):
    """A checkout of LLaMA-Factory. `package`: the folder of its package. `version`: its release, which a checkout
    between two releases names ahead of time. `is_between`: True for a checkout between two releases."""

    package: Path
    version: str
    is_between: bool

    def header_fields(self) -> dict[str, str]:
        """Return the releases by which recipes are judged, as fields of a header block: the checkout's own or, if it is
        older than all that are known, the oldest; and the newest transformers that the checkout admits. Empty for a
        release that is newer than those that are known."""
        known = releases.known_factories()
        older = not any(releases.is_at_least((self.version, ""), f"llamafactory {each}") for each in known)
        release = self.version if self.version in known else known[-1] if older else None
        if release is None:
            return {}
        texts = "".join(_read(self.package.parents[1] / name) for name in _REQUIREMENTS)
        limits = {limit for line in re.findall(r"\btransformers\b[^\n]*", texts) for limit in _LIMIT.findall(line)}
        newest = [library for factory, library in releases.known_pairs() if factory == release and library in limits]
        return {"llamafactory": release} | ({"transformers": newest[0]} if newest else {})

    def has_key(self, name: str) -> bool:
        """True if one of the checkout's argument classes has this field."""
        pattern = rf"(?m)^ +{re.escape(name)}: "
        return any(re.search(pattern, _read(self.package / f"hparams/{each}.py")) for each in _HPARAMS)

    def has_choice(self, key: str, value: str) -> bool:
        """True if the type of the checkout's field lists this value, or one of its enumerations has it."""
        word = rf"[\"']{re.escape(value)}[\"']"
        is_listed = any(
            re.search(rf"(?m)^ +{re.escape(key)}: [^=]*{word}", _read(self.package / f"hparams/{each}.py"))
            for each in _HPARAMS
        )
        return is_listed or bool(re.search(rf"(?m)^ +\w+ = {word}$", _read(self.package / "extras/constants.py")))

    def has_template(self, name: str) -> bool:
        """True if the checkout registers a chat template of this name."""
        return re.search(rf"name=[\"']{re.escape(name)}[\"']", _read(self.package / "data/template.py")) is not None

    def has_formatting(self, name: str) -> bool:
        """True if the checkout has a converter for this `formatting` of a dataset_info.json entry."""
        return re.search(rf"[\"']{re.escape(name)}[\"']", _read(self.package / "data/converter.py")) is not None


def find_checkout(recipe: str) -> Checkout | None:
    """Return the checkout of LLaMA-Factory in the repository of the recipe at this path, in a folder above it or beside
    one; None if there is none."""
    return _find_checkout(recipe, Path.cwd())


@lru_cache(maxsize=256)
def _find_checkout(recipe: str, _cwd: Path) -> Checkout | None:
    root = known_folders.repository_root(recipe)
    if root is None:
        return None
    folders = (folder / each for folder in search_folders(recipe) for each in _CHECKOUT_FOLDERS)
    found = (_checkout_in(folder) for folder in folders if folder.is_relative_to(root))
    return next(filter(None, found), None)


@cache
def _checkout_in(folder: Path) -> Checkout | None:
    package = folder / _PACKAGE
    file = package / "extras/env.py"
    version = _VERSION.search(_read(file)) if safe_read.path_kind(file) == "file" else None
    return Checkout(package, version[1], bool(version[2])) if version else None


@cache
def _read(file: Path) -> str:
    try:
        return safe_read.read_text(str(file))
    except RecipeError:
        return ""
