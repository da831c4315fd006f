"""A recipe with LLaMA-Factory's defaults resolved: the model, machine, files and data that it names, and the
workload that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import guidance
from validator.knowledge.families import Family
from validator.knowledge.guidance import SampleAmounts
from validator.knowledge.models import Model
from validator.physics import TowerWorkload, Workload
from validator.physics.architecture import Mixer
from validator.recipe import known_folders, safe_read
from validator.recipe.known_folders import catalogue_root
from validator.run import dataset_registry, deepspeed, physics_inputs, trained_model
from validator.run.dataset_registry import Dataset, Registry
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.hyperparameters import Settings
from validator.run.quantization import Quantization, resolve_quantization
from validator.run.recipe_arguments import finite_number

_OUTSIDE_REPOSITORY = (
    "no config.json of a supported model type is in its folder, which lies outside of this repository and is not "
    "quoted; where torch and LLaMA-Factory are installed, explain RECIPE --simulate may judge it"
)


def _word_count(words: Any) -> int:
    """How many words a comma-separated text or a list has; there may be very many."""
    return words.count(",") + 1 if isinstance(words, str) and words else len(words) if isinstance(words, list) else 0


@dataclass(eq=False, repr=False)
class Resolved(Settings):
    """What LLaMA-Factory would run. `folders` are where a relative path may be meant from, the working directory first;
    `as_written` is false where the command line changed a value or the machine. `unclear` are keys that are meant
    to be set, in a way that LLaMA-Factory does not take. `guarded`: somebody else may have written the recipe, and is
    shown nothing of files outside of the repository (see recipe/known_folders.py)."""

    path: str = field(default="-", kw_only=True)
    machine_problem: str | None = field(default=None, kw_only=True)
    folders: tuple[Path, ...] = field(default=(), kw_only=True)
    as_written: bool = field(default=True, kw_only=True)
    unclear: frozenset[str] = field(default=frozenset(), kw_only=True)
    guarded: bool = field(default=False, kw_only=True)

    def quotes(self, file: Path) -> bool:
        """Whether messages may quote the file."""
        return not self.guarded or known_folders.is_in_repository(file, self.path)

    def find(self, path: str) -> tuple[Path, bool] | None:
        """Where a path exists, and whether that is where LLaMA-Factory looks (the working directory)."""
        return next(
            ((each / path, each == self.folders[0]) for each in self.folders if safe_read.path_kind(each / path)), None
        )

    @cached_property
    def _model(self) -> tuple[Model | None, str | None]:
        """The model, or why it is not known. Rows of new tokens are counted whole, where a checkpoint may have some to
        spare (LLaMA-Factory, model/model_utils/embedding.py)."""
        name = self.get("model_name_or_path")
        if not isinstance(name, str):
            return None, None
        place = self.find(name)
        try:
            there = trained_model.resolve_model(self, name, place[0] if place else None, self.path)
        except RecipeError as err:
            return None, str(err)
        new = sum(_word_count(self.get(key)) for key in ("add_tokens", "add_special_tokens"))
        arch = there.arch._replace(vocab=there.arch.vocab + new)
        if arch.mixer and not arch.mixer.kernels and self._has_kernels(arch.mixer, there.family):
            arch = arch._replace(mixer=arch.mixer._replace(kernels=True))
        return there._replace(arch=arch), None

    def _has_kernels(self, mixer: Mixer, family: Family) -> bool:
        """Whether a package computes what stands in place of attention: the header block names it, or LLaMA-Factory
        stops without it beside FlashAttention-2 (model/patcher.py)."""
        asked = family.mixers_patched and self.get("flash_attn") == "fa2"
        return self.on_gpu and (asked or self.packages.issuperset(mixer.packages))

    @property
    def model(self) -> Model | None:
        return self._model[0]

    @cached_property
    def quantization(self) -> Quantization:
        return resolve_quantization(self, self.model)

    @property
    def quantized(self) -> bool:
        """Whether the base weights are quantized already, or are asked to be."""
        return self.quantization.asked or self.quantization.checkpoint is not None

    @property
    def model_name(self) -> Any:
        """The model's name in the catalogue, else what the recipe writes."""
        return (
            self.model.name if self.model and self.model.id and not self.model.taken else self.get("model_name_or_path")
        )

    @property
    def model_problem(self) -> str | None:
        """Why the model is not known; of a folder outside of the repository nothing is quoted."""
        problem, name = self._model[1], self.get("model_name_or_path")
        place = self.find(name) if problem and isinstance(name, str) else None
        files = (place[0] / file for file in ("config.json", "adapter_config.json")) if place else ()
        return problem if all(map(self.quotes, files)) else _OUTSIDE_REPOSITORY

    @cached_property
    def zero(self) -> DeepSpeedConfig | None:
        """The DeepSpeed configuration; None where the recipe uses none. A file that is not there is taken for the
        catalogue's of the same name, else for what its name says."""
        if not self.engine:
            return None
        value = self.get("deepspeed")
        if not isinstance(value, str) or value.startswith("{"):
            return deepspeed.read_deepspeed(value, None)
        place, shipped = self.find(value), catalogue_root() / "deepspeed" / Path(value).name
        if place or safe_read.path_kind(shipped) == "file":
            return deepspeed.read_deepspeed(value, str(place[0] if place else shipped))

        return deepspeed.deepspeed_by_file_name(value) or deepspeed.read_deepspeed(value, value)._replace(missing=True)

    @property
    def zero_stage(self) -> int:
        return self.zero.stage if self.zero else 0

    @property
    def sharded_by(self) -> DeepSpeedConfig | None:
        """The DeepSpeed configuration by which memory is judged; None where the recipe uses none."""
        return self.zero

    @cached_property
    def registry(self) -> Registry | None:
        """The data sets that `dataset_dir` defines; None where it is not a folder, or no data set is named."""
        value = self.get("dataset_dir")
        if isinstance(value, Mapping):
            return Registry(Path(), value)
        named = self.has("dataset") or self.has("eval_dataset")
        if not named or not isinstance(value, str) or value == "ONLINE" or value.startswith("REMOTE:"):
            return None
        file = self.find(f"{value}/{dataset_registry.REGISTRY_FILE}")
        return dataset_registry.read_registry(
            file[0] if file and not file[1] else Path(value, dataset_registry.REGISTRY_FILE)
        )

    @cached_property
    def datasets(self) -> tuple[Dataset, ...]:
        """The data sets trained on that the registry defines."""
        names = dict.fromkeys(self.words("dataset")) if self.registry else {}
        return tuple(one for name in names if self.registry and (one := self.registry.get(name)))

    @cached_property
    def rows(self) -> int | None:
        """Rows of the local data sets that the recipe names; None where one of them is elsewhere or cannot be read."""
        counted = [dataset.rows for dataset in self.datasets]
        if not counted or len(counted) < len(set(self.words("dataset"))):
            return None
        if any(rows is None or rows.problem for rows in counted):
            return None
        return sum(rows.number for rows in counted if rows)

    @cached_property
    def data_rows(self) -> int | None:
        """Rows that the run takes from its data sets, by the first of these that is known: local files, the header
        block's `rows`, its recommended number of samples, what is published of public data sets. None: not known."""
        stated = finite_number(self.header.get("rows"))
        if self.rows is None and stated and stated > 0:
            return int(stated)
        most = int(self.number("max_samples"))  # holds for each data set
        rows = self.rows if self.rows is not None else self.samples
        if rows is None:
            return self.published_rows
        return min(rows, most * max(len(self.datasets), 1)) if most > 0 else rows

    @property
    def published(self) -> list[Mapping[str, Any]]:
        """The entries of data/sets.yaml for the data sets that the recipe names; empty where one of them has none."""
        found = [entry for one in self.datasets if (entry := one.published)]
        return found if len(found) == len(set(self.words("dataset"))) else []

    @property
    def published_rows(self) -> int | None:
        """Rows of the public data sets that the recipe names, after `max_samples`; None where they are not known."""
        most = max(int(self.number("max_samples")), 0)
        return sum(min(int(each["rows"]), most or int(each["rows"])) for each in self.published) or None

    @property
    def held_back(self) -> int:
        """Rows that `val_size` keeps for evaluation (data/data_utils.py, split_dataset); 0 where rows are not known."""
        value = self.number("val_size") if self.holds_back else 0.0
        rows = self.data_rows or 0
        return max(0, min(int(value if value >= 1 else rows * value), rows - 1))

    @property
    def steps(self) -> int:
        """Optimizer steps of the run; 0 where the number of samples is not known. Packing makes fewer of them."""
        if self.number("max_steps") > 0:
            return int(self.number("max_steps"))
        epochs = max(self.number("num_train_epochs"), 0.0)
        return int(-(-self.steps_per_epoch((self.data_rows or 0) - self.held_back) * epochs // 1))

    @cached_property
    def tokenized(self) -> bool:
        """Whether LLaMA-Factory loads tokenized data and looks at no other data setting (extras/misc.py)."""
        value = self.get("tokenized_path")
        folder = self.find(value) if isinstance(value, str) and value else None
        return folder is not None and folder[1] and any(safe_read.list_folder(folder[0]))

    @cached_property
    def guidance(self) -> SampleAmounts | None:
        """How many samples public work used for the stage and method; None without a model. Where a model reads
        pictures, samples have some unless the registry says that they have none."""
        if self.model is None:
            return None
        plain = {one.name for one in self.datasets if not one.pictured}
        pictures = self.model.sees and not plain.issuperset(self.words("dataset") or ("unnamed",))
        return guidance.sample_amounts(self.stage, self.method, self.model.billions, pictures)

    @cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """What the memory formulas need, by a release of transformers where those that the recipe may meet keep the
        experts of a mixture in different ways, newest first; none where nothing is trained, or where the model is not
        known, or what the DeepSpeed or accelerate file makes of it."""
        engine = self.sharded_by
        unknown = (engine and engine.problem) or (self.accelerate and not self.accelerate.judged)
        if self.model is None or unknown or self.trains_nothing:
            return {}
        forms = self.model.family.forms(self.header) if self.model.arch.ffn.experts else {True: ""}
        # The data that take the place of those named here may be as many as recommended.
        encodings, rows = self._encodings, max(self.data_rows or 0, self.samples or 0)
        return {
            release: physics_inputs.make_workload(self, self.model, engine, encodings, rows, fused, self.trains_decoder)
            for fused, release in forms.items()
        }

    @property
    def _encodings(self) -> tuple[TowerWorkload, ...]:
        if not (self.model and self.model.modules):
            return ()
        from . import multimodal  # which no model of text asks for

        return multimodal.tower_encodings(self, self.model, self.datasets)

    @cached_property
    def trains_decoder(self) -> bool:
        """Whether anything of a model trains that does not see or hear."""
        if not (self.model and self.model.modules):
            return True
        from . import multimodal  # which no model of text asks for

        return multimodal.is_decoder_trained(self, self.model)

    @property
    def workload(self) -> Workload | None:
        """What the memory formulas need with the newest release; None where that is not known."""
        return next(iter(self.workloads.values()), None)
