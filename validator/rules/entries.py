"""PTH118 to PTH123: values in a registry entry, scripts and cloud addresses, the media and rows of a data set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator.diagnostic import Place, Severity
from validator.job.datasets import SOURCES, Dataset
from validator.job.job import Job
from validator.read import disk
from validator.rules import columns
from validator.rules.rule import Finding, rule
from validator.rules.sets import At, remedied, sets, unknown

# Address -> package that fsspec opens it with, which LLaMA-Factory does not install (data/data_utils.py)
_CLOUDS = {"s3://": "s3fs", "gs://": "gcsfs", "gcs://": "gcsfs"}
_MEDIA = {"images": "image", "videos": "video", "audios": "audio"}

# What is wrong with an entry by itself, or beside the names of the columns, is told by these.
_BEFORE = (
    columns.ranking_against_stage,
    columns.formatting_unknown,
    columns.part_without_column,
    columns.column_absent,
    columns.tags_incomplete,
)


@rule("PTH118", Severity.ERROR)
def entry_value_wrong(job: Job) -> Iterator[Finding]:
    """A value in the registry entry is of a kind that LLaMA-Factory cannot use.

    Why: a TypeError or AttributeError, often without the entry's name, after the tokenizer is loaded on every rank.
    Source: llamafactory/data/parser.py:DatasetAttr.join, llamafactory/data/loader.py:_load_single_dataset
    Fix: names and addresses are text, `columns` and `tags` are objects of text, `num_samples` is a whole number.
    """
    for at, dataset in sets(job):
        for route, fault in faults(dataset.entry):
            yield at(*route), f"`{dataset.name}`: {fault} in dataset_info.json"


def faults(entry: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Routes into an entry, and what is wrong there."""
    source = next((name for name in SOURCES if name in entry), None)
    if source and not (isinstance(entry[source], str) and (entry[source] or source == "file_name")):
        yield (source,), f"`{source}` must be text, not {json.dumps(entry[source])}"
    for part in ("columns", "tags"):
        inner = entry.get(part, {})
        if inner is None or (isinstance(inner, list) and part == "tags"):
            yield (part,), f"`{part}` must be an object, not {json.dumps(inner)}; leave it out for the default"
        elif isinstance(inner, Mapping):
            wrong = [str(name) for name, to in inner.items() if to and _is_no_text(to)]
            yield from (((part, name), f"`{name}` in `{part}` must be text") for name in wrong)
    count = entry.get("num_samples")
    if count is not None and (not isinstance(count, int) or count < 0):
        yield ("num_samples",), f"`num_samples` must be a whole number, not {json.dumps(count)}"


def _is_no_text(value: object) -> bool:
    return not isinstance(value, str)


@rule("PTH119", Severity.ERROR, since="llamafactory 0.9.4")
def script_refused(job: Job) -> Iterator[Finding]:
    """The entry names a loading script.

    Why: the datasets library runs none since its release 4, which LLaMA-Factory installs: "Dataset scripts are no
    longer supported", after the tokenizer is loaded on every rank.
    Source: datasets/load.py:dataset_module_factory
    Fix: the data as files (`file_name`), or a hub address that holds files.
    """
    for at, dataset in sets(job):
        name = dataset.entry.get("script_url")
        if dataset.source != "script" or not isinstance(name, str):
            continue
        place = dataset.folder / name
        if disk.kind(place) == "file" or disk.kind(place / f"{place.name}.py") == "file":
            yield (
                at("script_url"),
                f"`{dataset.name}`: the script `{place}` is not run by datasets 4; give its data by `file_name`",
            )
        elif disk.kind(place) is None:
            yield (
                at("script_url"),
                f"`{dataset.name}`: `{place}` does not exist, and scripts are no longer run; use `file_name`",
            )


@rule("PTH120", Severity.ERROR)
def cloud_address_refused(job: Job) -> Iterator[Finding]:
    """The cloud address is none of those that LLaMA-Factory opens.

    Why: "Unsupported protocol in path", after the tokenizer is loaded on every rank.
    Source: llamafactory/data/data_utils.py:setup_fs
    Fix: `s3://bucket/file.json`, `gs://bucket/file.jsonl`, or download the file and name it by `file_name`.
    """
    for at, dataset in sets(job):
        address = dataset.entry.get("cloud_file_name")
        if dataset.source == "cloud" and isinstance(address, str) and not address.startswith(tuple(_CLOUDS)):
            yield (
                at("cloud_file_name"),
                f"`{dataset.name}`: `{address}` is no cloud address; it begins with s3://, gs:// or gcs://",
            )


@rule("PTH121", Severity.ERROR)
def media_refused(job: Job) -> Iterator[Finding]:
    """The samples hold pictures, films or sound that cannot be used.

    Why: "This model does not support image input", or a file that is not there, while the data is tokenized, on every
    rank; or "The number of images does not match the number of <image> tokens". Looked at are the first rows of a
    local file.
    Source: llamafactory/data/mm_plugin.py:MMPluginMixin._validate_input,
    llamafactory/data/mm_plugin.py:MMPluginMixin._validate_messages,
    llamafactory/data/converter.py:DatasetConverter._find_medias
    Fix: a template for images and a model that goes with it; `media_dir` is the folder that the paths count from
    (default: `dataset_dir`); in the turns one `<image>` for each picture.
    """
    known = job.template or {}
    for at, dataset in sets(job) if known and job.stage != "pt" else ():
        for part, kind in _MEDIA.items():
            missing = _missing(job, dataset, part)
            if kind not in known.get("media", ()) and _holds(dataset, part):
                yield (
                    at("columns", part, against=("template",)),
                    f"`{dataset.name}` holds {part}, which template {job.get('template')} does not take",
                )
            elif missing:
                where = job.get("media_dir") or dataset.folder
                yield at("columns", part), f"`{dataset.name}`: {missing} is not in `{where}`; set `media_dir`"
            elif kind in known.get("media", ()) and (why := _miscounted(job, dataset, part)):
                yield at("columns", part), f"`{dataset.name}`: {why}"


@rule("PTH122", Severity.NOTE)
def package_needed(job: Job) -> Iterator[Finding]:
    """The data are read with a package that LLaMA-Factory does not bring.

    Why: "Install s3fs to access S3" or "PackageNotFoundError", after the tokenizer is loaded on every rank.
    Source: llamafactory/data/data_utils.py:setup_fs, llamafactory/data/loader.py:_load_single_dataset
    Fix: `pip install s3fs` for s3://, gcsfs for gs://, modelscope for `ms_hub_url`, openmind for `om_hub_url`.
    """
    for at, dataset in sets(job):
        package = _package(dataset.entry)
        if package:
            address = next(name for name in SOURCES if name in dataset.entry)
            yield at(address), f"`{dataset.name}` is read with the package {package}; install it"


@rule("PTH123", Severity.ERROR)
def rows_unlike_entry(job: Job) -> Iterator[Finding]:
    """No row of the data can be trained as the registry entry describes it, or one ends the run.

    Why: KeyError such as 'from' while the data set is converted; or every row is dropped, a warning for each: "Cannot
    find valid samples". Looked at are the first rows of a local file.
    Source: llamafactory/data/converter.py:AlpacaDatasetConverter.__call__,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__,
    llamafactory/data/converter.py:OpenAIDatasetConverter.__call__
    Fix: the entry that the message gives; `lmf-recipes data FILE --register NAME` writes it for a file.
    """
    for at, dataset in sets(job):
        rows = dataset.rows
        if not rows or not rows.head or rows.problem:
            continue
        if why := _why(job, at, dataset, rows.head):
            yield at(), f"`{dataset.name}`: {why}{remedied(job, dataset, unknown(dataset))}"


def _why(job: Job, at: At, dataset: Dataset, rows: Sequence[Mapping[str, Any]]) -> str:
    """Why no row is trained, or which one ends the run, where no other rule says it."""
    from validator.samples.outcome import reason, stopping  # for which a recipe without local data does not wait

    if any(True for _ in faults(dataset.entry)):
        return ""
    untrained, route = reason(dataset.entry, job.stage, rows), at().route
    why = f"no row can be trained: {untrained}" if untrained else ""
    why = why or stopping(dataset.entry, job.stage, _read(job, dataset))
    told = (place for each in _BEFORE for place, *_ in each.check(job)) if why else ()
    return "" if any(isinstance(place, Place) and place.route[: len(route)] == route for place in told) else why


def _read(job: Job, dataset: Dataset) -> Sequence[Mapping[str, Any]]:
    """The first rows, as far as they are read for certain."""
    rows = dataset.rows
    if not rows or rows.problem or "num_samples" in dataset.entry:  # which draws rows at random
        return ()
    return rows.head[: int(job.number("max_samples") or len(rows.head))]


def _miscounted(job: Job, dataset: Dataset, part: str) -> str:
    """Which row has more or fewer marks than files, where the entry can be read."""
    from validator.samples.media import miscounted

    if dataset.entry.get("formatting", "alpaca") not in columns.FORMATS or any(True for _ in faults(dataset.entry)):
        return ""
    return miscounted(dataset.entry, job.stage, _read(job, dataset), part)


def _package(entry: Mapping[str, Any]) -> str | None:
    """What reads the entry beyond the datasets library; a Hugging Face address beside another hub's wins."""
    if "hf_hub_url" in entry:
        return None
    if "ms_hub_url" in entry or "om_hub_url" in entry:
        return "modelscope" if "ms_hub_url" in entry else "openmind"
    address = "" if "script_url" in entry else str(entry.get("cloud_file_name"))
    return next((package for start, package in _CLOUDS.items() if address.startswith(start)), None)


def _holds(dataset: Dataset, part: str) -> bool:
    """Whether a row that is at hand has a file in this column."""
    column, rows = dataset.named(part), dataset.rows
    return bool(column and rows and any(row.get(column) for row in rows.head))


def _missing(job: Job, dataset: Dataset, part: str) -> str:
    """The first file of the rows at hand that LLaMA-Factory finds neither in `media_dir` nor in the working directory,
    with its row; empty where all are there."""
    from validator.samples.media import lost_files  # for which a recipe without local data does not wait

    column = dataset.named(part)
    folder = str(job.get("media_dir") or dataset.folder)
    for number, row in enumerate(_read(job, dataset) if column else (), 1):
        lost = (path for path in lost_files(row.get(column), folder) if not job.find(f"{folder}/{path}"))
        if path := next(lost, ""):
            return f"`{path}` of row {number}"
    return ""
