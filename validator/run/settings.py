"""`RunSettings`: the run that LLaMA-Factory would make of a recipe. Each question about its arguments has one answer
here, in groups; files are read when they are first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

from validator.errors import RecipeError
from validator.knowledge import devices, guidance
from validator.knowledge.chat_templates import known_templates
from validator.knowledge.devices import Machine
from validator.knowledge.families import Family
from validator.knowledge.guidance import SampleAmounts
from validator.knowledge.models import Model
from validator.knowledge.optimizers import OWN_OPTIMIZERS
from validator.knowledge.releases import ReleaseRange
from validator.physics import Estimate
from validator.physics.architecture import Mixer
from validator.recipe import safe_read
from validator.recipe.known_folders import catalogue_root, search_folders
from validator.recipe.recipe_file import Document
from validator.run import deepspeed as deepspeed_files
from validator.run import hyperparameters, trained_model
from validator.run.data_sources import DataSources
from validator.run.deepspeed import DeepSpeedConfig
from validator.run.fsdp import AccelerateFile, Fsdp, fsdp_of_words, read_accelerate
from validator.run.hyperparameters import ActivationCheckpointing, BatchSettings, Evaluation, PrecisionSettings, Task
from validator.run.quantization import Quantization, resolve_quantization
from validator.run.recipe_arguments import (
    Arguments,
    Declared,
    Price,
    finite_number,
    intended_value,
    parse_price,
    read_declared,
)
from validator.run.workspace import Workspace

_OUTSIDE_REPOSITORY = (
    "no config.json of a supported model type is in its folder, which lies outside of this repository and is not "
    "quoted; where torch and LLaMA-Factory are installed, explain RECIPE --simulate may judge it"
)
_PLAIN_ADAMW = "adamw_torch"


def _word_count(words: Any) -> int:
    """Return the number of words in a comma-separated text or a list; there may be very many."""
    return words.count(",") + 1 if isinstance(words, str) and words else len(words) if isinstance(words, list) else 0


def _possible_default_optimizers(releases: ReleaseRange) -> set[str]:
    """Return the values that `optim` has if it is left out, under each release that the header block admits."""
    since = releases.possible_defaults("optim") if releases.may_be_since_torch(8) else set()
    return since | ({_PLAIN_ADAMW} if releases.may_be_before_torch(8) else set())


def read_arguments(values: Mapping[str, Any], header: Mapping[str, Any]) -> Arguments:
    """Return a recipe's arguments with the defaults of the releases that its header block admits.

    The default optimizer is AdamW's fused form. If the header block admits an older transformers, or torch before 2.8,
    the default is the form that holds the roots of all second moments at once (transformers, training_args.py,
    default_optim)."""
    if "optim" in values or not header or _PLAIN_ADAMW not in _possible_default_optimizers(ReleaseRange(header)):
        return Arguments(values)
    return Arguments(values, {"optim": _PLAIN_ADAMW})


class MemorySource(Protocol):
    """A replacement for the formulas of device memory, if a command was asked for it: a simulation."""

    def find_model(
        self, run: RunSettings, model: Model | None, problem: str | None, /
    ) -> tuple[Model | None, str | None]:
        """Return the model to use instead of the one that was found, or why there is none."""
        ...

    def device_memories(self, run: Any, length: int, /) -> Mapping[str, Estimate]:
        """Return memory by release like `Prediction.workloads` with samples of this length; none if not simulated."""
        ...

    def exceeds_at_rest(self, run: Any, /) -> bool:
        """True if it is known without a simulation that the run is too large for its device."""
        ...


# dataclass compiles each method that it writes, at every start: of a run it writes none that is unused.
@dataclass(frozen=True, eq=False, repr=False)
class RunSettings:
    """Settings of a run. `header` is the header block as it is written. `is_unmodified` is false if the command line
    changed a value or the machine. `refused_keys` are keys that the recipe means to set, in a way that LLaMA-Factory
    does not take. `memory_source` replaces the formulas of device memory for a model that they do not know."""

    args: Arguments
    header: Mapping[str, Any] = field(default_factory=dict)
    machine: Machine | None = None
    accelerate: AccelerateFile | None = None
    workspace: Workspace = field(default_factory=Workspace)
    machine_problem: str | None = None
    is_unmodified: bool = True
    refused_keys: frozenset[str] = frozenset()
    memory_source: MemorySource | None = None

    # What the arguments and the header block say.

    @cached_property
    def declared(self) -> Declared:
        return read_declared(self.header)

    @cached_property
    def releases(self) -> ReleaseRange:
        """The releases for which the recipe is."""
        return ReleaseRange(self.header)

    @cached_property
    def evaluation(self) -> Evaluation:
        return hyperparameters.read_evaluation(self.args)

    @cached_property
    def task(self) -> Task:
        return hyperparameters.read_task(self.args, self.evaluation)

    @cached_property
    def batch(self) -> BatchSettings:
        return hyperparameters.read_batch(self.args, self.declared.lengths, self.machine)

    @cached_property
    def precision(self) -> PrecisionSettings:
        return hyperparameters.read_precision(self.args, self.uses_deepspeed, self.fsdp, self.accelerate, self.on_cpu)

    @cached_property
    def activation_checkpointing(self) -> ActivationCheckpointing:
        return hyperparameters.read_activation_checkpointing(self.args, self.fsdp)

    @property
    def requested_optimizers(self) -> list[str]:
        """The keys that ask for an optimizer of LLaMA-Factory's own; the first is made, the others have no effect
        (train/trainer_utils.py, create_custom_optimizer)."""
        is_on = {"loraplus_lr_ratio": self.args.is_set}
        return [key for key in OWN_OPTIMIZERS if is_on.get(key, self.args.flag)(key)]

    @property
    def possible_default_optimizers(self) -> set[str]:
        """The values that `optim` has if it is left out, under each release that the header block admits."""
        return _possible_default_optimizers(self.releases)

    @property
    def template(self) -> Mapping[str, Any] | None:
        """LLaMA-Factory's facts about the template (data/template.py); None if the recipe names none or an unknown
        one."""
        return known_templates().get(str(self.args.get("template")))

    # Devices, and what shards over them.

    @property
    def on_cpu(self) -> bool:
        return self.args.flag("use_cpu") or (self.machine is not None and self.machine.device.vendor == "cpu")

    @property
    def on_gpu(self) -> bool:
        """True if the devices are NVIDIA's or AMD's, or if no machine is named. Only there does transformers replace
        layers by fused kernels (utils/import_utils.py, is_flash_linear_attention_available,
        is_mamba_2_ssm_available)."""
        return self.machine is None or self.machine.device.vendor in ("nvidia", "amd", "unknown")

    @property
    def uses_deepspeed(self) -> bool:
        """True if DeepSpeed runs the step; an empty value leaves it off (transformers, training_args.py)."""
        value = self.args.get("deepspeed")
        return bool(value) and isinstance(value, (str, dict))

    @cached_property
    def deepspeed(self) -> DeepSpeedConfig | None:
        """The DeepSpeed configuration; None if the recipe uses none. A file that does not exist is replaced by the
        catalogue's of the same name, else by the configuration that its name suggests."""
        if not self.uses_deepspeed:
            return None
        value = self.args.get("deepspeed")
        if not isinstance(value, str) or value.startswith("{"):
            return deepspeed_files.read_deepspeed(value, None)
        place, shipped = self.workspace.find(value), catalogue_root() / "deepspeed" / Path(value).name
        if place or safe_read.path_kind(shipped) == "file":
            return deepspeed_files.read_deepspeed(value, str(place[0] if place else shipped))
        by_name = deepspeed_files.deepspeed_by_file_name(value)
        return by_name or deepspeed_files.read_deepspeed(value, value)._replace(is_missing=True)

    @property
    def zero_stage(self) -> int:
        return self.deepspeed.stage if self.deepspeed else 0

    @property
    def fsdp_words(self) -> tuple[str, ...]:
        """The words of `fsdp`: true shards in full, a text is split at spaces, a list is taken as it is (transformers,
        training_args.py, _process_fsdp_args)."""
        value = self.args.get("fsdp")
        if value is True:
            return ("full_shard",)
        return tuple(value.split()) if isinstance(value, str) else self.args.words("fsdp")

    @property
    def fsdp(self) -> Fsdp | None:
        """FSDP by the accelerate file, else by the recipe's own keys; None if nothing asks for it."""
        launched = self.accelerate.fsdp if self.accelerate else None
        return launched or (fsdp_of_words(self.fsdp_words) if self.fsdp_words else None)

    @property
    def price(self) -> Price | None:
        """Price of a device per hour; None if none is stated."""
        if self.machine is None or self.machine.price is None:
            return None
        return parse_price(self.machine.price)

    # The model.

    @property
    def hub_source(self) -> tuple[str, str | None]:
        """The revision of a hub model, and the folder it is kept in if that is not the hub's own cache."""
        revision, folder = self.args.get("model_revision"), self.args.get("cache_dir")
        return str(revision or "main"), folder if isinstance(folder, str) else None

    @cached_property
    def _model(self) -> tuple[Model | None, str | None]:
        """The model, or why it is not known."""
        found = self._model_by_name()
        return self.memory_source.find_model(self, *found) if self.memory_source else found

    def _model_by_name(self) -> tuple[Model | None, str | None]:
        """Return the model that the tables or a folder tell, or why it is not known.

        Rows of new tokens are counted whole, where a checkpoint may have some to spare (LLaMA-Factory,
        model/model_utils/embedding.py)."""
        name = self.args.get("model_name_or_path")
        if not isinstance(name, str):
            return None, None
        place = self.workspace.find(name)
        base = self.header.get("base")
        try:
            model = trained_model.resolve_model(
                self.args, self.hub_source, base, name, place[0] if place else None, self.workspace.recipe
            )
        except RecipeError as err:
            return None, str(err)
        new = sum(_word_count(self.args.get(key)) for key in ("add_tokens", "add_special_tokens"))
        arch = model.arch._replace(vocab=model.arch.vocab + new)
        if arch.mixer and not arch.mixer.kernels and self._has_kernels(arch.mixer, model.family):
            arch = arch._replace(mixer=arch.mixer.with_kernels())
        return model._replace(arch=arch), None

    def _has_kernels(self, mixer: Mixer, family: Family) -> bool:
        """True if a package provides kernels for the layer that replaces attention: the header block names the package,
        or LLaMA-Factory stops without it beside FlashAttention-2 (model/patcher.py)."""
        requires_kernels = family.mixers_patched and self.args.get("flash_attn") == "fa2"
        return self.on_gpu and (requires_kernels or self.declared.packages.issuperset(mixer.facts.packages))

    @property
    def model(self) -> Model | None:
        return self._model[0]

    @property
    def model_name(self) -> Any:
        """The model's name in the catalogue, else what the recipe writes."""
        is_listed = self.model and self.model.id and not self.model.identified_by
        return self.model.name if self.model and is_listed else self.args.get("model_name_or_path")

    @property
    def model_problem(self) -> str | None:
        """The reason why the model is not known; nothing is quoted from a folder outside of the repository."""
        problem, name = self._model[1], self.args.get("model_name_or_path")
        place = self.workspace.find(name) if problem and isinstance(name, str) else None
        files = (place[0] / file for file in ("config.json", "adapter_config.json")) if place else ()
        return problem if all(map(self.workspace.may_quote, files)) else _OUTSIDE_REPOSITORY

    @cached_property
    def quantization(self) -> Quantization:
        return resolve_quantization(self.args, self.releases, self.model)

    # The data.

    @cached_property
    def data(self) -> DataSources:
        return DataSources(self.args, self.declared, self.evaluation, self.workspace)

    @property
    def steps(self) -> int:
        """Optimizer steps of the run; 0 if the number of samples is not known. Packing makes fewer of them."""
        if self.args.number("max_steps") > 0:
            return int(self.args.number("max_steps"))
        epochs = max(self.args.number("num_train_epochs"), 0.0)
        samples = (self.data.rows or 0) - self.data.held_back_rows
        return int(-(-self.batch.steps_per_epoch(samples) * epochs // 1))

    @cached_property
    def guidance(self) -> SampleAmounts | None:
        """Numbers of samples that public work used for the stage and method; None without a model. If a model reads
        images, samples count as having some unless the registry says that they have none."""
        if self.model is None:
            return None
        plain = {one.name for one in self.data.datasets if not one.attr.has_images}
        has_images = self.model.reads_images and not plain.issuperset(self.args.words("dataset") or ("unnamed",))
        return guidance.sample_amounts(self.task.stage, self.task.method, self.model.billions, has_images)

    # Variants.

    @cached_property
    def derived(self) -> dict[object, Any]:
        """Results that other modules keep with the run: its prediction, and runs with other arguments."""
        return {}

    def updated(self, changes: Mapping[str, Any]) -> Self:
        """Return the run with other arguments."""
        return replace(self, args=self.args.updated(changes))

    def with_header(self, header: Mapping[str, Any]) -> Self:
        """Return the run with another header block."""
        return replace(self, header=header, args=read_arguments(self.args.values, header))


def resolve(
    document: Document,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    refused: frozenset[str] = frozenset(),
    untrusted: bool = False,
) -> RunSettings:
    """Return the run that a document describes, on the machine asked for, else on the header's.

    `refused` are keys whose value was reported already, or stands under another name; later checks shall not report
    them again. `untrusted`: somebody else may have written the document."""
    header = document.header
    values = {key: intended_value(key, value) if key in refused else value for key, value in document.values.items()}
    values = {key: value for key, value in values.items() if value is not None or key not in refused}
    ram = host_ram_gib if host_ram_gib is not None else finite_number(header.get("host_ram_gib"))
    target, problem = _machine_or_problem(machine or header.get("machine"), ram if ram and ram > 0 else None)
    if target and ("network" in header or "price" in header):
        target = target._replace(network=header.get("network"), price=header.get("price"))
    workspace = Workspace(document.path, tuple(search_folders(document.path)), untrusted)
    accelerate_file = header.get("accelerate")
    place = workspace.find(accelerate_file) if isinstance(accelerate_file, str) else None
    return RunSettings(
        read_arguments(values, header),
        header,
        target,
        accelerate=read_accelerate(str(place[0] if place else accelerate_file))
        if isinstance(accelerate_file, str)
        else None,
        workspace=workspace,
        machine_problem=problem,
        is_unmodified=machine is None and host_ram_gib is None and not document.overridden,
        refused_keys=refused - values.keys(),
    )


def run_of_values(
    values: Mapping[str, Any],
    header: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
    workspace: Workspace | None = None,
) -> RunSettings:
    """Return the run of a recipe's values without a file."""
    header = header or {}
    return RunSettings(read_arguments(values, header), header, machine, workspace=workspace or Workspace())


def _machine_or_problem(name: Any, ram: float | None) -> tuple[Machine | None, str | None]:
    """Return the machine of this name, or why it is not known; neither if none is named."""
    if not isinstance(name, str):
        return None, None
    try:
        return devices.parse_machine(name, ram), None
    except RecipeError as err:
        return None, str(err)
