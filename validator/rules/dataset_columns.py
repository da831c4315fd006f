"""PTH107 to PTH111, PTH116, PTH118 to PTH120, PTH122 and PTH123: what a dataset_info.json entry says of its rows, and
whether the rows agree: columns, tags, loading scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validator.finding import Place
from validator.recipe import safe_read
from validator.recipe.suggestions import suggest
from validator.rows.dataset_attr import FORMATTINGS, SOURCE_OF_KEY, entry_faults
from validator.rows.outcomes import first_fatal_row, why_none_trained
from validator.rules import subjects
from validator.rules.dataset_files import entry_remedy, guessed_format, why_unrecognized
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.rules.subjects import PlaceIn
from validator.run.checkout import find_checkout
from validator.run.dataset_registry import CLOUD_PACKAGES, Dataset, formatting_fault
from validator.run.settings import RunSettings

_REQUIRED_TAGS = ("role_tag", "content_tag", "user_tag", "assistant_tag")


@rule("PTH107", ERROR, about=subjects.datasets)
def ranking_against_stage(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """A data set of preference pairs is used in a stage that takes none, or the reverse.

    Why: "The dataset is not applicable in the current training stage", after the tokenizer is loaded; for a `ranking`
    that is neither true nor false, "KeyError: None" when the data is read.
    Source: llamafactory/data/loader.py:_get_merged_dataset
    Fix: `ranking: true` in the entry for dpo and rm, and only there.
    """
    if _ranking_contradicts_stage(run, dataset):
        why = f"holds preference pairs (`ranking: true`), which stage {run.task.stage} cannot use"
        otherwise = "set `stage: dpo`, or name another data set"
        if run.task.uses_preference_pairs:
            why = f"holds no preference pairs (`ranking` is not true), and stage {run.task.stage} needs them"
            otherwise = "set `stage: sft`, or name a data set of preference pairs"
        remedy = entry_remedy(run, dataset, otherwise)
        yield at("ranking", conflicts_with=("stage",)), f"data set `{dataset.name}` {why}{remedy}"


@rule("PTH108", ERROR, about=subjects.datasets)
def formatting_unknown(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The entry's `formatting` is not one that LLaMA-Factory knows.

    Why: "Dataset converter … not found" after the tokenizer is loaded and the file is read.
    Source: llamafactory/data/converter.py:get_dataset_converter
    Fix: `alpaca` (the default), `sharegpt` or, from LLaMA-Factory 0.9.4 on, `openai`, in lower case.
    """
    form = dataset.entry.get("formatting", "alpaca")
    source = find_checkout(run.workspace.recipe)
    if (what := formatting_fault(form, run.releases)) and not (source and source.has_formatting(str(form))):
        known = form in FORMATTINGS
        near = "; write `sharegpt` with `tags`" if known else suggest(str(form).lower(), FORMATTINGS)
        remedy = near or entry_remedy(run, dataset, "write one of these, or remove `formatting` for alpaca")
        yield at("formatting"), f"data set `{dataset.name}`: {what}{remedy}"


@rule("PTH109", ERROR, about=subjects.datasets)
def part_without_column(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """A part that the stage needs has no column.

    Why: as soon as an entry has `columns`, every part it leaves out has no column. "KeyError: None" or "Cannot find
    valid samples", after the whole data set is converted or tokenized.
    Source: llamafactory/data/parser.py:DatasetAttr.join,
    llamafactory/data/converter.py:AlpacaDatasetConverter.__call__,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__
    Fix: list every part used: prompt, query and response for alpaca, messages for sharegpt, chosen and rejected for
    pairs, kto_tag for kto.
    """
    trained = at().key == "dataset"
    if absent := _parts_without_column(run, dataset, trained):
        lacks = f"`columns` in dataset_info.json lacks {' and '.join(f'`{part}`' for part in absent)}"
        otherwise = f"name {'their columns' if len(absent) > 1 else 'its column'} in `columns`"
        what = f"{lacks}, which stage {run.task.stage} needs{entry_remedy(run, dataset, otherwise)}"
        yield at("columns"), f"data set `{dataset.name}`: {what}"
    elif run.task.stage == "sft" and trained and dataset.attr.columns.get("kto_tag"):
        found = f"data set `{dataset.name}` has a `kto_tag` column, so stage sft drops every sample"
        text = f"{found}; set `stage: kto`, or remove `kto_tag` from `columns`"
        yield at("columns", "kto_tag", at_key=True), text


@rule("PTH110", ERROR, about=subjects.datasets)
def column_absent(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """A column of the registry entry, or one that is read by default, is not in the data.

    Why: KeyError while the data set is converted. Without `columns`, alpaca data need instruction, input and output;
    `input` may be empty but must be there.
    Source: llamafactory/data/parser.py:DatasetAttr.join,
    llamafactory/data/converter.py:AlpacaDatasetConverter.__call__,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__
    Fix: map the names the data use in `columns`, or rename them.
    """
    rows = dataset.rows
    if not rows or rows.columns is None or rows.problem or not rows.number:
        return
    if _ranking_contradicts_stage(run, dataset) or _parts_without_column(run, dataset, at().key == "dataset"):
        return
    if absent := sorted({name for name in _columns_looked_up(dataset) if name not in rows.columns}):
        here, names = ", ".join(sorted(rows.columns)[:8]), "`, `".join(absent)
        what = f"no column `{names}` in `{dataset.path}` (it has {here})"
        remedy = entry_remedy(run, dataset, why_unrecognized(dataset) or "name its columns in `columns`")
        yield at("columns"), f"data set `{dataset.name}`: {what}{remedy}"


@rule("PTH111", ERROR, about=subjects.datasets)
def tags_incomplete(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """`tags` leaves out a tag that every sample needs.

    Why: as soon as an entry has `tags`, every tag it leaves out is unset: KeyError, or all samples are dropped.
    Source: llamafactory/data/parser.py:DatasetAttr.join,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__,
    llamafactory/data/converter.py:OpenAIDatasetConverter.__call__
    Fix: list role_tag, content_tag, user_tag and assistant_tag; system_tag where samples start with a system turn.
    """
    tags = dataset.entry.get("tags")
    if not isinstance(tags, Mapping) or dataset.entry.get("formatting") not in ("sharegpt", "openai"):
        return
    if absent := [tag for tag in _REQUIRED_TAGS if not tags.get(tag)]:
        what = f"`tags` leaves out {', '.join(absent)}, and a tag that is left out has no default"
        otherwise = "list role_tag, content_tag, user_tag and assistant_tag"
        yield at("tags"), f"data set `{dataset.name}`: {what}{entry_remedy(run, dataset, otherwise)}"


@rule("PTH116", WARNING, about=subjects.datasets, since="llamafactory 0.9.4")
def thinking_prompt_added(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """`formatting: openai` adds a system prompt of its own.

    Why: LLaMA-Factory writes "detailed thinking off" into every sample that has no tools. Rows with `tool_calls`, or
    with tools as a list, can be read in no other way.
    Source: llamafactory/data/converter.py:OpenAIDatasetConverter.__call__
    Fix: `formatting: sharegpt` with `tags` for the role and content names gives the samples as they are.
    """
    if dataset.entry.get("formatting") == "openai" and guessed_format(dataset) != "openai":
        added = "the system prompt 'detailed thinking off' to samples without tools"
        remedy = entry_remedy(run, dataset, "write `sharegpt` with `tags`")
        yield at("formatting"), f"data set `{dataset.name}`: formatting `openai` adds {added}{remedy}"


def _known_formatting(dataset: Dataset) -> str:
    form = dataset.entry.get("formatting", "alpaca")
    return form if form in FORMATTINGS else ""


def _ranking_contradicts_stage(run: RunSettings, dataset: Dataset) -> bool:
    """True if the stage needs preference pairs and the data set's entry does not set `ranking`, or if the entry sets
    `ranking` and the stage uses no pairs. LLaMA-Factory tests only whether the value of `ranking` is true in Python, so
    1 and "false" count as set."""
    return bool(dataset.entry.get("ranking")) is not run.task.uses_preference_pairs


def _parts_without_column(run: RunSettings, dataset: Dataset, trained: bool) -> list[str]:
    """Return the parts of a sample (such as response) that the stage needs and for which the data set's entry names no
    column. `trained`: False for a data set that is only evaluated on; its rows need no answers."""
    absent = [part for part in _needed_parts(run, dataset) if not dataset.attr.columns.get(part)]
    return absent if trained or absent != ["response"] else []


def _needed_parts(run: RunSettings, dataset: Dataset) -> Iterator[str]:
    """Yield the parts of a sample without which the stage cannot train on any row."""
    form, pairs = _known_formatting(dataset), dataset.entry.get("ranking") is True
    if form in ("sharegpt", "openai"):
        yield "messages"
    if pairs and run.task.stage in ("dpo", "rm"):
        yield from ("chosen", "rejected")
    if run.task.stage == "kto":
        yield "kto_tag"
    if form == "alpaca" and run.task.stage in ("sft", "kto") and not pairs:
        yield "response"


def _columns_looked_up(dataset: Dataset) -> Iterator[str]:
    """Yield the columns that LLaMA-Factory reads in every row, so that a row without them ends the run. The system
    prompt's column is left out for conversations, because a conversation may begin with its system prompt instead."""
    attr = dataset.attr
    for column in attr.required_columns() if _known_formatting(dataset) else ():
        if column and (attr.formatting == "alpaca" or column != attr.columns.get("system")):
            yield column


# What is wrong with an entry by itself, or beside the names of the columns, is reported by these.
_RULES_ON_COLUMNS = (ranking_against_stage, formatting_unknown, part_without_column, column_absent, tags_incomplete)


@rule("PTH118", ERROR, about=subjects.datasets)
def entry_value_wrong(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """A value in the registry entry has a type that LLaMA-Factory cannot use.

    Why: a TypeError or AttributeError, often without the entry's name, after the tokenizer is loaded on every rank.
    Source: llamafactory/data/parser.py:DatasetAttr.join, llamafactory/data/loader.py:_load_single_dataset
    Fix: names and addresses are text, `columns` and `tags` are objects of text, `num_samples` is a whole number.
    """
    for route, fault in entry_faults(dataset.entry):
        yield at(*route), f"data set `{dataset.name}`: {fault}"


@rule("PTH119", ERROR, about=subjects.datasets, since="llamafactory 0.9.4")
def script_refused(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The entry names a loading script.

    Why: the datasets library runs none since its release 4, which LLaMA-Factory installs: "Dataset scripts are no
    longer supported", after the tokenizer is loaded on every rank.
    Source: datasets/load.py:dataset_module_factory
    Fix: the data as files (`file_name`), or a hub address that holds files.
    """
    name = dataset.entry.get("script_url")
    if dataset.source != "script" or not isinstance(name, str):
        return
    script = dataset.folder / name
    if safe_read.path_kind(script) == "file" or safe_read.path_kind(script / f"{script.name}.py") == "file":
        found = f"data set `{dataset.name}`: `{script}` is a loading script, which datasets 4 does not run"
        yield at("script_url"), f"{found}; save its data as a file, and name it by `file_name`"
    elif safe_read.path_kind(script) is None:
        found = f"data set `{dataset.name}`: `{script}` does not exist, and datasets 4 runs no loading scripts"
        yield at("script_url"), f"{found}; name a data file by `file_name`"


@rule("PTH120", ERROR, about=subjects.datasets)
def cloud_address_refused(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The cloud address begins in a way that LLaMA-Factory does not open.

    Why: "Unsupported protocol in path", after the tokenizer is loaded on every rank.
    Source: llamafactory/data/data_utils.py:setup_fs
    Fix: `s3://bucket/file.json`, `gs://bucket/file.jsonl`, or download the file and name it by `file_name`.
    """
    address = dataset.entry.get("cloud_file_name")
    if dataset.source == "cloud" and isinstance(address, str) and not address.startswith(tuple(CLOUD_PACKAGES)):
        found = f"data set `{dataset.name}`: `cloud_file_name` does not begin with s3://, gs:// or gcs://"
        yield at("cloud_file_name"), f"{found}; write such an address, or download `{address}` and use `file_name`"


@rule("PTH122", NOTE, about=subjects.datasets)
def package_needed(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The data are read with a package that LLaMA-Factory does not bring.

    Why: "Install s3fs to access S3" or "PackageNotFoundError", after the tokenizer is loaded on every rank.
    Source: llamafactory/data/data_utils.py:setup_fs, llamafactory/data/loader.py:_load_single_dataset
    Fix: `pip install s3fs` for s3://, gcsfs for gs://, modelscope for `ms_hub_url`, openmind for `om_hub_url`.
    """
    if package := dataset.package:
        address = next(name for name in SOURCE_OF_KEY if name in dataset.entry)
        found = f"data set `{dataset.name}` is read with the package {package}, which LLaMA-Factory does not install"
        yield at(address), f"{found}; run `pip install {package}`"


@rule("PTH123", ERROR, about=subjects.datasets)
def rows_unlike_entry(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """No row of the data can be trained as the registry entry describes it, or one ends the run.

    Why: KeyError such as 'from' while the data set is converted; or every row is dropped, a warning for each: "Cannot
    find valid samples". Looked at are the first rows of a local file.
    Source: llamafactory/data/converter.py:AlpacaDatasetConverter.__call__,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__,
    llamafactory/data/converter.py:OpenAIDatasetConverter.__call__
    Fix: the entry that the message gives; `lmf-recipes data FILE --register NAME` writes it for a file.
    """
    rows = dataset.rows
    if rows and rows.head and not rows.problem and (why := _why_untrained(run, at, dataset, rows.head)):
        remedy = entry_remedy(run, dataset, why_unrecognized(dataset) or "correct the rows")
        yield at(), f"data set `{dataset.name}`: {why}{remedy}"


def _why_untrained(run: RunSettings, at: PlaceIn, dataset: Dataset, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return why none of the rows can be trained on, or which row ends the run, as text for a message. An empty string
    if neither is the case, or if another rule reports the cause. `at`: returns the place of the data set's entry."""
    if any(entry_faults(dataset.entry)):
        return ""
    untrained, route = why_none_trained(dataset.attr, run.task.stage, rows), at().route
    why = f"no row can be trained: {untrained}" if untrained else ""
    why = why or first_fatal_row(dataset.attr, run.task.stage, rows_surely_read(run, dataset))
    calls = ((each, subject) for each in _RULES_ON_COLUMNS for subject in subjects.datasets(run)) if why else ()
    reported = (place for each, subject in calls for place, *_ in each.check(run, *subject))
    return "" if any(isinstance(place, Place) and place.route[: len(route)] == route for place in reported) else why


def rows_surely_read(run: RunSettings, dataset: Dataset) -> Sequence[Mapping[str, Any]]:
    """Return those first rows of a data set that the run reads in any case: as many as `max_samples` allows. Empty if
    `num_samples` draws rows at random, or if the rows cannot be read."""
    rows = dataset.rows
    if not rows or rows.problem or "num_samples" in dataset.entry:  # which draws rows at random
        return ()
    return rows.head[: int(run.args.number("max_samples") or len(rows.head))]
