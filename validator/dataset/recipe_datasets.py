"""The data sets that a recipe names, each scanned, with the reasons for which LLaMA-Factory would stop at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from validator.dataset import column_types, readers, row_scan
from validator.dataset.chat_template import ChatTemplate
from validator.dataset.data_files import no_data_file_reason
from validator.dataset.row_scan import OnRows, ScannedRows, ScanSettings
from validator.dataset.token_counting import TokenCounter
from validator.errors import RecipeError
from validator.knowledge import tables
from validator.recipe.suggestions import suggest
from validator.rows.dataset_attr import DatasetAttr, entry_faults
from validator.rows.entry_inference import ROWS_FOR_INFERENCE, suggest_entry
from validator.rows.media_columns import MediaSupport
from validator.rows.outcomes import TURN_ORDER, Row, missing_columns, why_none_trained
from validator.rows.reading_limits import UnreadableError
from validator.run import dataset_registry
from validator.run.dataset_registry import Dataset
from validator.run.prediction import Job


@dataclass(frozen=True)
class FatalProblem:
    """Why LLaMA-Factory stops; `place` is a file, with a row where one is to blame, `remedy` what to write instead."""

    place: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join([f"{self.place}: error: {self.message}", "LLaMA-Factory stops", *filter(None, [self.remedy])])


@dataclass
class LoadedDataset:
    """One data set of a recipe. `note` says why a set without rows has none here."""

    name: str
    evaluates: bool
    dataset: Dataset | None = None
    attr: DatasetAttr = field(default_factory=lambda: DatasetAttr.from_entry({}))
    rows: ScannedRows = field(default_factory=ScannedRows)
    note: str = ""
    problems: list[FatalProblem] = field(default_factory=list)


def load_datasets(job: Job, counter: TokenCounter, report: OnRows) -> list[LoadedDataset]:
    """Every data set of the recipe, those trained on first; of all of them as many rows are kept of each hundred."""
    held = [
        _load_dataset(job, name, key == "eval_dataset", counter, report)
        for key in ("dataset", "eval_dataset")
        for name in dict.fromkeys(job.args.words(key))
    ]
    row_step = max((one.rows.row_step for one in held), default=1)
    for one in held:
        one.rows.downsample(row_step)
    return held


def scan_settings(job: Job, meant: DatasetAttr, counter: TokenCounter) -> ScanSettings:
    """How the rows of a data set of this form are taken."""
    return ScanSettings(
        meant,
        job.task.stage,
        _chat_template(job, counter),
        counter,
        job.batch.kept_tokens,
        job.batch.packing,
        _media_support(job),
    )


def _media_support(job: Job) -> MediaSupport:
    """What the template reads; paths count from `media_dir`, by default `dataset_dir` (hparams/data_args.py)."""
    folder = str(job.args.get("media_dir") or job.args.get("dataset_dir"))
    there = job.workspace.find(folder)
    kinds = frozenset(job.template.get("media", ())) if job.template else None
    return MediaSupport(kinds, str(there[0]) if there else folder, str(job.args.get("template")))


def _chat_template(job: Job, counter: TokenCounter) -> ChatTemplate:
    name, facts = str(job.args.get("template")), job.template or {}
    system = job.args.get("default_system")
    return ChatTemplate(
        tables.json_table("formats")["formats"].get(name, {}),
        counter,
        bool(facts.get("efficient_eos")),
        job.args.get("enable_thinking"),
        job.args.flag("preserve_thinking"),
        job.args.flag("mask_history"),
        system if isinstance(system, str) else None,
    )


def _load_dataset(job: Job, name: str, evaluates: bool, counter: TokenCounter, report: OnRows) -> LoadedDataset:
    one = LoadedDataset(name, evaluates, job.data.registry.get(name) if job.data.registry else None)
    if one.dataset is None:
        one.note = "" if job.data.registry else "not in a local dataset_info.json"
        one.problems += _undefined_name(job, name)
        return one
    one.problems += _entry_faults(job, name)
    if one.problems:
        return one
    one.attr = one.dataset.attr
    one.problems += _refusals(job, one)
    if one.dataset.source != "file":
        one.note = f"not on this machine: its source is a {one.dataset.source or 'missing file_name'}"
    elif not one.problems:
        one.rows = row_scan.scan_dataset(one.dataset.files, scan_settings(job, one.attr, counter), report)
        one.problems += _row_problems(one)
        if not one.rows.problems:
            column_types.drop_date_answers(one.rows, one.attr)
    if one.problems and not one.rows.problems:
        blamed = one.problems[0]
        one.problems[0] = replace(blamed, remedy=_suggested_entry(job, one))
    return one


def explain_no_rows(job: Job, one: LoadedDataset, otherwise: str) -> FatalProblem:
    """Why no row of a set is trained; `otherwise` where its first rows do not tell."""
    why = why_none_trained(one.dataset.entry, job.task.stage, _first_rows(one)) if one.dataset else ""
    return FatalProblem(one.name, f"no row is left to train on: {why or otherwise}", _suggested_entry(job, one))


def _suggested_entry(job: Job, one: LoadedDataset) -> str:
    """The entry that suits the rows; empty where it is there already, or not known."""
    return suggest_entry(one.name, one.dataset.entry, job.task.stage, _first_rows(one)) if one.dataset else ""


def _first_rows(one: LoadedDataset) -> Sequence[Row]:
    try:
        return readers.first_rows(dataset_files(one), ROWS_FOR_INFERENCE)
    except (RecipeError, UnreadableError):
        return ()


def _undefined_name(job: Job, name: str) -> Iterator[FatalProblem]:
    """A name that the registry lacks; of data that are not on this machine nothing is known."""
    if job.data.registry and job.data.registry.problem:
        yield FatalProblem(name, job.data.registry.problem)
    elif job.data.registry:
        near = suggest(name, job.data.registry.entries)
        yield FatalProblem(name, f"is not defined in {job.data.registry.path}{near}")


def _entry_faults(job: Job, name: str) -> Iterator[FatalProblem]:
    """What is not of the kind that LLaMA-Factory takes for granted."""
    assert job.data.registry is not None
    entry = job.data.registry.entries[name]
    if not isinstance(entry, Mapping):
        yield FatalProblem(name, "its entry in dataset_info.json is no object of settings")
        return
    for _, fault in entry_faults(entry):
        yield FatalProblem(name, fault)


def _refusals(job: Job, one: LoadedDataset) -> Iterator[FatalProblem]:
    """What needs no look at the rows."""
    assert one.dataset is not None
    where = str(one.dataset.path)
    if one.attr.ranking is not job.task.uses_preference_pairs:
        kind = "needs pairs (`ranking: true`)" if job.task.uses_preference_pairs else "takes no pairs (`ranking: true`)"
        yield FatalProblem(one.name, f"stage {job.task.stage} {kind}")
    if fault := dataset_registry.formatting_fault(one.attr.formatting, job.header):
        yield FatalProblem(one.name, fault)
    if one.dataset.source == "file" and not one.dataset.files:
        yield FatalProblem(where, no_data_file_reason(one.dataset.path))
    if fault := dataset_registry.file_type_fault(one.dataset.path, one.dataset.files):
        yield FatalProblem(one.name, fault)


def _row_problems(one: LoadedDataset) -> Iterator[FatalProblem]:
    rows, where = one.rows, str(one.dataset.path if one.dataset else one.name)
    for path, row, why in rows.problems:
        yield FatalProblem(f"{path}:{row}" if row else str(path), f"row {row} {why}" if row else why)
    if rows.problems:
        return
    if not len(rows):
        yield FatalProblem(where, "holds no row")
    for why in column_types.column_problems(rows, one.attr):
        yield FatalProblem(where, why)
    if (rows.rows["outcome"] == TURN_ORDER).all() and (why := missing_columns(one.attr, _first_rows(one))):
        yield FatalProblem(where, why)


def dataset_files(one: LoadedDataset) -> list[Path]:
    """The files of a set."""
    return list(one.dataset.files) if one.dataset else []
