"""The data sets that a run names, and how many rows it takes from them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from validator.recipe import safe_read
from validator.rows.converter import Row
from validator.run import dataset_registry
from validator.run.dataset_registry import CountedSamples, Dataset, Registry
from validator.run.hyperparameters import Evaluation
from validator.run.recipe_arguments import Arguments, Declared
from validator.run.workspace import Workspace

# Rows that are read for an estimate: they take some hundredths of a second.
_MAX_SAMPLED_ROWS = 500

RowSource = Literal["files", "header", "recommended", "published"]


class RowCount(NamedTuple):
    """Number of rows. `exact`: the number is counted or stated; False for an estimate. `source`: where it comes from:
    the local files, `rows` or the recommended `samples` of the header block, or published figures."""

    number: int
    exact: bool
    source: RowSource


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
        folder = self._workspace.find_dataset_dir(value)
        found = folder[0] if folder and not folder[1] else Path(value)
        return dataset_registry.read_registry(found / dataset_registry.REGISTRY_FILE)

    @property
    def counted(self) -> CountedSamples | None:
        """The samples of the training data sets, if all rows were read; else None."""
        return self.registry.counted if self.registry else None

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
        """Number of rows of the training data sets that the run takes from local files; None if a data set has no local
        file, or its rows cannot be counted."""
        return self._local_count.number if self._local_count else None

    @cached_property
    def _local_count(self) -> RowCount | None:
        if len(self.datasets) < len(set(self._args.words("dataset"))):
            return None
        return self._count(self.datasets)

    def _count(self, datasets: Sequence[Dataset]) -> RowCount | None:
        """Return the number of rows that the run takes from these data sets: `max_samples` holds for each of them, and
        `mix_strategy` may leave rows out or repeat them (data/loader.py, _load_single_dataset; data/data_utils.py,
        merge_dataset). None if there are no data sets, or the rows of one cannot be counted."""
        most = int(self._args.number("max_samples"))
        counted = [dataset.rows for dataset in datasets]
        rows = [each for each in counted if each and not each.problem]
        if not rows or len(rows) < len(counted):
            return None
        sizes = [min(each.number, most) if most > 0 else each.number for each in rows]
        exact = all(each.exact for each in rows)
        strategy, shares = str(self._args.get("mix_strategy")), self._interleave_probs
        if len(sizes) == 1 or strategy not in ("interleave_under", "interleave_over"):
            return RowCount(sum(sizes), exact, "files")
        end = max if strategy == "interleave_over" else min  # when the last, or the first, is used up
        if len(shares) != len(sizes) or min(shares) <= 0:
            return RowCount(end(sizes) * len(sizes), exact and not shares, "files")
        return RowCount(round(end(size / share for size, share in zip(sizes, shares, strict=True))), False, "files")

    def media_folder(self, dataset: Dataset) -> str:
        """Return the folder to which the paths of a data set's images, videos and audios are relative: `media_dir`, by
        default the folder of its dataset_info.json (hparams/data_args.py)."""
        folder = str(self._args.get("media_dir") or dataset.folder)
        found = self._workspace.find(folder)
        return str(found[0]) if found else folder

    def folders_near(self, dataset: Dataset) -> tuple[Path, ...]:
        """Return the folders in and around which a data set's images may lie that are not in `media_folder`."""
        return (*dict.fromkeys(file.parent for file in dataset.files), *self._workspace.folders[:1])

    @cached_property
    def sampled_rows(self) -> tuple[tuple[Dataset, Row], ...]:
        """Some of the first rows of the training data sets, by which lengths are estimated: of each as many as its
        share of all rows asks for; all rows if they are few."""
        most = max(int(self._args.number("max_samples")), 0) or sys.maxsize
        counted = [
            (one, one.rows.head, min(one.rows.number, most)) for one in self.datasets if one.rows and one.rows.head
        ]
        total = sum(number for _, _, number in counted)
        share = min(
            [_MAX_SAMPLED_ROWS / max(total, 1), 1.0, *(len(head) / max(number, 1) for _, head, number in counted)]
        )
        chosen = list[tuple[Dataset, Row]]()
        for one, head, number in counted:
            chosen += [(one, row) for row in head[: max(round(share * number), 1)]]
        return tuple(chosen)

    @property
    def sampled_in_words(self) -> str:
        """The rows by which lengths are estimated, as text for a message, such as "all 400 rows" or "the first 500
        of 52,002 rows"."""
        read, count = len(self.sampled_rows), self._local_count
        if count and self.has_more_rows:
            return f"the first {read:,} of {'' if count.exact else 'about '}{count.number:,} rows"
        return f"all {read:,} rows" if read > 1 else "the only row"

    @property
    def has_more_rows(self) -> bool:
        """True if there are more rows than those by which lengths are estimated."""
        return self._local_count is not None and self._local_count.number > len(self.sampled_rows)

    @property
    def has_first_rows(self) -> bool:
        """True if the rows of the training data sets are counted and the first of them are known, from which lengths
        can be estimated."""
        return self._local_count is not None and any(one.rows and one.rows.head for one in self.datasets)

    @property
    def _interleave_probs(self) -> list[float]:
        with suppress(ValueError):
            return [float(word) for word in self._args.words("interleave_probs")]
        return []

    @cached_property
    def count(self) -> RowCount | None:
        """Number of rows that the run takes from its data sets, and how sure it is; None if it is not known. The first
        of these numbers that is known counts: rows of the local files, `rows` in the recipe's header block, the header
        block's recommended number of samples, published rows of public data sets."""
        if self._local_count:
            return self._local_count
        if self._declared.rows:
            return RowCount(self._limited(self._declared.rows), True, "header")
        if self._declared.samples is not None:
            return RowCount(self._limited(self._declared.samples), True, "recommended")
        return RowCount(self.published_rows, True, "published") if self.published_rows else None

    def _limited(self, rows: int) -> int:
        """Return the number of rows that are left of `rows` of the header block by `max_samples`, which holds for each
        data set and may come from the command line."""
        most = int(self._args.number("max_samples")) * max(len(set(self._args.words("dataset"))), 1)
        return min(rows, most) if most > 0 else rows

    @property
    def rows(self) -> int | None:
        """Number of rows that the run takes from its data sets (`count`); None if it is not known."""
        return self.count.number if self.count else None

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
        """Number of training rows that `val_size` keeps for evaluation (data/data_utils.py, split_dataset;
        datasets/arrow_dataset.py, train_test_split, which rounds a share up); 0 if the number of training rows is not
        known."""
        value = self._args.number("val_size") if self._evaluation.splits_validation_set else 0.0
        rows = self.rows or 0
        return max(0, min(int(value) if value >= 1 else math.ceil(value * rows), rows - 1))

    @property
    def evaluation_rows(self) -> int:
        """Number of rows of the data sets in `eval_dataset`, as far as it is known."""
        counted = (self._count([dataset]) for dataset in self.evaluation_datasets)
        return sum(each.number for each in counted if each)

    @cached_property
    def is_tokenized(self) -> bool:
        """True if the folder at `tokenized_path` exists and is not empty. LLaMA-Factory then loads tokenized data from
        this folder and ignores the other data settings (extras/misc.py)."""
        value = self._args.get("tokenized_path")
        folder = self._workspace.find(value) if isinstance(value, str) and value else None
        return folder is not None and folder[1] and any(safe_read.list_folder(folder[0]))
