"""PTH107 to PTH111 and PTH116: what an entry of the registry says of its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validator.diagnostic import Severity
from validator.job.datasets import Dataset
from validator.job.job import Job
from validator.rules.rule import Finding, rule
from validator.rules.sets import meant, remedied, sets, unknown
from validator.tables import releases
from validator.tables.suggestion import suggest

FORMATS = ("alpaca", "sharegpt", "openai")
_MEDIA = ("images", "videos", "audios")
# Parts of a sample that the converter looks up in every row when they are mapped (data/converter.py).
_READ = {
    "alpaca": ("prompt", "query", "history", "system", "tools", "kto_tag", *_MEDIA),
    "sharegpt": ("messages", "tools", "kto_tag", *_MEDIA),
    "openai": ("messages", "kto_tag", *_MEDIA),
}
_TAGS = ("role_tag", "content_tag", "user_tag", "assistant_tag")


@rule("PTH107", Severity.ERROR)
def ranking_against_stage(job: Job) -> Iterator[Finding]:
    """Preference pairs are trained in a stage that takes none, or the other way round.

    Why: "The dataset is not applicable in the current training stage", after the tokenizer is loaded; for a `ranking`
    that is neither true nor false, "KeyError: None" when the data is read.
    Source: llamafactory/data/loader.py:_get_merged_dataset
    Fix: `ranking: true` in the entry for dpo and rm, and only there.
    """
    for at, dataset in sets(job):
        if _mispaired(job, dataset):
            why = f"holds preference pairs (`ranking: true`), stage {job.stage} takes none"
            if job.pairs:
                why = f"holds no preference pairs (`ranking` is not true), stage {job.stage} needs them"
            yield at("ranking", against=("stage",)), f"`{dataset.name}` {why}{remedied(job, dataset)}"


@rule("PTH108", Severity.ERROR)
def formatting_unknown(job: Job) -> Iterator[Finding]:
    """The entry's `formatting` is none that LLaMA-Factory knows.

    Why: "Dataset converter … not found" after the tokenizer is loaded and the file is read.
    Source: llamafactory/data/converter.py:get_dataset_converter
    Fix: `alpaca` (the default), `sharegpt` or, from LLaMA-Factory 0.9.4 on, `openai`, in lower case.
    """
    for at, dataset in sets(job):
        form = dataset.entry.get("formatting", "alpaca")
        if form not in FORMATS:
            near = suggest(str(form).lower(), FORMATS)
            what = f"formatting `{form}` is none of alpaca, sharegpt, openai"
            yield at("formatting"), f"`{dataset.name}`: {what}{near or remedied(job, dataset)}"
        elif form == "openai" and releases.holds(job.header, until="llamafactory 0.9.4"):
            what = "formatting `openai` is not known before LLaMA-Factory 0.9.4"
            yield at("formatting"), f"`{dataset.name}`: {what}; use sharegpt with `tags`"


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
    for at, dataset in sets(job):
        trained = at().key == "dataset"
        if absent := _unmapped(job, dataset, trained):
            lacks = f"`columns` in dataset_info.json lacks {' and '.join(f'`{part}`' for part in absent)}"
            what = f"{lacks}, which stage {job.stage} needs{remedied(job, dataset)}"
            yield at("columns"), f"`{dataset.name}`: {what}"
        elif job.stage == "sft" and trained and dataset.mapping.get("kto_tag"):
            yield (
                at("columns", "kto_tag", at_key=True),
                f"`{dataset.name}` has a `kto_tag` column, so stage sft drops every sample; use stage kto",
            )


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
    for at, dataset in sets(job):
        if not dataset.rows or dataset.rows.columns is None or dataset.rows.problem or not dataset.rows.number:
            continue
        if _mispaired(job, dataset) or _unmapped(job, dataset, at().key == "dataset"):
            continue
        absent = sorted({name for name in _read(dataset) if name not in dataset.rows.columns})
        if absent:
            here, names = ", ".join(sorted(dataset.rows.columns)[:8]), "`, `".join(absent)
            what = f"no column `{names}` in `{dataset.path}` (it has {here})"
            yield (
                at("columns"),
                f"`{dataset.name}`: {what}{remedied(job, dataset, unknown(dataset) or 'set `columns`')}",
            )


@rule("PTH111", Severity.ERROR)
def tags_incomplete(job: Job) -> Iterator[Finding]:
    """`tags` leaves out a tag that every sample needs.

    Why: as soon as an entry has `tags`, every tag it leaves out is unset: KeyError, or all samples are dropped.
    Source: llamafactory/data/parser.py:DatasetAttr.join,
    llamafactory/data/converter.py:SharegptDatasetConverter.__call__,
    llamafactory/data/converter.py:OpenAIDatasetConverter.__call__
    Fix: list role_tag, content_tag, user_tag and assistant_tag; system_tag where samples start with a system turn.
    """
    for at, dataset in sets(job):
        tags = dataset.entry.get("tags")
        if not isinstance(tags, Mapping) or dataset.entry.get("formatting") not in ("sharegpt", "openai"):
            continue
        absent = [tag for tag in _TAGS if not tags.get(tag)]
        if absent:
            what = f"`tags` leaves out {', '.join(absent)}, which unsets the default"
            yield at("tags"), f"`{dataset.name}`: {what}{remedied(job, dataset, 'list all four')}"


@rule("PTH116", Severity.WARNING, since="llamafactory 0.9.4")
def thinking_prompt_added(job: Job) -> Iterator[Finding]:
    """`formatting: openai` adds a system prompt of its own.

    Why: LLaMA-Factory writes "detailed thinking off" into every sample that has no tools. Rows with `tool_calls`, or
    with tools as a list, can be read in no other way.
    Source: llamafactory/data/converter.py:OpenAIDatasetConverter.__call__
    Fix: `formatting: sharegpt` with `tags` for the role and content names gives the samples as they are.
    """
    for at, dataset in sets(job):
        if dataset.entry.get("formatting") == "openai" and meant(dataset) != "openai":
            added = "the system prompt 'detailed thinking off' to samples without tools"
            remedy = remedied(job, dataset, "use sharegpt with `tags`")
            yield at("formatting"), f"`{dataset.name}`: formatting openai adds {added}{remedy}"


def _form(dataset: Dataset) -> str:
    form = dataset.entry.get("formatting", "alpaca")
    return form if form in FORMATS else ""


def _mispaired(job: Job, dataset: Dataset) -> bool:
    """LLaMA-Factory converts by truth: 1 and "false" are pairs."""
    return bool(dataset.entry.get("ranking")) is not job.pairs


def _unmapped(job: Job, dataset: Dataset, trained: bool) -> list[str]:
    """Parts that are needed and have no column; the answers of an evaluation are not."""
    absent = [part for part in _needed(job, dataset) if not dataset.mapping.get(part)]
    return absent if trained or absent != ["response"] else []


def _needed(job: Job, dataset: Dataset) -> Iterator[str]:
    """Parts of a sample without which nothing is left to train on."""
    form, pairs = _form(dataset), dataset.entry.get("ranking") is True
    if form in ("sharegpt", "openai"):
        yield "messages"
    if pairs and job.stage in ("dpo", "rm"):
        yield from ("chosen", "rejected")
    if job.stage == "kto":
        yield "kto_tag"
    if form == "alpaca" and job.stage in ("sft", "kto") and not pairs:
        yield "response"


def _read(dataset: Dataset) -> Iterator[str]:
    """Columns that are looked up in every row."""
    pairs = bool(dataset.entry.get("ranking"))
    parts = [*_READ.get(_form(dataset), ()), *(("chosen", "rejected") if pairs else ())]
    if _form(dataset) == "alpaca" and not pairs:
        parts.append("response")
    for part in parts:
        if column := dataset.named(part):
            yield column
