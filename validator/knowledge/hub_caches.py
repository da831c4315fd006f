"""Finds the local caches of Hugging Face and ModelScope, and the models in them. Nothing is downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from validator.errors import RecipeError
from validator.knowledge import node_environment
from validator.recipe import safe_read
from validator.recipe.safe_read import read_text

# What a hub calls a model; anything else is a path or a mistake.
_HUB_NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")


class CachedModel(NamedTuple):
    """A folder in a hub's local cache that holds a model's files, and the name of the hub."""

    folder: Path
    hub: str


def cached_model(
    name: str, file: str = "config.json", revision: str = "main", folder: str | None = None
) -> CachedModel | None:
    """Return the folder of a hub model in a local cache, if the folder holds `file`. The cache of the hub that
    LLaMA-Factory would use is searched first, then the cache of the other hub; None if neither cache has the file.
    `folder`: the recipe's `cache_dir`; None: the cache folder that the environment variables give."""
    if not _HUB_NAME.fullmatch(name):
        return None
    caches = [
        (huggingface_folders(name, revision, folder), "Hugging Face"),
        (modelscope_folders(name, revision, folder), "ModelScope"),
    ]
    for places, hub in reversed(caches) if node_environment.is_env_enabled("USE_MODELSCOPE_HUB") else caches:
        for place in places:
            if safe_read.path_kind(place / file) == "file":
                return CachedModel(place, hub)
    return None


def huggingface_folders(name: str, revision: str = "main", folder: str | None = None) -> Iterator[Path]:
    """Yield the folder that Hugging Face's local cache uses for a model (huggingface_hub/constants.py and
    file_download.py). `revision`: a branch or a commit. `folder`: the recipe's `cache_dir`; None: the cache folder that
    the environment variables give."""
    place = hub_cache(folder) / huggingface_entry(name)
    branch = place / "refs" / revision
    try:
        commit = read_text(str(branch)).strip() if safe_read.path_kind(branch) == "file" else revision
    except RecipeError:
        return
    yield place / "snapshots" / commit


def huggingface_entry(name: str) -> str:
    """Return the name of a model's folder in Hugging Face's cache (huggingface_hub/file_download.py,
    repo_folder_name)."""
    return f"models--{name.replace('/', '--')}"


def modelscope_folders(name: str, revision: str = "main", folder: str | None = None) -> Iterator[Path]:
    """Yield the folders in which releases of modelscope may keep a model, the newest layout first
    (modelscope/hub/utils/utils.py, find_reusable_legacy_repo_dir). For the revision `main` LLaMA-Factory asks
    ModelScope for `master`. `folder`: the recipe's `cache_dir`; None: the folder that the environment gives."""
    owner, _, model = name.partition("/")
    root = safe_read.expand_home(folder or os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope")
    yield root / "models" / f"{owner}--{model}" / "snapshots" / ("master" if revision == "main" else revision)
    for place in (root / "models", root, root / "hub" / "models", root / "hub"):
        for each in dict.fromkeys((model.replace(".", "___"), model)):
            yield place / owner / each


def datasets_cache(folder: str | None) -> Path:
    """Return the folder in which the datasets library caches rows that it has read and tokenized (datasets/config.py).
    `folder`: the cache folder that the recipe names; None: the folder that the environment variables give."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return safe_read.expand_home(folder or os.environ.get("HF_DATASETS_CACHE") or Path(home, "datasets"))


def hub_cache(folder: str | None) -> Path:
    """Return Hugging Face's cache folder, by the environment variables of huggingface_hub/constants.py. `folder`: the
    recipe's `cache_dir`; None: the environment decides."""
    environment = os.environ
    home = environment.get("HF_HOME") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    path = folder or environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or Path(home, "hub")
    return safe_read.expand_home(os.path.expandvars(path))
