"""Models in the local caches of Hugging Face and ModelScope. Nothing is downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.read import disk
from validator.read.text import read_text
from validator.tables import switch

# What a hub calls a model; anything else is a path or a mistake.
_NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")


class Cached(NamedTuple):
    """A folder with the files of a hub model, and whose cache it is in."""

    folder: Path
    hub: str


def model(name: str, file: str = "config.json", revision: str = "main", folder: str | None = None) -> Cached | None:
    """Where a hub name has been downloaded to, with that file: first in the cache that LLaMA-Factory would use, then in
    the other's. `folder` is the recipe's own `cache_dir`."""
    if not _NAME.fullmatch(name):
        return None
    ways = [(hugging_face(name, revision, folder), "Hugging Face"), (modelscope(name, revision, folder), "ModelScope")]
    for places, hub in reversed(ways) if switch.on("USE_MODELSCOPE_HUB") else ways:
        for place in places:
            if disk.kind(place / file) == "file":
                return Cached(place, hub)
    return None


def hugging_face(name: str, revision: str = "main", folder: str | None = None) -> Iterator[Path]:
    """The snapshot of a revision, a branch or a commit (huggingface_hub/constants.py and file_download.py)."""
    place = home(folder) / entry(name)
    branch = place / "refs" / revision
    try:
        commit = read_text(str(branch)).strip() if disk.kind(branch) == "file" else revision
    except RecipeError:
        return
    yield place / "snapshots" / commit


def entry(name: str) -> str:
    """The folder of a model in Hugging Face's cache (huggingface_hub/file_download.py, repo_folder_name)."""
    return f"models--{name.replace('/', '--')}"


def modelscope(name: str, revision: str = "main", folder: str | None = None) -> Iterator[Path]:
    """The layouts that releases of modelscope have had, the newest first (modelscope/hub/utils/utils.py,
    find_reusable_legacy_repo_dir). LLaMA-Factory asks for `master` where a recipe says `main`."""
    owner, _, model = name.partition("/")
    root = disk.expanded(folder or os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope")
    yield root / "models" / f"{owner}--{model}" / "snapshots" / ("master" if revision == "main" else revision)
    for place in (root / "models", root, root / "hub" / "models", root / "hub"):
        for each in dict.fromkeys((model.replace(".", "___"), model)):
            yield place / owner / each


def data_sets(folder: str | None) -> Path:
    """Where datasets keeps rows as it reads and tokenizes them (datasets/config.py); `folder` is the recipe's own."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return disk.expanded(folder or os.environ.get("HF_DATASETS_CACHE") or Path(home, "datasets"))


def home(folder: str | None) -> Path:
    """The cache of Hugging Face by the variables of huggingface_hub/constants.py; `folder` is the recipe's own."""
    given = os.environ
    home = given.get("HF_HOME") or Path(given.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    chosen = folder or given.get("HF_HUB_CACHE") or given.get("HUGGINGFACE_HUB_CACHE") or Path(home, "hub")
    return disk.expanded(os.path.expandvars(chosen))
