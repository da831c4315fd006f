"""Models and data sets that a run loads from a hub: their names, whether a cache of this machine holds them, and the
variables that decide which hub is asked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from validator.knowledge import hub_caches, node_environment
from validator.knowledge.path_keys import ADAPTER_KEYS, MODEL_KEYS
from validator.recipe import safe_read
from validator.run import model_files
from validator.run.named_paths import named_paths
from validator.run.prediction import Job
from validator.run.trained_model import is_local_name

# Variables that decide where a hub name is loaded from, without tokens, which are secret, and this machine's caches.
_HUB_VARIABLES = ("HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "USE_MODELSCOPE_HUB",
             "USE_OPENMIND_HUB")  # fmt: skip


def hub_env(job: Job) -> dict[str, str]:
    """Return the hub variables of this environment that a printed command or a job must carry; none for a run that
    needs no hub. A name and password in an address are left out."""
    if not any((*hub_models(job), *hub_datasets(job))):
        return {}
    return {name: without_credentials(os.environ[name]) for name in _HUB_VARIABLES if os.environ.get(name)}


def without_credentials(address: str) -> str:
    """Return an address without the name and password that it may hold (RFC 3986, userinfo)."""
    return re.sub(r"(?<=://)[^/?#]*@", "", address)


def cached_folders(job: Job, name: str) -> Iterator[Path]:
    """Return the folders of the hub's cache that hold the weights of a model or adapter."""
    folders = (
        hub_caches.modelscope_folders
        if node_environment.is_env_enabled("USE_MODELSCOPE_HUB")
        else hub_caches.huggingface_folders
    )
    return filter(holds_weights, folders(name, *job.hub_source))


def holds_weights(folder: Path) -> bool:
    """Return whether a folder holds weights of a model or an adapter."""
    return model_files.has_weights(folder) or next(safe_read.glob_folder(folder, "adapter_model.*"), None) is not None


def offline_variable() -> str | None:
    """Return the variable that keeps Hugging Face's libraries offline; None if they are online. Only the first variable
    that is set counts (huggingface_hub/constants.py)."""
    name = next((each for each in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(each)), None)
    return name if name and os.environ[name].upper() in ("1", "ON", "YES", "TRUE") else None


def hub_models(job: Job) -> Iterator[str]:
    """Yield models and adapters that are no local folders, and may be names of a hub."""
    for _, name in named_paths(job, (*MODEL_KEYS, *ADAPTER_KEYS)):
        if not is_local_name(name) and not job.workspace.find(name):
            yield name


def hub_datasets(job: Job) -> Iterator[str]:
    """Yield the data sets of Hugging Face; none if the data are tokenized already."""
    for one in () if job.data.is_tokenized else job.data.datasets:
        if isinstance(name := one.entry.get("hf_hub_url"), str):
            yield name


def is_dataset_cached(name: str, folder: str | None) -> bool:
    """Return whether datasets has loaded the data set before. Its cache writes the name in snake case
    (datasets/load.py, CachedDatasetModuleFactory)."""
    wanted = _letters_only(name.replace("/", "___"))
    return any(
        _letters_only(place.name) == wanted
        for place in safe_read.glob_folder(hub_caches.datasets_cache(folder), "*")
        if safe_read.path_kind(place) == "folder"
    )


def _letters_only(name: str) -> str:
    return name.replace("_", "").lower()
