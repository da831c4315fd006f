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

# What decides where a hub name is loaded from. Tokens are no one else's business, and caches are this machine's.
_HUB_VARIABLES = ("HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "USE_MODELSCOPE_HUB",
             "USE_OPENMIND_HUB")  # fmt: skip


def hub_env(job: Job) -> dict[str, str]:
    """The variables of this environment that a printed command or a job has to carry; none for a run that needs no hub.
    A name and password in an address stay here."""
    needed = bool([*hub_models(job), *hub_datasets(job)])
    return (
        {name: without_credentials(os.environ[name]) for name in _HUB_VARIABLES if os.environ.get(name)}
        if needed
        else {}
    )


def without_credentials(address: str) -> str:
    """An address without the name and password that may stand in it (RFC 3986, userinfo)."""
    return re.sub(r"(?<=://)[^/?#]*@", "", address)


def cached_folders(job: Job, name: str) -> Iterator[Path]:
    """Folders of the cache that hold a model or an adapter where the run looks for it."""
    folders = (
        hub_caches.modelscope_folders
        if node_environment.is_env_enabled("USE_MODELSCOPE_HUB")
        else hub_caches.huggingface_folders
    )
    return filter(holds_weights, folders(name, *job.hub_source))


def holds_weights(folder: Path) -> bool:
    """Whether it holds weights, of a model or an adapter."""
    return model_files.has_weights(folder) or next(safe_read.glob_folder(folder, "adapter_model.*"), None) is not None


def offline_variable() -> str | None:
    """The variable that takes the network of Hugging Face away, the first that is set to anything where that means yes
    (huggingface_hub/constants.py); None where none does."""
    name = next((each for each in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(each)), None)
    return name if name and os.environ[name].upper() in ("1", "ON", "YES", "TRUE") else None


def hub_models(job: Job) -> Iterator[str]:
    """Models and adapters that are no folders here, and could be of a hub."""
    for _, name in named_paths(job, (*MODEL_KEYS, *ADAPTER_KEYS)):
        if not is_local_name(name) and not job.workspace.find(name):
            yield name


def hub_datasets(job: Job) -> Iterator[str]:
    """Data sets of Hugging Face, unless the data are tokenized already."""
    for one in () if job.data.is_tokenized else job.data.datasets:
        if isinstance(name := one.entry.get("hf_hub_url"), str):
            yield name


def is_dataset_cached(name: str, folder: str | None) -> bool:
    """Whether datasets has loaded the data set before: its cache writes the name in snake case (datasets/load.py,
    CachedDatasetModuleFactory)."""
    wanted = _letters_only(name.replace("/", "___"))
    return any(
        _letters_only(place.name) == wanted
        for place in safe_read.glob_folder(hub_caches.datasets_cache(folder), "*")
        if safe_read.path_kind(place) == "folder"
    )


def _letters_only(name: str) -> str:
    return name.replace("_", "").lower()
