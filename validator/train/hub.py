"""The hubs that a run loads from: what the environment says of them, and what they would not give."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from validator.diagnostic import RecipeError, Severity
from validator.here.installed import installed
from validator.job.job import Job
from validator.job.which import local
from validator.read import disk
from validator.tables import cache, checkpoint, models, switch
from validator.train.room import Shortage

# What decides where a hub name is loaded from. Tokens are no one else's business, and caches are this machine's.
_DECIDING = ("HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "USE_MODELSCOPE_HUB",
             "USE_OPENMIND_HUB")  # fmt: skip
_MODELS = ("model_name_or_path", "adapter_name_or_path", "reward_model", "ref_model")


def variables(job: Job) -> dict[str, str]:
    """The variables of this environment that a printed command or a job has to carry; none for a run that needs no hub.
    A name and password in an address stay here."""
    needed = bool([*names(job), *data_sets(job)])
    return {name: bare(os.environ[name]) for name in _DECIDING if os.environ.get(name)} if needed else {}


def bare(address: str) -> str:
    """An address without the name and password that may stand in it (RFC 3986, userinfo)."""
    return re.sub(r"(?<=://)[^/?#]*@", "", address)


def lacking(job: Job) -> Iterator[Shortage]:
    """What the run could not load here, or would load otherwise than it was judged."""
    yield from _other_shapes(job)
    if switch.on("USE_MODELSCOPE_HUB"):
        if variables(job) and "modelscope" not in installed().among(["modelscope"]):
            yield Severity.ERROR, "USE_MODELSCOPE_HUB is set and the package is not installed: pip install modelscope"
    elif not switch.on("USE_OPENMIND_HUB"):
        cause = offline()
        yield from _not_downloaded(job, cause) if cause else _of_other_hub(job)


def _other_shapes(job: Job) -> Iterator[Shortage]:
    """A download of the model that is not the one of the catalogue."""
    if (
        job.model
        and job.model.id
        and not job.model.taken
        and (there := cache.model(job.model.name, "config.json", *job.origin))
    ):
        with suppress(RecipeError):  # a config of images and text, which the catalogue knows by the text's part
            if models.model(str(there.folder)).parameters != job.model.parameters:
                shapes = f"the config.json in the {there.hub} cache has other shapes than the catalogue"
                yield Severity.WARNING, f"{shapes}; judge it by `explain` with model_name_or_path={there.folder}"


def _not_downloaded(job: Job, cause: str) -> Iterator[Shortage]:
    """What a run without network would look for in vain; `cause` is the variable that takes the network away."""
    for name in names(job):
        if not any(downloads(job, name)):
            folders = [*cache.hugging_face(name, *job.origin)]
            known = any(disk.kind(place / "config.json") == "file" for place in folders)
            what = "has a config.json in the cache, and no weights" if known else "is in no folder and not in the cache"
            other = _elsewhere(job, name) or "name a folder that holds it, or download it where there is a network"
            yield Severity.ERROR, f"{cause} is set, and `{name}` {what}: {other}"
    for name in data_sets(job):
        if not prepared(name, job.origin[1]):
            yield Severity.WARNING, f"{cause} is set, and data set `{name}` seems not to be in the cache of datasets"


def _of_other_hub(job: Job) -> Iterator[Shortage]:
    """What is downloaded already, where the run does not look."""
    for name in names(job):
        if (remedy := _elsewhere(job, name)) and not any(downloads(job, name)):
            yield Severity.WARNING, f"`{name}` is downloaded from Hugging Face: {remedy}"


def downloads(job: Job, name: str) -> Iterator[Path]:
    """Folders of the cache that hold a model or an adapter where the run looks for it."""
    folders = cache.modelscope if switch.on("USE_MODELSCOPE_HUB") else cache.hugging_face
    return filter(_loadable, folders(name, *job.origin))


def _elsewhere(job: Job, name: str) -> str:
    """How to use the download that the ModelScope cache holds; empty where there is none."""
    there = any(map(_loadable, cache.modelscope(name, *job.origin)))
    return "it is in the ModelScope cache, which the run takes with USE_MODELSCOPE_HUB=1" if there else ""


def _loadable(folder: Path) -> bool:
    """Whether it holds weights, of a model or an adapter."""
    return checkpoint.weighs(folder) or next(disk.matching(folder, "adapter_model.*"), None) is not None


def offline() -> str | None:
    """The variable that takes the network of Hugging Face away, the first that is set to anything where that means yes
    (huggingface_hub/constants.py); None where none does."""
    name = next((each for each in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(each)), None)
    return name if name and os.environ[name].upper() in ("1", "ON", "YES", "TRUE") else None


def names(job: Job) -> Iterator[str]:
    """Models and adapters that are no folders here, and could be of a hub."""
    for key in _MODELS:
        value = job.get(key)
        for name in value.split(",") if isinstance(value, str) else ():
            if name.strip() and not local(name.strip()) and not job.find(name.strip()):
                yield name.strip()


def data_sets(job: Job) -> Iterator[str]:
    """Data sets of Hugging Face, unless the data are tokenized already."""
    for one in () if job.tokenized else job.datasets:
        if isinstance(name := one.entry.get("hf_hub_url"), str):
            yield name


def prepared(name: str, folder: str | None) -> bool:
    """Whether datasets has loaded the data set before: its cache writes the name in snake case (datasets/load.py,
    CachedDatasetModuleFactory)."""
    wanted = _letters(name.replace("/", "___"))
    return any(
        _letters(place.name) == wanted
        for place in disk.matching(cache.data_sets(folder), "*")
        if disk.kind(place) == "folder"
    )


def _letters(name: str) -> str:
    return name.replace("_", "").lower()
