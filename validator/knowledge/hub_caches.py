"""The caches of Hugging Face and ModelScope on this machine: their folders, and which models lie in them. Nothing is
downloaded."""

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
    """A folder with the files of a hub model, and the hub whose cache it is in."""

    folder: Path
    hub: str


def cached_model(
    name: str, file: str = "config.json", revision: str = "main", folder: str | None = None
) -> CachedModel | None:
    """Return the folder to which a hub name has been downloaded, with that file: first from the cache that
    LLaMA-Factory would use, then from the other hub's; None if neither has it. `folder` is the recipe's own
    `cache_dir`."""
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
    """Yield the snapshot folder of a revision, a branch or a commit (huggingface_hub/constants.py and
    file_download.py)."""
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
    """Yield the folders in which releases of modelscope keep a model, the newest layout first
    (modelscope/hub/utils/utils.py, find_reusable_legacy_repo_dir). LLaMA-Factory asks for `master` if a recipe says
    `main`."""
    owner, _, model = name.partition("/")
    root = safe_read.expand_home(folder or os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope")
    yield root / "models" / f"{owner}--{model}" / "snapshots" / ("master" if revision == "main" else revision)
    for place in (root / "models", root, root / "hub" / "models", root / "hub"):
        for each in dict.fromkeys((model.replace(".", "___"), model)):
            yield place / owner / each


def datasets_cache(folder: str | None) -> Path:
    """Return the folder in which datasets keeps rows as it reads and tokenizes them (datasets/config.py). `folder` is
    the recipe's own."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return safe_read.expand_home(folder or os.environ.get("HF_DATASETS_CACHE") or Path(home, "datasets"))


def hub_cache(folder: str | None) -> Path:
    """Return Hugging Face's cache folder by the variables of huggingface_hub/constants.py. `folder` is the recipe's
    own."""
    environment = os.environ
    home = environment.get("HF_HOME") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    chosen = folder or environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or Path(home, "hub")
    return safe_read.expand_home(os.path.expandvars(chosen))
