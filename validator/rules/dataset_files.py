"""PTH101 to PTH106, PTH112 to PTH115 and PTH117: dataset_info.json and the files that its entries name."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from validator.escaping import shell_quote
from validator.finding import Place
from validator.knowledge import tables
from validator.recipe import safe_read
from validator.recipe.known_folders import catalogue_root
from validator.recipe.suggestions import suggest, unknown_name
from validator.rows import entry_inference
from validator.rows.csv_rows import separator_fault
from validator.rows.dataset_attr import SAMPLE_PARTS, SOURCE_OF_KEY
from validator.rules import subjects
from validator.rules.missing_paths import if_elsewhere, is_missing, registry_is_elsewhere
from validator.rules.rule import ERROR, MAX_FINDINGS, WARNING, Findings, rule
from validator.rules.subjects import PlaceIn
from validator.run import dataset_registry, other_registries
from validator.run.dataset_registry import Dataset
from validator.run.settings import RunSettings
from validator.wording import relative_to_cwd


def guessed_format(dataset: Dataset) -> str:
    """Return the value of `formatting` that fits the first rows of a data set; an empty string if none fits."""
    with suppress(entry_inference.UnknownFormError):
        return str(entry_inference.infer_entry(_first_rows(dataset)).entry.get("formatting", "alpaca"))
    return ""


def why_unrecognized(dataset: Dataset) -> str:
    """Return what to do if no dataset_info.json entry is known for the first rows, and why: to name the columns in the
    entry, or to correct the rows. An empty string if an entry is known."""
    try:
        entry_inference.infer_entry(_first_rows(dataset))
    except entry_inference.UnknownFormError as err:
        if dataset.path.suffix == ".csv" and (fault := separator_fault(err.columns)):
            return fault
        if err.proposed:
            columns = json.dumps(err.proposed, ensure_ascii=False)
            return f'name the columns that hold them in the entry, such as "columns": {columns}'
        return f"correct the rows, which no entry of dataset_info.json can describe: {err}"
    return ""


def entry_remedy(run: RunSettings, dataset: Dataset, otherwise: str = "") -> str:
    """Return a remedy to append to a message: `; ` and how to change the data set's dataset_info.json entry or the
    stage so that they suit its rows. If that is not known, `; ` and the text `otherwise`; an empty string if
    `otherwise` is empty."""
    fitting = entry_inference.suggest_entry(dataset.name, dataset.entry, run.task.stage, _first_rows(dataset))
    what = fitting or otherwise
    return f"; {what}" if what else ""


def _first_rows(dataset: Dataset) -> Sequence[Mapping[str, Any]]:
    return dataset.rows.head if dataset.rows and not dataset.rows.problem else ()


_OTHER_KEYS = ("formatting", "ranking", "subset", "split", "folder", "num_samples", "columns", "tags")
_ENTRY_KEYS = {*SOURCE_OF_KEY, *_OTHER_KEYS}


@rule("PTH101", ERROR)
def registry_missing(run: RunSettings) -> Findings:
    """`dataset_dir` has no dataset_info.json, which says what the data set names mean.

    Why: every process stops after the tokenizer is loaded: "Cannot open data/dataset_info.json".
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: set `dataset_dir` to the folder of the registry that defines the data sets (default `data`, from the working
    directory); or `lmf-recipes data FILE --register NAME` creates it.
    """
    registry = f"{run.args.get('dataset_dir')}/{dataset_registry.REGISTRY_FILE}"
    is_absent = _is_registry_missing(run) and not registry_is_elsewhere(run)
    if is_absent and not run.data.is_tokenized:
        names = [name for key in ("dataset", "eval_dataset") for name in run.args.words(key)]
        shipped = next(filter(None, (_shipped_with_llamafactory(name, {}) for name in names)), "")
        command = next(filter(None, (_register_command(run, name) for name in names)), "")
        usual = "create the file, or set `dataset_dir` to the folder that holds it"
        hub = next(filter(None, map(dataset_registry.hub_name, names)), "")
        by_entry = dataset_registry.hub_entry_remedy(hub, {}) if hub and not command else ""
        remedy = _defined_elsewhere(run) or command or shipped or by_entry or usual
        found = f"`{registry}` does not exist, so no data set is defined; {remedy}"
        yield _key_naming_registry(run), f"{found}{if_elsewhere(run, registry)}"


@rule("PTH102", ERROR)
def registry_unreadable(run: RunSettings) -> Findings:
    """dataset_info.json is not a JSON object.

    Why: every process stops after the tokenizer is loaded.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: correct the place named; JSON has no comments, no trailing commas and only double quotes.
    """
    if run.data.registry and run.data.registry.problem and not _is_registry_missing(run) and not run.data.is_tokenized:
        place = Place((), str(run.data.registry.path), _key_naming_registry(run))
        yield place, f"{run.data.registry.problem}, so no data set is defined; correct the file"


@rule("PTH103", ERROR)
def data_set_undefined(run: RunSettings) -> Findings:
    """A data set is not in dataset_info.json.

    Why: `dataset` takes names of that file, not files or hub names: "Undefined dataset" after the tokenizer is loaded.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: use the name as it is written there, or add an entry: `lmf-recipes data FILE --register NAME`.
    """
    if not run.data.registry or run.data.registry.problem or run.data.is_tokenized:
        return
    for key in ("dataset", "eval_dataset"):
        for name in run.args.words(key):
            if name not in run.data.registry.entries:
                yield subjects.at_list_item(run, key, name), _undefined_message(run, name, run.data.registry.entries)


@rule("PTH104", ERROR, about=subjects.datasets)
def entry_without_source(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The registry entry does not say where the data are.

    Why: KeyError 'file_name' after the tokenizer is loaded.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: give the entry `file_name`, `hf_hub_url`, `ms_hub_url`, `om_hub_url`, `script_url` or `cloud_file_name`.
    """
    if dataset.source is None:
        strange = islice((name for name in dataset.entry if name not in _ENTRY_KEYS), MAX_FINDINGS)
        hints = ((name, suggest(name, SOURCE_OF_KEY)) for name in strange)
        near = next((f", but has `{name}`{hint}" for name, hint in hints if hint), "")
        remedy = near or "; add `file_name` or `hf_hub_url`"
        yield at(), f"the dataset_info.json entry of data set `{dataset.name}` names no source of the data{remedy}"


@rule("PTH115", WARNING, about=subjects.datasets)
def entry_key_ignored(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The entry holds a key that LLaMA-Factory does not read.

    Why: it is ignored without a word, so the default applies.
    Source: llamafactory/data/parser.py:DatasetAttr.join
    Fix: correct or remove it.
    """
    columns = dataset.entry.get("columns")
    own = [((), key, _ENTRY_KEYS) for key in dataset.entry if dataset.source]
    parts = [(("columns",), key, SAMPLE_PARTS) for key in columns] if isinstance(columns, Mapping) else []
    for route, key, known in (*own, *parts):
        if key not in known:
            text = unknown_name(f"data set `{dataset.name}`: dataset_info.json key", key, known, " and is ignored")
            yield at(*route, key, at_key=True), text


@rule("PTH117", WARNING)
def data_set_twice(run: RunSettings) -> Findings:
    """A data set is named twice.

    Why: it is trained on once only.
    Source: llamafactory/data/loader.py:_get_merged_dataset
    Fix: name it once; `num_samples` in the entry draws more samples than there are.
    """
    for key in ("dataset", "eval_dataset"):
        for name, times in Counter(run.args.words(key)).items():
            if times > 1:
                found = f"data set `{name}` is named {times} times in `{key}`, but used once"
                yield subjects.at_list_item(run, key, name), f"{found}; write its name once"


def _is_registry_missing(run: RunSettings) -> bool:
    folder = run.args.get("dataset_dir")
    is_named = run.data.registry is not None and isinstance(folder, str)
    return is_named and run.workspace.find(f"{folder}/{dataset_registry.REGISTRY_FILE}") is None


def _key_naming_registry(run: RunSettings) -> str:
    return next((key for key in ("dataset_dir", "dataset") if run.args.is_set(key)), "eval_dataset")


def _undefined_message(run: RunSettings, name: str, entries: Mapping[str, object]) -> str:
    if not name:
        return "one of the names of data sets is empty; remove the extra comma"
    stem, command = Path(name).stem, _register_command(run, name)
    if not _looks_like_path(name):
        quotes = run.data.registry is None or run.workspace.may_quote(run.data.registry.path)
        elsewhere = _defined_elsewhere(run, name)
        shipped = "" if elsewhere or command else _shipped_with_llamafactory(name, entries)
        near = suggest(name, entries) if quotes and not (elsewhere or shipped) else ""
        remedy = near or f"; {elsewhere or command or shipped or 'add an entry for it, or correct the name'}"
        return f"data set `{name}` is not defined in dataset_info.json{remedy}"
    if (hub := dataset_registry.hub_name(name)) and not command:
        remedy = dataset_registry.hub_entry_remedy(hub, entries)
        return f"`{name}` is not a name of dataset_info.json; for the data set of a hub, {remedy}"
    example = f'an entry such as "{stem}": {{"file_name": "{Path(name).name}"}}'
    remedy = f"write `{stem}`" if stem in entries else command or f"write `{stem}`, and add {example}"
    return f"`{name}` is a path, and `dataset` takes names of dataset_info.json; {remedy}"


def _defined_elsewhere(run: RunSettings, name: str = "") -> str:
    """Return, as text for a message, which other dataset_info.json of the repository defines all data sets of the
    recipe, or else the data set `name`, and what to do for it; an empty string if none does."""
    names = {name for key in ("dataset", "eval_dataset") for name in run.args.words(key)}
    if found := other_registries.registries_defining(run, names):
        folder = found[0].folder
        wanted = Path(str(run.args.get("dataset_dir"))).parts
        start = folder.parents[len(wanted) - 1] if folder.parts[-len(wanted) :] == wanted else Path.cwd()
        move = f"start the run in `{relative_to_cwd(start)}`, or " if start != Path.cwd() else ""
        remedy = f"{move}set `dataset_dir: {relative_to_cwd(folder)}`"
    elif name and (found := other_registries.registries_defining(run, {name})):
        remedy = "take its entry over from there, or name data sets of one file"
    else:
        return ""
    whose = f"`{name}`" if name else "the data sets of the recipe"
    others = f" ({len(found)} files do)" if len(found) > 1 else ""
    return f"`{relative_to_cwd(found[0].path)}` defines {whose}{others}: {remedy}"


def _shipped_with_llamafactory(name: str, entries: Mapping[str, object]) -> str:
    """Return, as text for a message, how to get a data set whose file lies in LLaMA-Factory's own repository, and a
    public one that may take its place; an empty string for any other data set. `entries`: those of the registry."""
    facts = tables.yaml_table("shipped_sets").get(name)
    if facts is None:
        return ""
    there = f"`{name}` ships in `data/` of LLaMA-Factory's repository: start the run in a clone of it"
    if facts["instead"] in entries:
        return f"{there}, or write `{facts['instead']}`, which lies on a hub"
    if address := facts.get("address"):
        entry = f'{{"{facts["instead"]}": {{"hf_hub_url": "{address}"}}}}'
        return f"{there}, or write `{entry}` into dataset_info.json, and `{facts['instead']}` into the recipe"
    return f"{there}, or set `dataset_dir` to its `data`"


def _looks_like_path(name: str) -> bool:
    return "/" in name or name.endswith(tuple(f".{suffix}" for suffix in dataset_registry.readable_suffixes()))


def _register_command(run: RunSettings, name: str) -> str:
    """Return, as text for a message, the command that adds a data file to dataset_info.json; an empty string if no file
    with the data set's name lies in the working directory or in `dataset_dir`. `name`: the name in the recipe, which
    may be a path."""
    suffixes = dataset_registry.readable_suffixes()
    folder = str(run.data.registry.folder) if run.data.registry else "data"
    names = [name] if _looks_like_path(name) else [f"{name}.{suffix}" for suffix in suffixes]
    places = (place for each in names if each for place in (each, f"{folder}/{each}"))
    file = next((place for place in places if (there := run.workspace.find(place)) and there[1]), None)
    if file is None:
        return ""
    recipe = Path(run.workspace.recipe)
    if recipe.parent == catalogue_root() / "recipes" and catalogue_root() != Path.cwd():
        return f"run `lmf-recipes copy {recipe.stem} . --data {shell_quote(file)}`, and train by the copy"
    stem = Path(name).stem if _looks_like_path(name) else name
    is_default_folder = folder == "data" and Path(file).parent in (Path(), Path("data"))
    where = "" if is_default_folder else f" --dataset-dir {shell_quote(folder)}"
    used = "" if stem == name else f", and set `dataset: {stem}`"
    return f"run `lmf-recipes data {shell_quote(file)} --register {shell_quote(stem)}{where}`{used}"


@rule("PTH105", ERROR, about=subjects.datasets)
def data_file_missing(run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The file of a data set does not exist.

    Why: "File … not found" after the tokenizer is loaded on every rank.
    Source: llamafactory/data/loader.py:_load_single_dataset
    Fix: put the file there; `file_name` counts from `dataset_dir`.
    """
    if dataset.source == "file" and not dataset.present and is_missing(run, dataset.path, "data"):
        there = [path.name for path in safe_read.glob_folder(dataset.folder, "*")]
        found = f"data set `{dataset.name}`: `{dataset.path}` does not exist (`file_name` is relative to `dataset_dir`)"
        near = suggest(str(dataset.entry["file_name"]), there)
        remedy = near or "; put the file there, or correct `file_name`"
        yield at("file_name"), f"{found}{remedy}{if_elsewhere(run, dataset.path)}"


@rule("PTH106", ERROR, about=subjects.datasets)
def file_type_refused(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """A data file has an ending LLaMA-Factory does not read, or a folder mixes several types.

    Why: "Allowed file types" or "File types should be identical", after the tokenizer is loaded. In a folder every
    entry counts, a README and a subfolder too.
    Source: llamafactory/data/loader.py:_load_single_dataset, llamafactory/extras/constants.py:FILEEXT2TYPE
    Fix: use arrow, csv, json, jsonl, parquet or txt, and one type for each folder.
    """
    if dataset.files:
        if fault := dataset_registry.file_type_fault(dataset.path, dataset.files):
            yield at("file_name"), f"data set `{dataset.name}`: {fault}"
    elif dataset.source == "file" and safe_read.path_kind(dataset.path) == "folder":
        found = f"data set `{dataset.name}`: the folder `{dataset.path}` is empty"
        yield at("file_name"), f"{found}; put the data files into the folder"


@rule("PTH112", ERROR, about=subjects.datasets)
def split_unknown(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The entry asks for a split of a local file other than train.

    Why: "Unknown split" or "Unrecognized instruction format": local files are one split, called train.
    Source: datasets/arrow_reader.py:_rel_to_abs_instr, datasets/arrow_reader.py:_str_to_read_instruction
    Fix: leave `split` out, or take a part: `train[:1000]`.
    """
    split = dataset.entry.get("split", "train")
    if dataset.source == "file" and not all(_is_train_split(part) for part in str(split).split("+")):
        found = f"data set `{dataset.name}`: a local file has only the split `train`, not `{split}`"
        yield at("split"), f"{found}; remove `split` from dataset_info.json"


@rule("PTH113", ERROR, about=subjects.datasets)
def data_unreadable(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """A data file is empty, or its content does not match its ending.

    Why: an error of the datasets library after the tokenizer is loaded.
    Source: llamafactory/data/loader.py:_load_single_dataset,
    datasets/packaged_modules/json/json.py:Json._generate_tables
    Fix: correct the file; JSON is a list of objects, or one object on each line.
    """
    if dataset.rows and dataset.rows.problem:
        remedy = "" if dataset.rows.problem.endswith(safe_read.LFS_POINTER_REASON) else "; correct the file"
        yield at("file_name"), f"data set `{dataset.name}`: {dataset.rows.problem}{remedy}"
    elif dataset.rows and not dataset.rows.number:
        yield at("file_name"), f"data set `{dataset.name}`: `{dataset.path}` holds no row; write samples into the file"


@rule("PTH114", WARNING, about=subjects.datasets)
def file_ignored(_run: RunSettings, at: PlaceIn, dataset: Dataset) -> Findings:
    """The entry names a hub and a local file; the file is not used.

    Why: a hub address wins, so the run downloads, or fails without a network, although the file is there.
    Source: llamafactory/data/parser.py:get_dataset_list
    Fix: remove the hub address from the entry.
    """
    if dataset.source == "hub" and "file_name" in dataset.entry and dataset.present:
        address = next(key for key in SOURCE_OF_KEY if key in dataset.entry)
        found = f"data set `{dataset.name}`: `{address}` wins over `file_name`, so `{dataset.path}` is not used"
        yield at("file_name", at_key=True), f"{found}; remove `{address}` to use the file"


def _is_train_split(text: str) -> bool:
    """True if the datasets library finds this split in a plain data file: `train`, or a part such as `train[:10%]`
    (arrow_reader.py)."""
    part = r"\s*(train|all)(\[(-?[\d_]+%?)?:(-?[\d_]+%?)?\])?(\([^)]*\))?\s*"
    return text == "train" or bool(re.fullmatch(part, text))
