"""PTH105, PTH106 and PTH112 to PTH114: the files that an entry of the registry names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job import datasets
from validator.job.job import Job
from validator.read import disk
from validator.rules.rule import Finding, rule
from validator.rules.sets import sets
from validator.tables.suggestion import suggest


@rule("PTH105", Severity.ERROR)
def data_file_missing(job: Job) -> Iterator[Finding]:
    """The file of a data set does not exist.

    Why: "File … not found" after the tokenizer is loaded on every rank.
    Source: llamafactory/data/loader.py:_load_single_dataset
    Fix: put the file there; `file_name` counts from `dataset_dir`.
    """
    for at, dataset in sets(job):
        if dataset.source == "file" and not dataset.present:
            near = suggest(str(dataset.entry["file_name"]), [path.name for path in disk.matching(dataset.folder, "*")])
            yield (
                at("file_name"),
                f"`{dataset.name}`: `{dataset.path}` does not exist; `file_name` counts from `dataset_dir`{near}",
            )


@rule("PTH106", Severity.ERROR)
def file_type_refused(job: Job) -> Iterator[Finding]:
    """A data file has an ending LLaMA-Factory does not read, or a folder mixes several types.

    Why: "Allowed file types" or "File types should be identical", after the tokenizer is loaded. In a folder every
    entry counts, a README and a subfolder too.
    Source: llamafactory/data/loader.py:_load_single_dataset, llamafactory/extras/constants.py:FILEEXT2TYPE
    Fix: use arrow, csv, json, jsonl, parquet or txt, and one type for each folder.
    """
    for at, dataset in sets(job):
        known = datasets.suffixes() if dataset.files else {}
        kinds = {known.get(path.suffix[1:]): path for path in dataset.files}
        if dataset.source == "file" and dataset.present and disk.kind(dataset.path) == "folder" and not kinds:
            yield at("file_name"), f"`{dataset.name}`: the folder `{dataset.path}` is empty"
        elif None in kinds:
            yield at("file_name"), f"`{dataset.name}`: `{kinds[None]}` is not read; use one of {', '.join(known)}"
        elif len(kinds) > 1:
            mixed = ", ".join(path.suffix for path in kinds.values())
            yield at("file_name"), f"`{dataset.name}`: `{dataset.path}` mixes {mixed}; keep one type in a folder"


@rule("PTH112", Severity.ERROR)
def split_unknown(job: Job) -> Iterator[Finding]:
    """A local file is asked for a split other than train.

    Why: "Unknown split" or "Unrecognized instruction format": local files are one split, called train.
    Source: datasets/arrow_reader.py:_rel_to_abs_instr, datasets/arrow_reader.py:_str_to_read_instruction
    Fix: leave `split` out, or take a part: `train[:1000]`.
    """
    for at, dataset in sets(job):
        split = dataset.entry.get("split", "train")
        if dataset.source == "file" and not all(_is_split(part) for part in str(split).split("+")):
            yield at("split"), f"`{dataset.name}`: split `{split}` does not exist in a local file, all of it is `train`"


@rule("PTH113", Severity.ERROR)
def data_unreadable(job: Job) -> Iterator[Finding]:
    """A data file is empty or cannot be read as what its name says.

    Why: an error of the datasets library after the tokenizer is loaded.
    Source: llamafactory/data/loader.py:_load_single_dataset,
    datasets/packaged_modules/json/json.py:Json._generate_tables
    Fix: correct the file; JSON is a list of objects, or one object on each line.
    """
    for at, dataset in sets(job):
        if dataset.rows and dataset.rows.problem:
            yield at("file_name"), f"`{dataset.name}`: {dataset.rows.problem}"
        elif dataset.rows and not dataset.rows.number:
            yield at("file_name"), f"`{dataset.name}`: `{dataset.path}` holds no row"


@rule("PTH114", Severity.WARNING)
def file_ignored(job: Job) -> Iterator[Finding]:
    """The entry names a hub and a local file; the file is not used.

    Why: a hub address wins, so the run downloads, or fails without a network, although the file is there.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: remove the hub address from the entry.
    """
    for at, dataset in sets(job):
        if dataset.source == "hub" and "file_name" in dataset.entry and dataset.present:
            yield (
                at("file_name", at_key=True),
                f"`{dataset.name}`: the hub address wins, `{dataset.path}` is not used; remove one of them",
            )


def _is_split(text: str) -> bool:
    """Whether the datasets library takes it for a file: `train`, or a part such as `train[:10%]` (arrow_reader.py)."""
    return text == "train" or bool(
        re.fullmatch(r"\s*(train|all)(\[(-?[\d_]+%?)?:(-?[\d_]+%?)?\])?(\([^)]*\))?\s*", text)
    )
