"""Model files on disk and the names that a run would load from a hub: files that a folder lacks, and checkpoint layouts
that LLaMA-Factory does not load."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from validator.knowledge import hub_caches, node_environment
from validator.knowledge.path_keys import ADAPTER_KEYS, MODEL_KEYS
from validator.knowledge.tables import yaml_table
from validator.on_node import checkpoint_integrity
from validator.recipe import safe_read

from .named_paths import named_paths
from .settings import RunSettings
from .trained_model import is_local_name

_WEIGHT_PATTERNS = ("*.safetensors", "*.bin")
# Files that end like weights: of an adapter, and of Trainer beside a checkpoint.
_OTHER_FILES = ("adapter_model", "training_args", "optimizer", "scheduler")
# Of fast tokenizers, of sentencepiece, of vocabularies as files, and of those that come with code of their own.
_TOKENIZER_PATTERNS = ("tokenizer.json", "tekken.json", "*.model", "vocab.*", "*.tiktoken", "tokenization_*.py")

_FIRST_FOUND = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def has_weights(folder: Path) -> bool:
    """True if the folder holds weights of a whole model; weights of an adapter do not count."""
    files = (file for pattern in _WEIGHT_PATTERNS for file in safe_read.glob_folder(folder, pattern))
    return any(not file.name.startswith(_OTHER_FILES) for file in files)


def missing_files(folder: Path, *, scratch: bool = False) -> Iterator[str]:
    """Yield what a run needs and a model folder does not hold, weights or tokenizer, each with its usual file names, as
    text for a message. `scratch`: the model is trained from scratch and needs no weights."""
    if not scratch and not has_weights(folder):
        yield "weights (*.safetensors)"
    if not any(file for pattern in _TOKENIZER_PATTERNS for file in safe_read.glob_folder(folder, pattern)):
        yield "tokenizer (tokenizer.json, tokenizer.model or vocab.json)"


def incomplete_downloads(folder: Path) -> Iterator[str]:
    """Yield weights of an unfinished download: files that the index lists and the folder does not hold, and Git LFS
    pointers in place of files. transformers takes the first file of `_FIRST_FOUND` that exists (modeling_utils.py,
    _get_resolved_checkpoint_files)."""
    name = next((name for name in _FIRST_FOUND if safe_read.path_kind(folder / name) is not None), "")
    if name.endswith(".index.json"):
        files = checkpoint_integrity.read_json_mapping(folder / name).get("weight_map")
        indexed = set(map(str, files.values())) if isinstance(files, dict) else set()
        if missing := sorted(each for each in indexed if safe_read.path_kind(folder / each) is None):
            yield f"{missing[0]}, which {name} names ({len(missing)} of {len(indexed)} files are missing)"
    if pointer := next(filter(_is_lfs_pointer, sorted(safe_read.glob_folder(folder, "*.safetensors"))), None):
        yield f"weights in {pointer.name}, a pointer of Git LFS (`git lfs pull`)"


def _is_lfs_pointer(file: Path) -> bool:
    if safe_read.path_kind(file) == "file":
        with suppress(OSError), safe_read.open_file(file) as opened:
            return safe_read.is_lfs_pointer(opened.read(64))
    return False


def replacement_for_layout(name: str, classes: Sequence[str] | None) -> str | None:
    """Return what to use instead of a checkpoint in its publisher's own layout, which transformers does not load, as
    text for a message. None for any other checkpoint. `classes`: the model classes of its config.json; None if the file
    is not on this machine, and the hub name decides."""
    table = yaml_table("composites")
    for layout in (table[kind]["own_layout"] for kind in table.mention("own_layout:")):
        if classes is not None:
            found = layout["class"] in classes
        else:
            found = bool(re.fullmatch(layout["names"], name, re.IGNORECASE)) and not name.lower().endswith("-hf")
        if found:
            return _converted_name(name, layout)
    return None


def _converted_name(name: str, layout: Mapping[str, Any]) -> str:
    for pattern, published in layout["converted"]:
        if match := re.fullmatch(pattern, name, re.IGNORECASE):
            return f"`{match.expand(published)}`"
    return str(layout["instead"])


# Variables that decide where a hub name is loaded from, without tokens, which are secret, and this machine's caches.
_HUB_VARIABLES = ("HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "USE_MODELSCOPE_HUB",
             "USE_OPENMIND_HUB")  # fmt: skip


def hub_env(run: RunSettings) -> dict[str, str]:
    """Return the hub variables of this environment (HF_ENDPOINT and others) that a printed command or a job must carry.
    Empty for a run that loads nothing from a hub. Name and password are removed from addresses."""
    if not any((*hub_models(run), *hub_datasets(run))):
        return {}
    return {name: without_credentials(os.environ[name]) for name in _HUB_VARIABLES if os.environ.get(name)}


def without_credentials(address: str) -> str:
    """Return an address with any name and password removed (RFC 3986, userinfo)."""
    return re.sub(r"(?<=://)[^/?#]*@", "", address)


def cached_folders(run: RunSettings, name: str) -> Iterator[Path]:
    """Yield the folders of the local hub cache that hold the weights of the model or adapter `name`."""
    folders = (
        hub_caches.modelscope_folders
        if node_environment.is_env_enabled("USE_MODELSCOPE_HUB")
        else hub_caches.huggingface_folders
    )
    return filter(holds_weights, folders(name, *run.hub_source))


def holds_weights(folder: Path) -> bool:
    """Return whether a folder holds weights of a whole model or of an adapter."""
    return has_weights(folder) or next(safe_read.glob_folder(folder, "adapter_model.*"), None) is not None


def offline_variable() -> str | None:
    """Return the environment variable that keeps Hugging Face's libraries offline; None if they may go online. Only the
    first variable that is set counts (huggingface_hub/constants.py)."""
    name = next((each for each in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(each)), None)
    return name if name and os.environ[name].upper() in ("1", "ON", "YES", "TRUE") else None


def hub_models(run: RunSettings) -> Iterator[str]:
    """Yield the models and adapters of the recipe that are not local folders, and so may be hub names."""
    for _, name in named_paths(run, (*MODEL_KEYS, *ADAPTER_KEYS)):
        if not is_local_name(name) and not run.workspace.find(name):
            yield name


def hub_datasets(run: RunSettings) -> Iterator[str]:
    """Yield the Hugging Face names of the recipe's data sets; nothing if the data are tokenized already."""
    for one in () if run.data.is_tokenized else run.data.datasets:
        if isinstance(name := one.entry.get("hf_hub_url"), str):
            yield name


def is_dataset_cached(name: str, folder: str | None) -> bool:
    """Return whether the datasets library has loaded the data set `name` before. `folder`: the recipe's cache folder;
    None means the library's own. The cache writes names in snake case (datasets/load.py,
    CachedDatasetModuleFactory)."""
    cache_name = _letters_only(name.replace("/", "___"))
    return any(
        _letters_only(place.name) == cache_name
        for place in safe_read.glob_folder(hub_caches.datasets_cache(folder), "*")
        if safe_read.path_kind(place) == "folder"
    )


def _letters_only(name: str) -> str:
    return name.replace("_", "").lower()
