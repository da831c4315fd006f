"""Loads the data sets that a recipe names and scans their rows, with the reasons why LLaMA-Factory would stop at a data
set: its entry, its files, its columns and their types, or its rows."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from validator.dataset import data_files, row_scan
from validator.dataset.row_scan import OnRows, ScannedRows, ScanSettings
from validator.dataset.token_counting import TokenCounter
from validator.errors import RecipeError
from validator.recipe.suggestions import suggest
from validator.rows import reading_limits
from validator.rows.converter import Row
from validator.rows.dataset_attr import DatasetAttr, entry_faults
from validator.rows.entry_inference import ROWS_FOR_INFERENCE, suggest_entry
from validator.rows.media_columns import MediaSupport
from validator.rows.outcomes import DATE_ANSWER, TRAINED, TURN_ORDER, missing_columns, why_none_trained
from validator.rows.reading_limits import UnreadableError
from validator.run import data_streams, dataset_registry
from validator.run.chat_template import recipe_template
from validator.run.dataset_registry import Dataset
from validator.run.image_tokens import image_counter
from validator.run.settings import RunSettings

_FIRST_PART_BYTES = 10 << 20  # bytes that the datasets library reads at once (packaged_modules/json/json.py)


@dataclass(frozen=True)
class FatalProblem:
    """A reason why LLaMA-Factory stops at the data. `place` is a data set, a file, or a row in its file. `remedy` is
    what to write instead; it may be empty."""

    place: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join([f"{self.place}: error: {self.message}", "LLaMA-Factory stops", *filter(None, [self.remedy])])


@dataclass
class LoadedDataset:
    """A data set of a recipe with its scanned rows. `evaluates` is true if `eval_dataset` names the data set. `note`
    says why the data set has no rows on this machine although it may be fine, for example because it is on a hub."""

    name: str
    evaluates: bool
    dataset: Dataset | None = None
    attr: DatasetAttr = field(default_factory=lambda: DatasetAttr.from_entry({}))
    rows: ScannedRows = field(default_factory=ScannedRows)
    note: str = ""
    problems: list[FatalProblem] = field(default_factory=list)

    @property
    def files(self) -> Sequence[Path]:
        """The local files that hold the rows; empty for a data set on a hub."""
        return self.dataset.files if self.dataset else ()

    def first_rows(self) -> Sequence[Row]:
        """Return the first rows, as many as the format of the data can be inferred from. The result is empty if the
        rows cannot be read."""
        try:
            return data_files.first_rows(self.files, ROWS_FOR_INFERENCE)
        except (RecipeError, UnreadableError):
            return ()

    def suggested_entry(self, stage: str) -> str:
        """Return a better entry for dataset_info.json than the present one, inferred from the first rows for a training
        stage (sft, dpo …). The text is empty if the present entry suits the rows, or if no entry is known that
        would."""
        return suggest_entry(self.name, self.dataset.entry, stage, self.first_rows()) if self.dataset else ""

    def no_rows_problem(self, stage: str, otherwise: str) -> FatalProblem:
        """Return the problem to report if no row of the data set is trained on in this stage. The reason is inferred
        from the first rows; if these show no reason, `otherwise` is the reason. The remedy is a better entry for
        dataset_info.json, if one is known."""
        why = why_none_trained(self.attr, stage, self.first_rows()) or otherwise
        return FatalProblem(self.name, f"no row is left to train on: {why}", self.suggested_entry(stage))


def load_datasets(run: RunSettings, counter: TokenCounter, report: OnRows) -> list[LoadedDataset]:
    """Load and scan every data set of the recipe, training sets first. If one data set has so many rows that only every
    n-th row is kept, only every n-th row of all data sets is kept. `report` is called with the number of rows read
    since the last call. The counter is closed at the end."""
    with closing(counter):
        loaded = [
            _load_dataset(run, name, key == "eval_dataset", counter, report)
            for key in ("dataset", "eval_dataset")
            for name in dict.fromkeys(run.args.words(key))
        ]
    row_step = max((one.rows.row_step for one in loaded), default=1)
    for one in loaded:
        one.rows.downsample(row_step)
    return loaded


def scan_settings(run: RunSettings, counter: TokenCounter, dataset: Dataset) -> ScanSettings:
    """Return the settings for scanning the rows of a data set: how to convert, check and count them."""
    kinds = frozenset(run.template_media) if run.template else None
    media = MediaSupport(kinds, run.data.media_folder(dataset), str(run.args.get("template")))
    images = image_counter(run)[0] if dataset.attr.has_images else None
    limit, packing = run.batch.kept_tokens, run.batch.packing
    template = recipe_template(run, counter)
    return ScanSettings(dataset.attr, run.task.stage, template, counter, limit, packing, media, images)


def _load_dataset(run: RunSettings, name: str, evaluates: bool, counter: TokenCounter, report: OnRows) -> LoadedDataset:
    """Return a data set with its scanned rows, or with the problems for which LLaMA-Factory stops before it reads a row
    of the data set."""
    registry = run.data.registry
    one = LoadedDataset(name, evaluates, registry.get(name) if registry else None)
    if registry is None:
        one.note = "not in a local dataset_info.json"
        return one
    if one.dataset is None:
        fault = registry.problem or f"is not defined in {registry.path}{suggest(name, registry.entries)}"
        hub = dataset_registry.hub_name(name)
        remedy = dataset_registry.hub_entry_remedy(hub, registry.entries) if hub else ""
        one.problems.append(FatalProblem(name, fault, remedy))
        return one
    faults = [fault for _, fault in entry_faults(one.dataset.entry)]
    if not isinstance(registry.entries[name], Mapping):
        faults = ["its entry in dataset_info.json is not a JSON object"]
    if faults:
        one.problems = [FatalProblem(name, fault) for fault in faults]
        return one
    one.attr = one.dataset.attr
    one.problems += _refusals(run, name, one.dataset)
    if one.dataset.source != "file":
        one.note = one.dataset.why_not_here
    elif not one.problems:
        one.rows = row_scan.scan_dataset(one.files, scan_settings(run, counter, one.dataset), report)
        one.problems += _row_problems(one, str(one.dataset.path))
        if one.attr.formatting == "alpaca" and one.attr.columns.get("response") in _date_columns(one.rows):
            outcome = one.rows.rows["outcome"]  # dates are no text, so no row has an answer
            outcome[outcome == TRAINED] = DATE_ANSWER
    if one.problems and not one.rows.problems:
        one.problems[0] = replace(one.problems[0], remedy=one.suggested_entry(run.task.stage))
    return one


def _refusals(run: RunSettings, name: str, dataset: Dataset) -> Iterator[FatalProblem]:
    """Yield the problems for which LLaMA-Factory refuses the data set before it reads a row: preference pairs for a
    stage without pairs (or the reverse), unknown formatting, missing files, or an unknown file type."""
    pairs = run.task.uses_preference_pairs
    if dataset.attr.ranking is not pairs:
        how = "needs" if pairs else "takes no"
        yield FatalProblem(name, f"stage {run.task.stage} {how} pairs (`ranking: true`)")
    if fault := dataset_registry.formatting_fault(dataset.attr.formatting, run.releases):
        yield FatalProblem(name, fault)
    if dataset.source == "file" and not dataset.files:
        yield FatalProblem(str(dataset.path), data_streams.no_data_file_reason(dataset.path))
    if fault := dataset_registry.file_type_fault(dataset.path, dataset.files):
        yield FatalProblem(name, fault)


def _row_problems(one: LoadedDataset, where: str) -> Iterator[FatalProblem]:
    """Yield the problems of files and columns for which LLaMA-Factory would stop. `where` is the path of the data set.
    Single rows that end the run are in `ScannedRows.fatal` instead."""
    for path, line, why in one.rows.problems:
        yield FatalProblem(f"{path}:{line}" if line else str(path), why)
    if one.rows.problems:
        return
    if not one.rows.read:
        yield FatalProblem(where, "holds no row")
    for why in _column_problems(one.rows, one.attr):
        yield FatalProblem(where, why)
    if (one.rows.rows["outcome"] == TURN_ORDER).all() and (why := missing_columns(one.attr, one.first_rows())):
        yield FatalProblem(where, why)


def _column_problems(scan: ScannedRows, attr: DatasetAttr) -> Iterator[str]:
    """Yield messages about columns of the data that LLaMA-Factory cannot use: missing columns, several types in a
    column, columns that begin too late, or dates where text is needed. A message names the row that shows the problem,
    if there is one."""
    column_types, required = scan.column_types, dict.fromkeys(attr.required_columns())
    if None in required:
        yield "`columns` in dataset_info.json leaves out a column that rows of this form need"
    missing = [f"`{column}`" for column in required if column and column not in column_types]
    if missing and column_types:
        is_wrapped = [[*kinds] for kinds in column_types.values()] == [[list]] and scan.read == 1
        single = "; the file is one object that holds the rows: save that list alone" if is_wrapped else ""
        yield f"has no column {', '.join(missing)}; it has {', '.join([*column_types][:8])}{single}"
    yield from filter(None, (_type_conflict(scan), _late_column(scan)))
    dated = [attr.columns.get(part) for part in ("prompt", "query")]
    for column in _date_columns(scan):
        if column in dated and attr.formatting == "alpaca":
            yield f"every value of `{column}` reads as a date, which is not text to the datasets library"


_TYPE_NAMES = {str: "text", float: "a number", bool: "true or false", list: "a list", dict: "an object"}


def _type_conflict(scan: ScannedRows) -> str:
    """Return a message about the first row whose value has another type than the column had before. The message is
    empty if every column has one type."""
    first = [(number, column, kind) for column, kinds in scan.column_types.items() for kind, number in kinds.items()]
    type_names: dict[str, str] = {}
    for number, column, kind in sorted(first, key=lambda each: each[0]):
        name = _TYPE_NAMES.get(float if kind is int else kind, "mixed")  # whole numbers and others are one type
        if kind is not type(None) and (before := type_names.setdefault(column, name)) != name:
            return f"`{column}` is {name} at {scan.place(number)} and {before} before; a column has only one type"
    return ""


def _late_column(scan: ScannedRows) -> str:
    """Return a message about the first column that has no value in the first part of the data that the datasets library
    reads. The message is empty if there is no such column. The first part determines columns and types: later parts may
    not add columns, nor values to a column that was empty."""
    lines = scan.files[0][1].suffix in (".json", ".jsonl")
    for column, kinds in scan.column_types.items():
        numbers = [number for kind, number in kinds.items() if kind is not type(None) or not lines]
        if numbers and min(numbers) >= _first_part_rows(scan):
            found = f"column `{column}` first has a value at {scan.place(min(numbers))}"
            why = "the datasets library takes columns and types from the first part that it reads"
            return f"{found}; {why}, so move a row that has `{column}` to the top"
    return ""


def _first_part_rows(scan: ScannedRows) -> int:
    """Return the number of rows in the part that the datasets library reads first. The part is the first file that has
    rows, but only the first 10 MB if this is a file of JSON lines."""
    rows = next((start for start, _ in scan.files if start), scan.read)
    path = [path for start, path in scan.files if not start][-1]
    if path.stat().st_size <= _FIRST_PART_BYTES or not data_files.is_json_lines(path):
        return rows
    with data_streams.open_raw(path) as stream:
        part = stream.read(_FIRST_PART_BYTES) + stream.readline(reading_limits.MAX_ROW_BYTES)
    return min(sum(1 for line in io.BytesIO(part) if line.strip()), rows)


def _date_columns(scan: ScannedRows) -> list[str]:
    """Return the columns of text in which every value looks like a date, if all files are JSON lines. Arrow reads such
    a column as timestamps. The list is empty for other file types, or if a row cannot be read."""
    texts = {column for column, kinds in scan.column_types.items() if str in kinds}
    if scan.problems or not all(data_files.is_json_lines(path) for _, path in scan.files):
        return []
    return sorted(texts - scan.not_dates)
