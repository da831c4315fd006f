"""Files and data to bring to a node that shares no folder with this machine, and the paths that they get on the
node."""

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
    """Files of this machine by the path that they get on a node, relative to the folder in which the run starts.
    `files` are small files: recipe, DeepSpeed configuration, data set registry. `data` are data sets and models."""

    files: Mapping[str, Path]
    data: Mapping[str, Path]


def collect_uploads(to_submit: RunToSubmit, shared_folders: Iterable[str] = ()) -> tuple[ClusterJob, Uploads]:
    """Return the cluster job with the paths that its files get on a node, and the files to bring there. Relative paths
    below the working directory stay as they are. Absolute paths below one of `shared_folders` stay as well, because the
    node has these folders. Raises RecipeError if a path contains a space, which would split the launcher's command, or
    if two different files would get the same path."""
    run, overrides, work = to_submit
    node_paths = _NodePaths(tuple(shared_folders))
    # Inputs that are on this machine; where a file belongs, without what is none.
    inputs = [each for each in find_inputs(run, _INPUT_KEYS)
              if each.key.kind != "file" or safe_read.path_kind(str(each.places[0])) == "file"]  # fmt: skip
    places = {}
    for each in inputs:
        places[each.key.name] = ",".join(node_paths.place(word) if path else word for word, path in each.pairs())
    places[_OUTPUT_KEY] = node_paths.written(str(run.args.get(_OUTPUT_KEY) or work.output))
    changed = {key: place for key, place in places.items() if place != run.args.get(key)}
    kept = [word for word in overrides if word.partition("=")[0] not in changed]
    words = (*kept, *(path_override(key, place) for key, place in changed.items()))
    recipe, starter = node_paths.place(run.workspace.recipe), work.starter
    if problem := Launch(run).split_problem((recipe, *words)):
        raise RecipeError(f"{problem}; use a path without")
    small = [(recipe, Path(run.workspace.recipe))]
    if run.accelerate:
        place = node_paths.place(str(run.header.get("accelerate")))
        starter = tuple(place if word == run.accelerate.path else word for word in starter)
        small.append((place, Path(run.accelerate.path)))
    output = Path(places[_OUTPUT_KEY])
    node_job = replace(work, recipe=Path(recipe), overrides=words, starter=starter, output=output)
    parts = [(each.key.kind, node_paths.place(word), path) for each in inputs for word, path in each.pairs() if path]
    small += [(place, path) for kind, place, path in parts if kind == "file"]
    # Of the folders of data sets the files that are read are found one by one.
    large = [(place, path) for kind, place, path in parts if kind not in ("file", "data")]
    if run.data.registry and not run.data.registry.problem and "dataset_dir" in places:
        small.append((f"{places['dataset_dir']}/{REGISTRY_FILE}", run.data.registry.path))
        large += _dataset_files(run, places)
    return node_job, Uploads(_require_unique(small), _drop_nested(_require_unique(large)))


@dataclass(frozen=True)
class _NodePaths:
    """Translates paths on this machine into paths on a node. Folders in `seen` exist on the node under the same
    path."""

    seen: tuple[str, ...]

    def place(self, path: str) -> str:
        """Return the path on the node for a file or folder that the run reads. A path outside of the working directory
        and of the folders in `seen` becomes its last component."""
        place = self.written(path)
        is_on_node = not place.startswith("/") or any(PurePosixPath(place).is_relative_to(each) for each in self.seen)
        return place if is_on_node else posixpath.basename(place)

    def written(self, path: str) -> str:
        """Return the path on the node for a file or folder that the run writes. The path is relative if it lies in the
        working directory, and absolute otherwise."""
        normal = posixpath.normpath(path)
        if not normal.startswith(("/", "~", "../")) and normal != "..":
            return normal
        return str(relative_to_cwd(Path(os.path.abspath(safe_read.expand_home(path)))))  # noqa: PTH100 (links stay)


def _dataset_files(run: RunSettings, places: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of the recipe's data sets as pairs of path on the node and path on this machine. If a data set
    has images, videos or sound, also yield the media folder."""
    datasets = {one.name: one for one in (*run.data.datasets, *run.data.evaluation_datasets)}
    sets = [one for one in datasets.values() if one.source == "file"]
    for one in sets:
        yield posixpath.join(places["dataset_dir"], str(one.entry.get("file_name"))), one.path
    media = "media_dir" if "media_dir" in places else "dataset_dir"
    if any(one.attr.has_media for one in sets) and (media_folder := run.workspace.find(str(run.args.get(media)))):
        yield places[media], media_folder[0]


def _require_unique(parts: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Return the pairs as a mapping from path on the node to path on this machine. Raises RecipeError if two different
    files would get the same path on the node."""
    places: dict[str, Path] = {}
    for place, path in parts:
        if safe_read.real_path(places.setdefault(place, path)) != safe_read.real_path(path):
            raise RecipeError(f"`{places[place]}` and `{path}` would have one place, `{place}`; rename one of them")
    return places


def _drop_nested(places: Mapping[str, Path]) -> dict[str, Path]:
    """Return the mapping without paths that lie inside another path of the mapping, because the outer folder brings
    them along."""
    nested = {place for place in places for outer in places if place.startswith(f"{outer}/")}
    return {place: path for place, path in sorted(places.items()) if place not in nested}
