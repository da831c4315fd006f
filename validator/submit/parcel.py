"""What a node needs of this machine where it sees none of its folders: files, and the paths that lead to them there."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from validator.diagnostic import RecipeError
from validator.job.datasets import REGISTRY, Dataset
from validator.job.job import Job
from validator.read import disk
from validator.read.override import assignment
from validator.submit.order import Run
from validator.submit.work import Work

# Keys that name a file; those that name a folder, or something of a hub; a folder that need not be there.
_FILES = ("deepspeed", "fsdp_config")
_FOLDERS = ("dataset_dir", "media_dir", "model_name_or_path", "adapter_name_or_path", "resume_from_checkpoint",
            "reward_model", "ref_model", "tokenized_path")  # fmt: skip
_OUTPUT = "output_dir"
_SETS = ("dataset_dir", "media_dir")  # of which the files that are read are found one by one
_MEDIA = ("images", "videos", "audios")


@dataclass(frozen=True)
class Parcel:
    """Places on a node, from the folder that a run starts in, and what has to be there: small files (recipe, DeepSpeed
    configuration, data set registry), and data and models."""

    files: Mapping[str, Path]
    data: Mapping[str, Path]


def pack(run: Run, seen: Iterable[str] = ()) -> tuple[Work, Parcel]:
    """The work with paths from the folder that a run starts in on a node, and what has to be there. A relative path of
    the recipe stays as it is, and so does the recipe; folders of `seen` are on the node, too. Raises RecipeError for a
    path with a space, at which LLaMA-Factory's launcher splits, and where two folders would have one place."""
    job, overrides, work = run
    way = _Way(tuple(seen))
    parts = {key: (way.place(str(job.get(key))), path) for key, path in _read(job)}
    places = {key: place for key, (place, _) in parts.items()}
    places[_OUTPUT] = way.written(str(job.get(_OUTPUT) or work.output))
    changed = {key: place for key, place in places.items() if place != job.get(key)}
    kept = [word for word in overrides if word.partition("=")[0] not in changed]
    words = (*kept, *(assignment(key, place) for key, place in changed.items()))
    recipe, (starter, engine) = way.place(job.path), _starter(job, work, way)
    if spaced := [word for word in (recipe, *words) if work.torchrun and re.search(r"\s", word)]:
        raise RecipeError(f"`{spaced[0]}` holds a space, at which LLaMA-Factory's launcher splits; use a path without")
    output = Path(places[_OUTPUT])
    there = replace(work, recipe=Path(recipe), overrides=words, starter=starter, output=output)
    small = [(recipe, Path(job.path)), *engine, *(parts[key] for key in _FILES if key in parts)]
    large = [parts[key] for key in _FOLDERS if key in parts and key not in _SETS]
    if job.registry and not job.registry.problem and "dataset_dir" in parts:
        small.append((f"{places['dataset_dir']}/{REGISTRY}", job.registry.path))
        large += _data(job, places)
    return there, Parcel(_alone(small), _outermost(_alone(large)))


@dataclass(frozen=True)
class _Way:
    """From paths here to those on a node, which has the folders `seen` as well."""

    seen: tuple[str, ...]

    def place(self, path: str) -> str:
        """What is elsewhere here lies in the folder that a run starts in, by its name."""
        place = self.written(path)
        known = not place.startswith("/") or any(PurePosixPath(place).is_relative_to(each) for each in self.seen)
        return place if known else posixpath.basename(place)

    def written(self, path: str) -> str:
        """The path as it is written where it stays below the folder that a run starts in, from there where it leads
        below ours, else the whole one."""
        normal = posixpath.normpath(path)
        if not normal.startswith(("/", "~", "../")) and normal != "..":
            return normal
        return from_here(Path(os.path.abspath(disk.expanded(path))))  # noqa: PTH100 (links stay)


def from_here(path: Path) -> str:
    """The path from the folder that the command is started in where it lies below that, else the whole one."""
    whole = path.absolute()
    return whole.relative_to(Path.cwd()).as_posix() if whole.is_relative_to(Path.cwd()) else str(whole)


def _read(job: Job) -> Iterator[tuple[str, Path]]:
    """Keys whose file or folder is here."""
    for key in (*_FILES, *_FOLDERS):
        value = job.get(key)
        there = job.find(value) if isinstance(value, str) and value and not value.startswith("{") else None
        if there and (key not in _FILES or disk.kind(there[0]) == "file"):
            yield key, there[0]


def _starter(job: Job, work: Work, way: _Way) -> tuple[tuple[str, ...], list[tuple[str, Path]]]:
    """The words before the recipe, and the accelerate file that is among them."""
    if not job.accelerate:
        return work.starter, []
    place = way.place(str(job.header.get("accelerate")))
    words = tuple(place if word == job.accelerate.path else word for word in work.starter)
    return words, [(place, Path(job.accelerate.path))]


def _data(job: Job, places: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Files of data sets, and the folder of their pictures and sounds where a data set has some."""
    names = dict.fromkeys([*job.words("dataset"), *job.words("eval_dataset")])
    sets = [one for name in names if job.registry and (one := job.registry.get(name)) and one.source == "file"]
    for one in sets:
        yield posixpath.join(places["dataset_dir"], str(one.entry.get("file_name"))), one.path
    media = "media_dir" if "media_dir" in places else "dataset_dir"
    if any(map(_sees, sets)) and (there := job.find(str(job.get(media)))):
        yield places[media], there[0]


def _sees(one: Dataset) -> bool:
    return any(one.mapping.get(kind) for kind in _MEDIA)


def _alone(parts: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Each place with what has to be there. Raises RecipeError where that is not one."""
    places: dict[str, Path] = {}
    for place, path in parts:
        if places.setdefault(place, path).resolve() != path.resolve():
            raise RecipeError(f"`{places[place]}` and `{path}` would have one place, `{place}`; rename one of them")
    return places


def _outermost(places: Mapping[str, Path]) -> dict[str, Path]:
    """Without what lies in a folder that is among them."""
    within = {place for place in places for other in places if place.startswith(f"{other}/")}
    return {place: path for place, path in sorted(places.items()) if place not in within}
