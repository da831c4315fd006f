"""The data sets that a run names, and how many rows it takes from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from validator.recipe import safe_read
from validator.run import dataset_registry
from validator.run.dataset_registry import Dataset, Registry
from validator.run.hyperparameters import Evaluation
from validator.run.recipe_arguments import Arguments, Declared
from validator.run.workspace import Workspace


class DataSources:
    """The data sets that a recipe names. Each property reads its files when it is first used."""

    def __init__(self, args: Arguments, declared: Declared, evaluation: Evaluation, workspace: Workspace) -> None:
        self._args, self._declared, self._evaluation, self._workspace = args, declared, evaluation, workspace

    @cached_property
    def registry(self) -> Registry | None:
        """The data sets that dataset_info.json in `dataset_dir` defines. None if `dataset_dir` is not a local folder,
        or the recipe names no data set."""
        if self._workspace.registry != "on disk":
            return self._workspace.registry
        value = self._args.get("dataset_dir")
        if isinstance(value, Mapping):
            return Registry(Path(), value)
        names_dataset = self._args.is_set("dataset") or self._args.is_set("eval_dataset")
        if not names_dataset or not isinstance(value, str) or value == "ONLINE" or value.startswith("REMOTE:"):
            return None
        file = self._workspace.find(f"{value}/{dataset_registry.REGISTRY_FILE}")
        return dataset_registry.read_registry(
            file[0] if file and not file[1] else Path(value, dataset_registry.REGISTRY_FILE)
        )

    @cached_property
    def datasets(self) -> tuple[Dataset, ...]:
        """The data sets of the recipe's `dataset` key, without names that the registry (dataset_info.json) does not
        define."""
        return self._defined(self._args.words("dataset"))

    @cached_property
    def evaluation_datasets(self) -> tuple[Dataset, ...]:
        """The data sets of the recipe's `eval_dataset` key, without names that the registry (dataset_info.json) does
        not define."""
        return self._defined(self._args.words("eval_dataset"))

    def _defined(self, names: Sequence[str]) -> tuple[Dataset, ...]:
        found = (self.registry.get(name) for name in dict.fromkeys(names)) if self.registry else ()
        return tuple(filter(None, found))

    @cached_property
    def local_rows(self) -> int | None:
        """Number of rows of the training data sets; None if a data set has no local file, or its rows cannot be
        counted."""
        counted = [dataset.rows for dataset in self.datasets]
        if not counted or len(counted) < len(set(self._args.words("dataset"))):
            return None
        if any(rows is None or rows.problem for rows in counted):
            return None
        return sum(rows.number for rows in counted if rows)

    @cached_property
    def rows(self) -> int | None:
        """Number of rows that the run takes from its data sets; None if it is not known. The first of these numbers
        that is known counts: rows of the local files, `rows` in the recipe's header block, the header block's
        recommended number of samples, published rows of public data sets."""
        if self.local_rows is None and self._declared.rows:
            return self._declared.rows
        max_samples = int(self._args.number("max_samples"))  # holds for each data set
        rows = self.local_rows if self.local_rows is not None else self._declared.samples
        if rows is None:
            return self.published_rows
        return min(rows, max_samples * max(len(self.datasets), 1)) if max_samples > 0 else rows

    @property
    def published(self) -> list[Mapping[str, Any]]:
        """The recipe's training data sets as data/sets.yaml, the table of public data sets, describes them; an empty
        list if any of these data sets is not in the table."""
        found = [entry for one in self.datasets if (entry := one.published)]
        return found if len(found) == len(set(self._args.words("dataset"))) else []

    @property
    def published_rows(self) -> int | None:
        """Number of rows that the run takes from public data sets, as published and limited by `max_samples`; None if a
        data set of the recipe has no published number."""
        max_samples = max(int(self._args.number("max_samples")), 0)
        return sum(min(int(each["rows"]), max_samples or int(each["rows"])) for each in self.published) or None

    @property
    def held_back_rows(self) -> int:
        """Number of training rows that `val_size` keeps for evaluation (data/data_utils.py, split_dataset); 0 if the
        number of training rows is not known."""
        value = self._args.number("val_size") if self._evaluation.splits_validation_set else 0.0
        rows = self.rows or 0
        return max(0, min(int(value if value >= 1 else rows * value), rows - 1))

    @cached_property
    def is_tokenized(self) -> bool:
        """True if the folder at `tokenized_path` exists and is not empty. LLaMA-Factory then loads tokenized data from
        this folder and ignores the other data settings (extras/misc.py)."""
        value = self._args.get("tokenized_path")
        folder = self._workspace.find(value) if isinstance(value, str) and value else None
        return folder is not None and folder[1] and any(safe_read.list_folder(folder[0]))
