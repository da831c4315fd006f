"""PTH101 to PTH104, PTH115 and PTH117: the data set registry, and what is named of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from validator.diagnostic import Place, Severity
from validator.job import datasets
from validator.job.job import Job
from validator.rules import inside, paths
from validator.rules.rule import MOST, Finding, rule
from validator.rules.sets import sets
from validator.tables.suggestion import suggest

_MEDIA = ("images", "videos", "audios")
_KEYS = {
    *datasets.SOURCES, "formatting", "ranking", "subset", "split", "folder", "num_samples", "columns", "tags",
}  # fmt: skip
_COLUMNS = {
    "prompt", "query", "response", "history", "messages", "system", "tools", *_MEDIA, "chosen", "rejected", "kto_tag"
}  # fmt: skip


@rule("PTH101", Severity.ERROR)
def registry_missing(job: Job) -> Iterator[Finding]:
    """`dataset_dir` has no dataset_info.json, which says what the data set names mean.

    Why: every process stops after the tokenizer is loaded: "Cannot open data/dataset_info.json".
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: `lmf-recipes data FILE --register NAME` creates it; or set `dataset_dir` to its folder (default `data`, from
    the working directory).
    """
    if _missing(job) and not job.tokenized and not paths.astray(job):  # else told by PTH001
        files = (_register(job, name) for key in ("dataset", "eval_dataset") for name in job.words(key))
        remedy = next((command for command in files if command), "create it, or set `dataset_dir` to its folder")
        missing = f"`{job.get('dataset_dir')}/{datasets.REGISTRY}` does not exist, so no data set is defined"
        yield _blame(job), f"{missing}; {remedy}"


@rule("PTH102", Severity.ERROR)
def registry_unreadable(job: Job) -> Iterator[Finding]:
    """dataset_info.json is not a JSON object.

    Why: every process stops after the tokenizer is loaded.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: correct the place named; JSON has no comments, no trailing commas and only double quotes.
    """
    if job.registry and job.registry.problem and not _missing(job) and not job.tokenized:
        yield _broken(job), f"{job.registry.problem}; no data set is defined without it"


@rule("PTH103", Severity.ERROR)
def data_set_undefined(job: Job) -> Iterator[Finding]:
    """A data set is not in dataset_info.json.

    Why: `dataset` takes names of that file, not files or hub names: "Undefined dataset" after the tokenizer is loaded.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: use the name as it is written there, or add an entry: `lmf-recipes data FILE --register NAME`.
    """
    if not job.registry or job.registry.problem or job.tokenized:
        return
    for key in ("dataset", "eval_dataset"):
        for name in job.words(key):
            if name not in job.registry.entries:
                yield inside.item(job, key, name), _undefined(job, name, job.registry.entries)


@rule("PTH104", Severity.ERROR)
def entry_without_source(job: Job) -> Iterator[Finding]:
    """The registry entry does not say where the data are.

    Why: KeyError 'file_name' after the tokenizer is loaded.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: give the entry `file_name`, `hf_hub_url`, `ms_hub_url`, `om_hub_url`, `script_url` or `cloud_file_name`.
    """
    for at, dataset in sets(job):
        if dataset.source is None:
            near = next(filter(None, (suggest(name, _KEYS) for name in islice(dataset.entry, MOST))), "")
            yield (
                at(),
                f"`{dataset.name}` names no source in dataset_info.json; give it `file_name` or `hf_hub_url`{near}",
            )


@rule("PTH115", Severity.WARNING)
def entry_key_ignored(job: Job) -> Iterator[Finding]:
    """The entry holds a key that LLaMA-Factory does not read.

    Why: it is ignored without a word, so the default applies.
    Source: llamafactory/data/parser.py:DatasetAttr.join
    Fix: correct or remove it.
    """
    for at, dataset in sets(job):
        columns = dataset.entry.get("columns")
        ignored = [((name,), _KEYS) for name in dataset.entry if name not in _KEYS] if dataset.source else []
        given = columns if isinstance(columns, Mapping) else ()
        for route, known in [*ignored, *((("columns", name), _COLUMNS) for name in given if name not in _COLUMNS)]:
            name = route[-1]
            place = at(*route, at_key=True)
            yield place, f"`{dataset.name}`: `{name}` in dataset_info.json is ignored{suggest(name, known)}"


@rule("PTH117", Severity.WARNING)
def data_set_twice(job: Job) -> Iterator[Finding]:
    """A data set is named twice.

    Why: it is trained on once only.
    Source: llamafactory/data/loader.py:_get_merged_dataset
    Fix: name it once; `num_samples` in the entry draws more samples than there are.
    """
    for key in ("dataset", "eval_dataset"):
        for name, times in Counter(job.words(key)).items():
            if times > 1:
                yield inside.item(job, key, name), f"`{name}` is named {times} times, but used once"


def _missing(job: Job) -> bool:
    place = job.get("dataset_dir")
    return job.registry is not None and isinstance(place, str) and job.find(f"{place}/{datasets.REGISTRY}") is None


def _broken(job: Job) -> Place:
    """The fault in the registry file."""
    return Place((), str(job.registry.path) if job.registry else None, _blame(job))


def _blame(job: Job) -> str:
    return "dataset_dir" if job.has("dataset_dir") else "dataset" if job.has("dataset") else "eval_dataset"


def _undefined(job: Job, name: str, known: Mapping[str, object]) -> str:
    if not name:
        return "an empty data set name; remove the extra comma"
    stem, command = Path(name).stem, _register(job, name)
    if not _is_path(name):
        near = suggest(name, known) if job.registry is None or job.quotes(job.registry.path) else ""
        return f"`{name}` is not defined in dataset_info.json{near or (command and f'; {command}')}"
    example = f'an entry such as "{stem}": {{"file_name": "{Path(name).name}"}}'
    remedy = f"use `{stem}`" if stem in known else command or f"use {example}"
    return f"`{name}` is a path, `dataset` takes names of dataset_info.json; {remedy}"


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(tuple(f".{suffix}" for suffix in datasets.suffixes()))


def _register(job: Job, name: str) -> str:
    """The command that defines a data set where a file of this name lies in the working directory or `dataset_dir`."""
    from validator.quoting import quote  # which no clean recipe needs

    folder = str(job.registry.folder) if job.registry else "data"
    names = [name] if _is_path(name) else [f"{name}.{suffix}" for suffix in datasets.suffixes()]
    places = (place for each in names if each for place in (each, f"{folder}/{each}"))
    file = next((place for place in places if (there := job.find(place)) and there[1]), None)
    if file is None:
        return ""
    stem = Path(name).stem if _is_path(name) else name
    where = (
        "" if folder == "data" and Path(file).parent in (Path(), Path("data")) else f" --dataset-dir {quote(folder)}"
    )
    used = "" if stem == name else f", and set `dataset: {stem}`"
    return f"run `lmf-recipes data {quote(file)} --register {quote(stem)}{where}`{used}"
