"""Local data sets: the registry (dataset_info.json), the files that its entries name, and the number of rows in these
files."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from validator.errors import RecipeError, os_reason
from validator.knowledge import tables
from validator.knowledge.releases import ReleaseRange
from validator.recipe import safe_read
from validator.rows.csv_rows import read_csv, read_text
from validator.rows.dataset_attr import FORMATTINGS, SOURCE_OF_KEY, DatasetAttr, DataSource
from validator.rows.json_rows import read_json
from validator.rows.reading_limits import TooLargeError, UnreadableError
from validator.wording import plural

# The file of a registry, in `dataset_dir` (llamafactory/extras/constants.py, DATA_CONFIG).
REGISTRY_FILE = "dataset_info.json"

# Larger files are estimated from their beginning, so that a check never waits for data.
_MAX_WHOLE_BYTES = {"json": 2 << 20, "csv": 2 << 20, "jsonl": 4 << 20, "txt": 4 << 20}
_HEAD_BYTES = 1 << 18
_READERS = {"json": read_json, "jsonl": read_json, "csv": read_csv, "txt": read_text}
_HEAD_ROWS = 1000  # rows
# First bytes of packed files. The datasets library unpacks them whatever they are called (utils/file_utils.py,
# _get_extraction_protocol_with_magic_number).
PACKED_FILE_MARKS = {
    "gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ\x00", "zip": b"PK\x03\x04",
    "zstandard": b"\x28\xb5\x2f\xfd", "lz4": b"\x04\x22\x4d\x18", "rar": b"Rar!",
}  # fmt: skip


class Rows(NamedTuple):
    """The rows of a data set. `number`: how many; an estimate if `exact` is False. `columns`: names of all columns;
    None unless every row was read. `problem`: why no row can be read. `head`: the first rows, enough to tell their
    format."""

    number: int = 0
    exact: bool = True
    columns: frozenset[str] | None = None
    problem: str | None = None
    head: tuple[Mapping[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.number:,}" if self.exact else f"about {self.number:,}"

    @property
    def samples(self) -> str:
        """The number with its noun for a message, such as "about 3,000 samples"."""
        return f"{self} {plural(self.number, 'sample')}"


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
    def path(self) -> Path:
        return self.folder / str(self.entry.get("file_name"))

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
        subset, drawn = self.entry.get("subset"), self.entry.get("num_samples")
        found = tables.yaml_table("sets").get(f"{self.entry.get('hf_hub_url')}{f'#{subset}' if subset else ''}")
        return {**found, "rows": drawn} if found and isinstance(drawn, int) else found

    @cached_property
    def rows(self) -> Rows | None:
        """The rows that LLaMA-Factory reads from the entry's local files. None if a file has a format that the standard
        library cannot count, if there is no local file, or if the entry's split is not "train"."""
        counted = [count_rows(path) for path in self.files]
        split = self.entry.get("split", "train")
        if not counted or split != "train" or any(rows is None for rows in counted):
            return None
        total = sum_rows(rows for rows in counted if rows)
        num_samples = self.entry.get("num_samples")
        return (
            total._replace(number=num_samples, exact=True)
            if isinstance(num_samples, int) and not total.problem
            else total
        )


class Registry(NamedTuple):
    """The entries of a dataset_info.json by name. `problem`: why the file could not be read; None if it could."""

    folder: Path
    entries: Mapping[str, Any] = MappingProxyType({})
    problem: str | None = None

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


def count_rows(path: Path) -> Rows | None:
    """Return the number and the first rows of one data file. The number is an estimate for a large file, made from the
    file's beginning. None for a compressed file, for a row beyond the reading limits, and for a format that the
    standard library cannot count."""
    if path.suffix[1:] not in _MAX_WHOLE_BYTES or safe_read.path_kind(path) != "file":
        return None
    try:
        stat = path.stat()
        return _count_in_file(str(path), stat.st_size, stat.st_mtime_ns)
    except OSError as err:
        return Rows(problem=f"`{path}` cannot be read: {os_reason(err)}")


@lru_cache(maxsize=1024)
def _count_in_file(path: str, size: int, _changed: int) -> Rows | None:
    kind = Path(path).suffix[1:]
    is_complete = size <= _MAX_WHOLE_BYTES[kind]
    with Path(path).open("rb") as stream:
        data = stream.read(size if is_complete else _HEAD_BYTES)
    if data.startswith(tuple(PACKED_FILE_MARKS.values())):
        return None
    if not is_complete:
        data = data[: data.rfind(b"\n") + 1] or data
    rows, problem = [], ""
    try:
        for _, row in _READERS[kind](io.BytesIO(data)):
            rows.append(row)
    except UnreadableError as err:
        problem = f"row {err.row} of `{path}` {err}" if err.row else f"`{path}` {err}"
    except TooLargeError:
        return None
    head = tuple(rows[:_HEAD_ROWS])
    if not is_complete:  # cut in the middle of a list, which is no problem of the file
        return Rows(round(len(rows) * size / len(data)), exact=False, head=head) if rows else None
    if problem or not rows:
        return Rows(problem=problem or None)
    return Rows(len(rows), columns=frozenset().union(*rows), head=head)


def sum_rows(parts: Iterable[Rows]) -> Rows:
    """Return the rows of several files, added up as the rows of one data set."""
    total = Rows(columns=frozenset())
    for part in parts:
        both = total.columns is not None and part.columns is not None
        columns = (total.columns or frozenset()) | (part.columns or frozenset()) if both else None
        exact, problem = total.exact and part.exact, total.problem or part.problem
        total = Rows(total.number + part.number, exact, columns, problem, (total.head + part.head)[:_HEAD_ROWS])
    return total
