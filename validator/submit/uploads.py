"""Files and data that a node needs when it shares no folder with this machine, and the paths that lead to them
there."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from validator.errors import RecipeError
from validator.knowledge.path_keys import PATH_KEYS
from validator.recipe import safe_read
from validator.recipe.recipe_file import path_override
from validator.run.dataset_registry import REGISTRY_FILE
from validator.run.launch_command import Launch
from validator.run.named_paths import find_inputs
from validator.run.settings import RunSettings
from validator.submit.cluster_job import ClusterJob, RunToSubmit
from validator.wording import relative_to_cwd

_INPUT_KEYS = [key for key in PATH_KEYS if key.access != "written"]
_OUTPUT_KEY = "output_dir"


@dataclass(frozen=True)
class Uploads:
    """What a node needs of this machine: the place on the node, relative to the folder that a run starts in, and the
    path here. `files` are small (recipe, DeepSpeed configuration, data set registry); `data` are data and models."""

    files: Mapping[str, Path]
    data: Mapping[str, Path]


def collect_uploads(to_submit: RunToSubmit, seen: Iterable[str] = ()) -> tuple[ClusterJob, Uploads]:
    """Return the cluster job with paths from the folder that a run starts in on a node, and what has to be there. A
    relative path of the recipe stays as it is, and so does the recipe; folders of `seen` are on the node, too. Raises
    RecipeError for a path with a space, at which LLaMA-Factory's launcher splits, and if two folders would have one
    place."""
    run, overrides, work = to_submit
    way = _NodePaths(tuple(seen))
    # Inputs that are on this machine; where a file belongs, without what is none.
    inputs = [each for each in find_inputs(run, _INPUT_KEYS)
              if each.key.kind != "file" or safe_read.path_kind(str(each.places[0])) == "file"]  # fmt: skip
    places = {}
    for each in inputs:
        places[each.key.name] = ",".join(way.place(word) if path else word for word, path in each.pairs())
    places[_OUTPUT_KEY] = way.written(str(run.args.get(_OUTPUT_KEY) or work.output))
    changed = {key: place for key, place in places.items() if place != run.args.get(key)}
    kept = [word for word in overrides if word.partition("=")[0] not in changed]
    words = (*kept, *(path_override(key, place) for key, place in changed.items()))
    recipe, starter = way.place(run.workspace.recipe), work.starter
    if problem := Launch(run).split_problem((recipe, *words)):
        raise RecipeError(f"{problem}; use a path without")
    small = [(recipe, Path(run.workspace.recipe))]
    if run.accelerate:
        place = way.place(str(run.header.get("accelerate")))
        starter = tuple(place if word == run.accelerate.path else word for word in starter)
        small.append((place, Path(run.accelerate.path)))
    output = Path(places[_OUTPUT_KEY])
    there = replace(work, recipe=Path(recipe), overrides=words, starter=starter, output=output)
    parts = [(each.key.kind, way.place(word), path) for each in inputs for word, path in each.pairs() if path]
    small += [(place, path) for kind, place, path in parts if kind == "file"]
    # Of the folders of data sets the files that are read are found one by one.
    large = [(place, path) for kind, place, path in parts if kind not in ("file", "data")]
    if run.data.registry and not run.data.registry.problem and "dataset_dir" in places:
        small.append((f"{places['dataset_dir']}/{REGISTRY_FILE}", run.data.registry.path))
        large += _dataset_files(run, places)
    return there, Uploads(_require_unique(small), _drop_nested(_require_unique(large)))


@dataclass(frozen=True)
class _NodePaths:
    """Maps paths here to paths on a node, which has the folders `seen` as well."""

    seen: tuple[str, ...]

    def place(self, path: str) -> str:
        """Return the place of what is read. One from outside of the working directory comes into it by its name."""
        place = self.written(path)
        known = not place.startswith("/") or any(PurePosixPath(place).is_relative_to(each) for each in self.seen)
        return place if known else posixpath.basename(place)

    def written(self, path: str) -> str:
        """Return the place of what is written: the same relative path, or the absolute one outside of the working
        directory."""
        normal = posixpath.normpath(path)
        if not normal.startswith(("/", "~", "../")) and normal != "..":
            return normal
        return str(relative_to_cwd(Path(os.path.abspath(safe_read.expand_home(path)))))  # noqa: PTH100 (links stay)


def _dataset_files(run: RunSettings, places: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of data sets, and the folder of their pictures and sounds if there are any."""
    named = {one.name: one for one in (*run.data.datasets, *run.data.evaluation_datasets)}
    sets = [one for one in named.values() if one.source == "file"]
    for one in sets:
        yield posixpath.join(places["dataset_dir"], str(one.entry.get("file_name"))), one.path
    media = "media_dir" if "media_dir" in places else "dataset_dir"
    if any(one.attr.has_media for one in sets) and (there := run.workspace.find(str(run.args.get(media)))):
        yield places[media], there[0]


def _require_unique(parts: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Return the path here of each place. Raises RecipeError if two paths have one place."""
    places: dict[str, Path] = {}
    for place, path in parts:
        if places.setdefault(place, path).resolve() != path.resolve():
            raise RecipeError(f"`{places[place]}` and `{path}` would have one place, `{place}`; rename one of them")
    return places


def _drop_nested(places: Mapping[str, Path]) -> dict[str, Path]:
    """Return the places without those inside of another one."""
    within = {place for place in places for other in places if place.startswith(f"{other}/")}
    return {place: path for place, path in sorted(places.items()) if place not in within}
