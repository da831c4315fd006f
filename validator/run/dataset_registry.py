"""Local data sets: the registry (dataset_info.json), the files that its entries name, and the number of rows in these
files."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import tables
from validator.knowledge.releases import ReleaseRange
from validator.recipe import safe_read
from validator.recipe.known_folders import catalogue_root
from validator.rows.dataset_attr import FORMATTINGS, SOURCE_OF_KEY, DatasetAttr, DataSource
from validator.run.row_counts import Rows, count_rows, parse_split, sum_rows

# The file of a registry, in `dataset_dir` (llamafactory/extras/constants.py, DATA_CONFIG).
REGISTRY_FILE = "dataset_info.json"

# Address -> package that fsspec opens it with, which LLaMA-Factory does not install (data/data_utils.py).
CLOUD_PACKAGES = {"s3://": "s3fs", "gs://": "gcsfs", "gcs://": "gcsfs"}


@dataclass(eq=False)
class Dataset:
    """One entry of a dataset_info.json. `folder`: the recipe's `dataset_dir`; file names in the entry are relative to
    it."""

    name: str
    entry: Mapping[str, Any]
    folder: Path

    @property
    def source(self) -> DataSource | None:
        """Where LLaMA-Factory takes the data from. If the entry names both a hub and a file, the hub counts. None if
        the entry names no source."""
        return next((kind for key, kind in SOURCE_OF_KEY.items() if key in self.entry), None)

    @property
    def package(self) -> str | None:
        """Name of the package that must be installed to load the data set, such as modelscope; None if the datasets
        library alone loads it. If the entry names several hubs, Hugging Face wins."""
        if "hf_hub_url" in self.entry:
            return None
        if "ms_hub_url" in self.entry or "om_hub_url" in self.entry:
            return "modelscope" if "ms_hub_url" in self.entry else "openmind"
        address = "" if "script_url" in self.entry else str(self.entry.get("cloud_file_name"))
        return next((package for start, package in CLOUD_PACKAGES.items() if address.startswith(start)), None)

    @cached_property
    def path(self) -> Path:
        return safe_read.without_detour(self.folder / str(self.entry.get("file_name")))

    @cached_property
    def present(self) -> bool:
        """True if the path in the entry's `file_name` exists."""
        return safe_read.path_kind(self.path) is not None

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The local data files of the entry; empty if nothing exists. For a folder: the files at its first level, in
        the order in which the system lists them and LLaMA-Factory reads them."""
        if self.source != "file" or not self.present:
            return ()
        if safe_read.path_kind(self.path) == "folder":
            return tuple(safe_read.list_folder(self.path))
        return (self.path,) if safe_read.path_kind(self.path) == "file" else ()

    @property
    def why_not_here(self) -> str:
        """Why the rows of a data set that is no local file are not on this machine, and how to get them, as text for a
        message."""
        found = f"not on this machine: its source is a {self.source or 'missing file_name'}"
        name = hub_name(str(self.entry.get("hf_hub_url")))
        fetch = f"; run `{download_command(name)}`, and `lmf-recipes data` with the file of its rows"
        return f"{found}{fetch if name else ''}"

    @cached_property
    def attr(self) -> DatasetAttr:
        """The columns and tags of the entry, as LLaMA-Factory's DatasetAttr. Default names count only if the whole
        mapping `columns` or `tags` is missing from the entry."""
        return DatasetAttr.from_entry(self.entry)

    @property
    def published(self) -> Mapping[str, Any] | None:
        """What data/sets.yaml, the table of public data sets, says about this data set: number of rows, tokens per row,
        share of thoughts and others. None if the table does not list it. If the dataset_info.json entry sets
        `num_samples`, that is the number of rows."""
        subset = self.entry.get("subset")
        found = tables.yaml_table("sets").get(f"{self.entry.get('hf_hub_url')}{f'#{subset}' if subset else ''}")
        return {**found, "rows": self.drawn} if found and self.drawn else found

    @property
    def drawn(self) -> int | None:
        """The entry's `num_samples`; None if it is not set, or not a number of samples, which PTH118 reports."""
        number = self.entry.get("num_samples")
        return number if isinstance(number, int) and number > 0 else None

    @cached_property
    def rows(self) -> Rows | None:
        """The rows that LLaMA-Factory takes from the entry's local files: those of its `split`, and as many as its
        `num_samples` says. None if there is no local file, if only `data` can read a file and `num_samples` is not set,
        or if the entry's split is of an unknown form."""
        counted = [count_rows(path) for path in self.files]
        if not counted or any(rows is None for rows in counted):
            return Rows(self.drawn) if counted and self.drawn else None
        total = sum_rows(rows for rows in counted if rows)
        if total.problem:
            return total
        try:
            chosen = parse_split(str(self.entry.get("split", "train")), total.number)
        except RecipeError:
            return None
        if len(chosen) < total.number:  # the first rows of the files may be none of them
            total = total._replace(number=len(chosen), head=total.head[chosen.start : chosen.stop])
        return total._replace(number=self.drawn, exact=True) if self.drawn else total


class CountedSamples(NamedTuple):
    """The samples of a run, after all rows of its data were read. `trained_share`: the share of the rows selected for
    training that LLaMA-Factory does not drop. `lengths`: tokens of equally likely samples, before `cutoff_len`.
    `longest`: tokens that no sample exceeds, those for evaluation included. `exact`: the tokens were counted with the
    model's tokenizer, and not estimated."""

    trained_share: float
    lengths: tuple[int, ...]
    longest: int
    exact: bool


class Registry(NamedTuple):
    """The entries of a dataset_info.json by name. `problem`: why the file could not be read; None if it could.
    `counted`: the samples of the run that trains on these data sets; None if not all rows were read."""

    folder: Path
    entries: Mapping[str, Any] = MappingProxyType({})
    problem: str | None = None
    counted: CountedSamples | None = None

    @property
    def path(self) -> Path:
        """The path of the dataset_info.json that holds the entries."""
        return self.folder / REGISTRY_FILE

    @property
    def has_images(self) -> bool:
        """True if any of the data sets has a column of images or videos."""
        return any(one.attr.has_images for name in self.entries if (one := self.get(name)))

    def get(self, name: str) -> Dataset | None:
        """Return the data set of this name; None if dataset_info.json does not define it."""
        if name not in self.entries:
            return None
        entry = self.entries[name]
        return Dataset(name, entry if isinstance(entry, Mapping) else {}, self.folder)


_HUB_NAME = re.compile(r"(?:(?:https?|hf):/+(?:[\w.-]+\.\w+/)?datasets/)?([\w-][\w.-]*/[\w-][\w.-]*)/?")


def hub_name(text: str) -> str:
    """Return the name of a data set on a hub, such as `tatsu-lab/alpaca`, if `text` has its form or is the address of
    its page; else an empty string. A path below a folder that is there is no such name."""
    match = _HUB_NAME.fullmatch(text)
    name = match[1] if match else ""
    is_file = Path(name).suffix[1:] in readable_suffixes() or safe_read.path_kind(name.partition("/")[0]) is not None
    return "" if is_file else name


def hub_entry_remedy(name: str, entries: Mapping[str, Any]) -> str:
    """Return, as text for a message, how a recipe names a data set of a hub: by an entry of dataset_info.json. `name`:
    the data set's name on the hub. `entries`: those that the file has. An entry of the catalogue is as `copy` and
    `plan` write it."""
    if known := _entry_of_hub(name, entries):
        return f"write `dataset: {known}`"
    bundled = read_registry(catalogue_root() / "data" / REGISTRY_FILE).entries
    if short := _entry_of_hub(name, bundled):
        entry, columns = bundled[short], ""
    else:
        short, entry = name.rpartition("/")[2], {"hf_hub_url": name}
        columns = " (with `columns` unless they are instruction, input and output)"
    return (
        f"write `{json.dumps({short: entry})}` into dataset_info.json{columns}, and `dataset: {short}` into the recipe"
    )


def _entry_of_hub(name: str, entries: Mapping[str, Any]) -> str | None:
    """Return the name of the first entry for the data set that a hub has under `name`; None if there is none."""
    hubs = [key for key, source in SOURCE_OF_KEY.items() if source == "hub"]
    own = (key for key, entry in entries.items() if isinstance(entry, Mapping) and name in map(entry.get, hubs))
    return next(own, None)


def download_command(name: str) -> str:
    """Return the command that downloads a data set of Hugging Face's hub into a folder here."""
    return f"hf download {name} --repo-type dataset --local-dir {name.rpartition('/')[2]}"


def read_registry(path: Path) -> Registry:
    """Return the registry in a dataset_info.json. Never raises: `problem` of the result says why the file could not be
    read."""
    try:
        entries = safe_read.read_json(str(path))
    except RecipeError as err:
        return Registry(path.parent, problem=str(err))
    if not isinstance(entries, dict):
        return Registry(path.parent, problem=f"`{path}` is not a JSON object of data sets by name")
    return Registry(path.parent, entries)


def readable_suffixes() -> Mapping[str, str]:
    """Return the file name suffixes that LLaMA-Factory reads, each with the name of the `datasets` loader for it."""
    kinds: Mapping[str, str] = tables.json_table("templates")["names"]["file_types"]
    return kinds


def formatting_fault(formatting: object, releases: ReleaseRange) -> str:
    """Return why LLaMA-Factory has no converter for the value `formatting` of a dataset_info.json entry; an empty
    string if it has one. `releases`: the package releases that the recipe may run with."""
    if formatting not in FORMATTINGS:
        return f"formatting `{formatting}` is none of {', '.join(FORMATTINGS)}"
    if formatting == "openai" and releases.requires(until="llamafactory 0.9.4"):
        return "formatting `openai` is not known before LLaMA-Factory 0.9.4"
    return ""


def file_type_fault(path: Path, files: Sequence[Path]) -> str:
    """Return why LLaMA-Factory cannot load these files as one data set (a type that it does not read, or several
    types), as text for a message; an empty string if it can. `path`: the folder or file that the dataset_info.json
    entry names."""
    kinds = {readable_suffixes().get(file.suffix[1:]): file for file in files}
    if unreadable_file := kinds.get(None):
        lower = unreadable_file.suffix.lower()
        remedy = f"; rename it to `{unreadable_file.with_suffix(lower)}`" if lower[1:] in readable_suffixes() else ""
        remedy = remedy or ("; save it as csv" if lower in (".tsv", ".tab", ".xlsx", ".xls") else "")
        remedy = remedy or "; save it as jsonl"
        return f"LLaMA-Factory does not read `{unreadable_file}`, only {', '.join(readable_suffixes())}{remedy}"
    mixed = ", ".join(file.suffix for file in kinds.values())
    return f"`{path}` mixes {mixed}; keep files of one type in the folder" if len(kinds) > 1 else ""
