"""PTH1xx: the data set registry, its entries, and the files they name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from validator.diagnostic import Severity
from validator.job import datasets
from validator.job.datasets import Dataset
from validator.job.job import Job
from validator.rules.rule import Finding, rule
from validator.tables.suggestion import suggest

_FORMATS = ("alpaca", "sharegpt", "openai")
_MEDIA = ("images", "videos", "audios")
# Parts of a sample that the converter looks up in every row when they are mapped (data/converter.py).
_READ = {
    "alpaca": ("prompt", "query", "history", "system", "tools", "kto_tag", *_MEDIA),
    "sharegpt": ("messages", "tools", "kto_tag", *_MEDIA),
    "openai": ("messages", "kto_tag", *_MEDIA),
}
_TAGS = ("role_tag", "content_tag", "user_tag", "assistant_tag")
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
    Fix: create the file, or set `dataset_dir` to its folder (default `data`, from the working directory).
    """
    if _missing(job) and not job.tokenized:
        yield (
            _blame(job),
            (
                f"`{job.get('dataset_dir')}/dataset_info.json` does not exist, so no data set is defined; "
                "create it, or set `dataset_dir` to its folder"
            ),
        )


@rule("PTH102", Severity.ERROR)
def registry_unreadable(job: Job) -> Iterator[Finding]:
    """dataset_info.json is not a JSON object.

    Why: every process stops after the tokenizer is loaded.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: correct the place named; JSON has no comments, no trailing commas and only double quotes.
    """
    if job.registry and job.registry.problem and not _missing(job) and not job.tokenized:
        yield _blame(job), f"{job.registry.problem}; no data set is defined without it"


@rule("PTH103", Severity.ERROR)
def data_set_undefined(job: Job) -> Iterator[Finding]:
    """A data set is not in dataset_info.json.

    Why: `dataset` takes names of that file, not files or hub names: "Undefined dataset" after the tokenizer is loaded.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: use the name as it is written there, or add an entry such as `"my_data": {"file_name": "my_data.json"}`.
    """
    if not job.registry or job.registry.problem or job.tokenized:
        return
    for key in ("dataset", "eval_dataset"):
        for name in job.words(key):
            if name not in job.registry.entries:
                yield key, _undefined(name, job.registry.entries)


@rule("PTH104", Severity.ERROR)
def entry_without_source(job: Job) -> Iterator[Finding]:
    """The registry entry does not say where the data are.

    Why: KeyError 'file_name' after the tokenizer is loaded.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: give the entry `file_name`, `hf_hub_url`, `ms_hub_url`, `om_hub_url`, `script_url` or `cloud_file_name`.
    """
    for key, found in sets(job):
        if found.source is None:
            near = next((suggest(name, _KEYS) for name in found.entry if suggest(name, _KEYS)), "")
            yield key, f"`{found.name}` names no source in dataset_info.json; give it `file_name` or `hf_hub_url`{near}"


@rule("PTH105", Severity.ERROR)
def data_file_missing(job: Job) -> Iterator[Finding]:
    """The file of a data set does not exist.

    Why: "File not found" after the tokenizer is loaded on every rank.
    Source: llamafactory/data/loader.py:_load_single_dataset
    Fix: put the file there; `file_name` counts from `dataset_dir`.
    """
    for key, found in sets(job):
        if found.source == "file" and not found.present:
            near = suggest(str(found.entry["file_name"]), [path.name for path in found.folder.glob("*")])
            yield key, f"`{found.name}`: `{found.path}` does not exist; `file_name` counts from `dataset_dir`{near}"


@rule("PTH106", Severity.ERROR)
def file_type_refused(job: Job) -> Iterator[Finding]:
    """A data file has an ending LLaMA-Factory does not read, or a folder mixes several types.

    Why: "Allowed file types" or "File types should be identical", after the tokenizer is loaded. In a folder every
    entry counts, a README and a subfolder too.
    Source: llamafactory/data/loader.py:_load_single_dataset, llamafactory/extras/constants.py:FILEEXT2TYPE
    Fix: use arrow, csv, json, jsonl, parquet or txt, and one type for each folder.
    """
    for key, found in sets(job):
        known = datasets.suffixes() if found.files else {}
        kinds = {known.get(path.suffix[1:]): path for path in found.files}
        if found.source == "file" and found.present and found.path.is_dir() and not kinds:
            yield key, f"`{found.name}`: the folder `{found.path}` is empty"
        elif None in kinds:
            yield key, f"`{found.name}`: `{kinds[None]}` is not read; use one of {', '.join(known)}"
        elif len(kinds) > 1:
            mixed = ", ".join(path.suffix for path in kinds.values())
            yield key, f"`{found.name}`: `{found.path}` mixes {mixed}; keep one type in a folder"


@rule("PTH107", Severity.ERROR)
def ranking_against_stage(job: Job) -> Iterator[Finding]:
    """Preference pairs are trained in a stage that takes none, or the other way round.

    Why: "The dataset is not applicable in the current training stage", after the tokenizer is loaded; for a `ranking`
    that is neither true nor false, "KeyError: None" when the data is read.
    Source: llamafactory/data/loader.py:_get_merged_dataset
    Fix: `ranking: true` in the entry for dpo and rm, and only there.
    """
    pairs = job.stage in ("dpo", "rm")
    for key, found in sets(job):
        ranking = bool(found.entry.get("ranking"))  # LLaMA-Factory converts by truth: 1 and "false" are pairs
        if pairs and not ranking:
            yield key, f"`{found.name}` holds no preference pairs (`ranking` is not true), stage {job.stage} needs them"
        elif not pairs and ranking:
            yield key, f"`{found.name}` holds preference pairs (`ranking: true`), stage {job.stage} takes none"


@rule("PTH108", Severity.ERROR)
def formatting_unknown(job: Job) -> Iterator[Finding]:
    """The entry's `formatting` is none that LLaMA-Factory knows.

    Why: "Dataset converter not found" after the tokenizer is loaded and the file is read.
    Source: llamafactory/data/converter.py:get_dataset_converter
    Fix: `alpaca` (the default), `sharegpt` or `openai`, in lower case.
    """
    for key, found in sets(job):
        form = found.entry.get("formatting", "alpaca")
        if form not in _FORMATS:
            near = suggest(str(form).lower(), _FORMATS)
            yield key, f"`{found.name}`: formatting `{form}` is none of alpaca, sharegpt, openai{near}"


@rule("PTH109", Severity.ERROR)
def part_without_column(job: Job) -> Iterator[Finding]:
    """A part that the stage needs has no column.

    Why: as soon as an entry has `columns`, every part it leaves out has no column. "KeyError: None" or "Cannot find
    valid samples", after the whole data set is converted or tokenized.
    Source: llamafactory/data/parser.py:DatasetAttr.join,
    llamafactory/data/converter.py:AlpacaDatasetConverter.__call__,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__
    Fix: list every part used: prompt, query and response for alpaca, messages for sharegpt, chosen and rejected for
    pairs, kto_tag for kto.
    """
    for key, found in sets(job):
        absent = [part for part in _needed(job, found) if not found.mapping.get(part)]
        if absent and (key == "dataset" or absent != ["response"]):
            parts = " and ".join(f"`{part}`" for part in absent)
            yield key, f"`{found.name}`: `columns` in dataset_info.json lacks {parts}, which stage {job.stage} needs"
        elif job.stage == "sft" and key == "dataset" and found.mapping.get("kto_tag"):
            yield key, f"`{found.name}` has a `kto_tag` column, so stage sft drops every sample; use stage kto"


@rule("PTH110", Severity.ERROR)
def column_absent(job: Job) -> Iterator[Finding]:
    """A column of the registry entry, or one that is read by default, is not in the data.

    Why: KeyError while the data set is converted. Without `columns`, alpaca data need instruction, input and output;
    `input` may be empty but must be there.
    Source: llamafactory/data/parser.py:DatasetAttr.join,
    llamafactory/data/converter.py:AlpacaDatasetConverter.__call__,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__
    Fix: map the names the data use in `columns`, or rename them.
    """
    for key, found in sets(job):
        if not found.rows or found.rows.columns is None or found.rows.problem or not found.rows.count:
            continue
        absent = sorted({name for name in _read(found) if name not in found.rows.columns})
        if absent:
            here, names = ", ".join(sorted(found.rows.columns)[:8]), "`, `".join(absent)
            yield key, f"`{found.name}`: no column `{names}` in `{found.path}` (it has {here}); set `columns`"


@rule("PTH111", Severity.ERROR)
def tags_incomplete(job: Job) -> Iterator[Finding]:
    """`tags` leaves out a tag that every sample needs.

    Why: as soon as an entry has `tags`, every tag it leaves out is unset: KeyError, or all samples are dropped.
    Source: llamafactory/data/parser.py:DatasetAttr.join,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__,
    llamafactory/data/converter.py:OpenAIDatasetConverter.__call__
    Fix: list role_tag, content_tag, user_tag and assistant_tag; system_tag where samples start with a system turn.
    """
    for key, found in sets(job):
        tags = found.entry.get("tags")
        if not isinstance(tags, Mapping) or found.entry.get("formatting") not in ("sharegpt", "openai"):
            continue
        absent = [tag for tag in _TAGS if not tags.get(tag)]
        if absent:
            yield key, f"`{found.name}`: `tags` leaves out {', '.join(absent)}, which unsets the default; list all four"


@rule("PTH112", Severity.ERROR)
def split_unknown(job: Job) -> Iterator[Finding]:
    """A local file is asked for a split other than train.

    Why: "Unknown split" or "Unrecognized instruction format": local files are one split, called train.
    Source: datasets/arrow_reader.py:_rel_to_abs_instr, datasets/arrow_reader.py:_str_to_read_instruction
    Fix: leave `split` out, or take a part: `train[:1000]`.
    """
    for key, found in sets(job):
        split = found.entry.get("split", "train")
        if found.source == "file" and not all(_is_split(part) for part in str(split).split("+")):
            yield key, f"`{found.name}`: split `{split}` does not exist in a local file, all of it is `train`"


@rule("PTH113", Severity.ERROR)
def data_unreadable(job: Job) -> Iterator[Finding]:
    """A data file is empty or cannot be read as what its name says.

    Why: an error of the datasets library after the tokenizer is loaded.
    Source: llamafactory/data/loader.py:_load_single_dataset,
    datasets/packaged_modules/json/json.py:Json._generate_tables
    Fix: correct the file; JSON is a list of objects, or one object on each line.
    """
    for key, found in sets(job):
        if found.rows and found.rows.problem:
            yield key, f"`{found.name}`: {found.rows.problem}"
        elif found.rows and not found.rows.count:
            yield key, f"`{found.name}`: `{found.path}` holds no row"


@rule("PTH114", Severity.WARNING)
def file_ignored(job: Job) -> Iterator[Finding]:
    """The entry names a hub and a local file; the file is not used.

    Why: a hub address wins, so the run downloads, or fails without a network, although the file is there.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: remove the hub address from the entry.
    """
    for key, found in sets(job):
        if found.source == "hub" and "file_name" in found.entry and found.present:
            yield key, f"`{found.name}`: the hub address wins, `{found.path}` is not used; remove one of them"


@rule("PTH115", Severity.WARNING)
def entry_key_ignored(job: Job) -> Iterator[Finding]:
    """The entry holds a key that LLaMA-Factory does not read.

    Why: it is ignored without a word, so the default applies.
    Source: llamafactory/data/parser.py:DatasetAttr.join
    Fix: correct or remove it.
    """
    for key, found in sets(job):
        columns = found.entry.get("columns")
        ignored = [(name, _KEYS) for name in found.entry if name not in _KEYS] if found.source else []
        ignored += [(name, _COLUMNS) for name in columns or () if name not in _COLUMNS] if _plain(columns) else []
        for name, known in ignored:
            yield key, f"`{found.name}`: `{name}` in dataset_info.json is ignored{suggest(name, known)}"


@rule("PTH116", Severity.WARNING)
def thinking_prompt_added(job: Job) -> Iterator[Finding]:
    """`formatting: openai` adds a system prompt of its own.

    Why: LLaMA-Factory writes "detailed thinking off" into every sample that has no tools.
    Source: llamafactory/data/converter.py:OpenAIDatasetConverter.__call__
    Fix: `formatting: sharegpt` with `tags` for the role and content names gives the samples as they are.
    """
    for key, found in sets(job):
        if found.entry.get("formatting") == "openai":
            added = "the system prompt 'detailed thinking off' to samples without tools"
            yield key, f"`{found.name}`: formatting openai adds {added}; use sharegpt with `tags`"


@rule("PTH117", Severity.WARNING)
def data_set_twice(job: Job) -> Iterator[Finding]:
    """A data set is named twice.

    Why: it is trained on once only.
    Source: llamafactory/data/loader.py:_get_merged_dataset
    Fix: name it once; `num_samples` in the entry draws more samples than there are.
    """
    for key in ("dataset", "eval_dataset"):
        names = job.words(key)
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield key, f"`{name}` is named {names.count(name)} times, but used once"


def _is_split(text: str) -> bool:
    """Whether the datasets library takes it for a file: `train`, or a part such as `train[:10%]` (arrow_reader.py)."""
    return text == "train" or bool(
        re.fullmatch(r"\s*(train|all)(\[(-?[\d_]+%?)?:(-?[\d_]+%?)?\])?(\([^)]*\))?\s*", text)
    )


def sets(job: Job) -> Iterator[tuple[str, Dataset]]:
    """The data sets that LLaMA-Factory would open, with the key that names them."""
    if job.registry is None or job.tokenized:
        return
    for key in ("dataset", "eval_dataset"):
        for name in dict.fromkeys(job.words(key)):
            found = job.registry.get(name)
            if found:
                yield key, found


def _missing(job: Job) -> bool:
    place = job.get("dataset_dir")
    return job.registry is not None and isinstance(place, str) and job.find(f"{place}/dataset_info.json") is None


def _blame(job: Job) -> str:
    return "dataset_dir" if job.has("dataset_dir") else "dataset" if job.has("dataset") else "eval_dataset"


def _undefined(name: str, known: Mapping[str, object]) -> str:
    if not name:
        return "an empty data set name; remove the extra comma"
    if name.endswith(tuple(f".{suffix}" for suffix in datasets.suffixes())) or "/" in name:
        stem = Path(name).stem
        remedy = f"`{stem}`" if stem in known else f'an entry such as "{stem}": {{"file_name": "{Path(name).name}"}}'
        return f"`{name}` is a path, `dataset` takes names of dataset_info.json; use {remedy}"
    return f"`{name}` is not defined in dataset_info.json{suggest(name, known)}"


def _form(found: Dataset) -> str:
    form = found.entry.get("formatting", "alpaca")
    return form if form in _FORMATS else ""


def _needed(job: Job, found: Dataset) -> Iterator[str]:
    """Parts of a sample without which nothing is left to train on."""
    form, pairs = _form(found), found.entry.get("ranking") is True
    if form in ("sharegpt", "openai"):
        yield "messages"
    if pairs and job.stage in ("dpo", "rm"):
        yield from ("chosen", "rejected")
    if job.stage == "kto":
        yield "kto_tag"
    if form == "alpaca" and job.stage in ("sft", "kto") and not pairs:
        yield "response"


def _read(found: Dataset) -> Iterator[str]:
    """Columns that are looked up in every row."""
    pairs = bool(found.entry.get("ranking"))
    parts = [*_READ.get(_form(found), ()), *(("chosen", "rejected") if pairs else ())]
    if _form(found) == "alpaca" and not pairs:
        parts.append("response")
    for part in parts:
        column = found.mapping.get(part)
        if isinstance(column, str) and column:
            yield column


def _plain(columns: object) -> bool:
    return isinstance(columns, Mapping)
