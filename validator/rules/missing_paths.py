"""PTH030, and which paths are missing: on this machine, and not because only the training machine has them."""

from __future__ import annotations

import re
from pathlib import Path

from validator.knowledge.path_keys import READ_KEYS, PathKey
from validator.recipe import safe_read
from validator.rules.rule import NOTE, Findings, rule
from validator.run.dataset_registry import REGISTRY_FILE
from validator.run.named_paths import named_paths
from validator.run.settings import RunSettings
from validator.run.trained_model import is_local_name
from validator.wording import plural, quoted_names

# What a folder of weights holds beside them. A repository may hold the folder, and not the weights.
_CONFIG_OF_KIND = {"model": "config.json", "adapter": "adapter_config.json"}


def has_variable(path: str) -> bool:
    """True if the path contains `~` or an environment variable."""
    return ("~" in path or "$" in path) and bool(re.search(r"^~|(?<!\\)\$[\w{]", path))


def registry_is_elsewhere(run: RunSettings) -> bool:
    """True if dataset_info.json may be missing because the run is started elsewhere. If the recipe names no folder, its
    place is in the folder in which the run is started, mostly LLaMA-Factory's own checkout."""
    folder = run.args.get("dataset_dir")
    by_default = run.workspace.options.paths == "note" and not run.args.is_set("dataset_dir")
    return by_default or run.workspace.may_be_elsewhere(f"{folder}/{REGISTRY_FILE}")


def is_missing(run: RunSettings, path: str | Path, kind: str) -> bool:
    """True if a path does not exist, and is not one that may exist on the training machine alone. Paths with variables
    are left to PTH004. `kind`: the kind of the path's key (PathKey)."""
    found = run.workspace.find(str(path)) or has_variable(str(path))
    return not found and not run.workspace.may_be_elsewhere(path, kind)


def if_elsewhere(run: RunSettings, path: str | Path) -> str:
    """Return, as text to append to a message on a missing path, what to do if git ignores the path or it leads to a
    folder of the training machine; an empty string for any other path."""
    prefixes, ignored = run.workspace.options.path_prefixes, run.workspace.is_ignored_by_git(path)
    if prefixes is None:
        return "; git ignores it, so bring it to this machine, where the run starts" if ignored else ""
    if not (ignored or (prefixes and Path(path).is_absolute())):
        return ""
    found = "git ignores it: " if ignored else ""
    return f"; {found}if the training machine has it, name its folder in `path-prefixes` of the configuration"


@rule("PTH030", NOTE)
def paths_elsewhere(run: RunSettings) -> Findings:
    """Paths are not looked for, because they may exist on the training machine alone.

    Why: with `check --hook`, `--paths note` or `paths = "note"` in the configuration, a path that leads out of the
    repository or that git ignores, a model, an adapter or the result of a run is no error where it is missing. Any
    other path inside of the repository is. Paths below `path-prefixes` are taken to exist, and are not told.
    Source: own (`lmf-recipes train` looks for them on the machine that trains)
    Fix: none is needed; `--paths error` makes each of them an error.
    """
    if run.workspace.options.paths == "error":
        return
    wanted = [(path, key) for key, path in named_paths(run, READ_KEYS) if not key.may_be_on_hub or is_local_name(path)]
    paths = [path for path, key in wanted if _is_elsewhere(run, path, key)]
    files = (each.path for each in run.data.datasets if each.source == "file" and not each.present)
    paths += [str(path) for path in files if run.workspace.may_be_elsewhere(path)]
    if doubtful := [path for path in paths if not run.workspace.is_taken_to_exist(path)]:
        found = f"{len(doubtful)} {plural(len(doubtful), 'path')} may exist on the training machine alone"
        yield None, f"{found}: {quoted_names(doubtful)}; `check --paths error` looks for them"


def _is_elsewhere(run: RunSettings, path: str, key: PathKey) -> bool:
    """True if the path of a key is not looked for. Of `dataset_dir` the registry counts, if the run reads it."""
    if key.name == "dataset_dir" and run.data.registry:
        return not run.workspace.find(f"{path}/{REGISTRY_FILE}") and registry_is_elsewhere(run)
    location = run.workspace.find(path)
    if location and key.kind in _CONFIG_OF_KIND:
        is_whole = safe_read.path_kind(location[0] / _CONFIG_OF_KIND[key.kind]) == "file"
        return not is_whole and run.workspace.may_be_elsewhere(path, key.kind)
    return not (location or has_variable(path)) and run.workspace.may_be_elsewhere(path, key.kind)
