"""`RunSettings`: the run that LLaMA-Factory would make of a recipe. Each question about the run's arguments is answered
by one attribute. Files are read when an attribute first needs them."""

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
from validator.run.other_engines import find_other_engine
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
    """Return the number of words in a comma-separated text or a list, without splitting the text, which may be very
    long."""
    return words.count(",") + 1 if isinstance(words, str) and words else len(words) if isinstance(words, list) else 0


def _possible_default_optimizers(releases: ReleaseRange) -> set[str]:
    """Return the default values of `optim` under the releases that the recipe's header block allows."""
    since = releases.possible_defaults("optim") if releases.requires(since="torch 2.8.0") else set()
    return since | ({_PLAIN_ADAMW} if releases.requires(until="torch 2.8.0") else set())


def read_arguments(values: Mapping[str, Any], header: Mapping[str, Any]) -> Arguments:
    """Return a recipe's arguments with the defaults of the releases that its header block allows.

    The default optimizer is the fused form of AdamW. If the header block allows an older transformers, or torch before
    2.8, the default is the plain form `adamw_torch`, which holds the square roots of all second moments at once
    (transformers, training_args.py, default_optim)."""
    if "optim" in values or not header or _PLAIN_ADAMW not in _possible_default_optimizers(ReleaseRange(header)):
        return Arguments(values)
    return Arguments(values, {"optim": _PLAIN_ADAMW})


class MemorySource(Protocol):
    """A simulator that predicts device memory in place of the formulas, for commands that simulate the training
    step."""

    def find_model(
        self, run: RunSettings, model: Model | None, problem: str | None, /
    ) -> tuple[Model | None, str | None]:
        """Return the model to predict for and None, or None and the reason why the model is not known. `model`,
        `problem`: the same pair, as found without the simulator."""
        ...

    def device_memories(self, run: Any, length: int, /) -> Mapping[str, Estimate]:
        """Return the predicted device memory by release of transformers (the keys of `Prediction.workloads`), if
        samples have `length` tokens; empty if the run was not simulated."""
        ...


# dataclass compiles each method that it writes, at every start: of a run it writes none that is unused.
@dataclass(frozen=True, eq=False, repr=False)
class RunSettings:
    """Settings of a run. `header`: the recipe's header block as written. `is_unmodified`: False if the command line
    changed a value or the machine. `refused_keys`: keys whose value LLaMA-Factory refuses and whose intended value is
    not plain. `memory_source`: a simulator that replaces the formulas of device memory for a model type that the
    formulas do not know."""

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
        """The package releases (transformers, torch, LLaMA-Factory …) that the recipe's header block allows."""
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
        """The recipe's keys that ask for an optimizer of LLaMA-Factory's own, such as `use_galore`. LLaMA-Factory makes
        the first of these optimizers and ignores the others (train/trainer_utils.py, create_custom_optimizer)."""
        is_on = {"loraplus_lr_ratio": self.args.is_set}
        return [key for key in OWN_OPTIMIZERS if is_on.get(key, self.args.flag)(key)]

    @property
    def possible_default_optimizers(self) -> set[str]:
        """The default values of `optim` under the releases that the recipe's header block allows."""
        return _possible_default_optimizers(self.releases)

    @property
    def template(self) -> Mapping[str, Any] | None:
        """LLaMA-Factory's facts about the recipe's template (data/template.py); None if the recipe names no template or
        an unknown one."""
        return known_templates().get(str(self.args.get("template")))

    @property
    def template_media(self) -> tuple[str, ...]:
        """The media that the recipe's template takes: image, video, audio. Empty if the recipe names no template or an
        unknown one."""
        return tuple(self.template.get("media", ())) if self.template else ()

    # Devices, and what shards over them.

    @property
    def on_cpu(self) -> bool:
        return self.args.flag("use_cpu") or (self.machine is not None and self.machine.device.vendor == "cpu")

    @property
    def on_gpu(self) -> bool:
        """True if the devices are GPUs of NVIDIA or AMD, or if no machine is named. transformers replaces layers by
        fused kernels only on these GPUs (utils/import_utils.py, is_flash_linear_attention_available,
        is_mamba_2_ssm_available)."""
        return self.machine is None or self.machine.device.vendor in ("nvidia", "amd", "unknown")

    @property
    def uses_deepspeed(self) -> bool:
        """True if the recipe turns DeepSpeed on. An empty value of `deepspeed` leaves it off (transformers,
        training_args.py)."""
        value = self.args.get("deepspeed")
        return bool(value) and isinstance(value, (str, dict))

    @cached_property
    def deepspeed(self) -> DeepSpeedConfig | None:
        """The DeepSpeed configuration; None if the recipe uses none. If its file does not exist, the catalogue's file
        of the same name counts, or else the configuration that the file's name suggests."""
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
        """The words of the recipe's `fsdp` key: true means full_shard, a text is split at spaces, a list stays as it is
        (transformers, training_args.py, _process_fsdp_args)."""
        value = self.args.get("fsdp")
        if value is True:
            return ("full_shard",)
        return tuple(value.split()) if isinstance(value, str) else self.args.words("fsdp")

    @property
    def fsdp(self) -> Fsdp | None:
        """The FSDP settings of the accelerate file, or else of the recipe's own keys; None if the run does not use
        FSDP."""
        launched = self.accelerate.fsdp if self.accelerate else None
        return launched or (fsdp_of_words(self.fsdp_words) if self.fsdp_words else None)

    @property
    def price(self) -> Price | None:
        """Price of a device per hour; None if no price is named for the machine."""
        if self.machine is None or self.machine.price is None:
            return None
        return parse_price(self.machine.price)

    # The model.

    @property
    def hub_source(self) -> tuple[str, str | None]:
        """The revision of a hub model, and the cache folder that the recipe names (`cache_dir`); None stands for the
        hub's usual cache."""
        revision, folder = self.args.get("model_revision"), self.args.get("cache_dir")
        return str(revision or "main"), folder if isinstance(folder, str) else None

    @cached_property
    def _model(self) -> tuple[Model | None, str | None]:
        """The model and None, or None and the reason why the model is not known."""
        found = self._model_by_name()
        return self.memory_source.find_model(self, *found) if self.memory_source else found

    def _model_by_name(self) -> tuple[Model | None, str | None]:
        """Return the model that `model_name_or_path` means, or the reason why the model is not known.

        Tokens that the recipe adds enlarge the vocabulary in full, although a checkpoint may have unused rows for some
        of them (LLaMA-Factory, model/model_utils/embedding.py)."""
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
            arch = arch.with_mixer_kernels()
        return model._replace(arch=arch), None

    def _has_kernels(self, mixer: Mixer, family: Family) -> bool:
        """True if the devices are GPUs and a package with fused kernels for `mixer`, the layers that replace attention,
        is installed. The package counts as installed if the header block names it, or if LLaMA-Factory stops without
        it, as for some models if `flash_attn` is fa2 (model/patcher.py)."""
        requires_kernels = family.mixers_patched and self.args.get("flash_attn") == "fa2"
        return self.on_gpu and (requires_kernels or self.declared.packages.keys() >= set(mixer.facts.packages))

    @property
    def model(self) -> Model | None:
        return self._model[0]

    @property
    def model_name(self) -> Any:
        """The model's name in the tables of known models, or else `model_name_or_path` as the recipe writes it."""
        is_listed = self.model and self.model.id and not self.model.identified_by
        return self.model.name if self.model and is_listed else self.args.get("model_name_or_path")

    @property
    def model_problem(self) -> str | None:
        """The reason why the model is not known, as text for a message; None if the model is known or not named. For a
        folder outside of the repository, a fixed text that quotes nothing from the folder."""
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

    @cached_property
    def other_engine(self) -> str:
        """The reason why the memory of this run is not judged, such as another engine that splits the model, as text
        for a message; empty if there is none."""
        sharded = bool(self.deepspeed or self.fsdp or self.accelerate)
        return find_other_engine(self.args, self.deepspeed, sharded, self.workspace.recipe)

    @property
    def uses_flash_attention(self) -> bool:
        """True if FlashAttention-2 is asked for, and no device named lacks it. Where a device lacks it, flash-attn is
        taken as not installed: LLaMA-Factory warns and goes on as without `flash_attn`
        (model/model_utils/attention.py)."""
        return self.args.get("flash_attn") == "fa2" and (self.machine is None or self.machine.device.flash_attention)

    @property
    def ddp_needs_all_gradients(self) -> bool:
        """True if several processes train with DDP and `ddp_find_unused_parameters` is off, so that every trained
        parameter needs a gradient in every step."""
        sharded = self.deepspeed or self.fsdp or self.other_engine
        return self.batch.world_size > 1 and not sharded and not self.args.flag("ddp_find_unused_parameters")

    @property
    def steps(self) -> int:
        """Optimizer steps of the run; 0 if the number of samples is not known. Packing puts several samples into a
        sequence, so a packed run makes fewer steps."""
        if self.args.number("max_steps") > 0:
            return int(self.args.number("max_steps"))
        epochs = max(self.args.number("num_train_epochs"), 0.0)
        samples = (self.data.rows or 0) - self.data.held_back_rows
        return int(-(-self.batch.steps_per_epoch(samples) * epochs // 1))

    @cached_property
    def guidance(self) -> SampleAmounts | None:
        """Numbers of samples that public work used for this stage and method; None if the model is not known. For a
        model that reads images, samples count as having images unless the registry shows that they have none."""
        if self.model is None:
            return None
        plain = {one.name for one in self.data.datasets if not one.attr.has_images}
        has_images = self.model.reads_images and not plain.issuperset(self.args.words("dataset") or ("unnamed",))
        return guidance.sample_amounts(self.task.stage, self.task.method, self.model.billions, has_images)

    # Variants.

    @cached_property
    def derived(self) -> dict[object, Any]:
        """A store for results that other modules compute from the run: its prediction, and runs with other
        arguments."""
        return {}

    def updated(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy of the run in which `changes` replace or add arguments."""
        return replace(self, args=self.args.updated(changes))

    def with_header(self, header: Mapping[str, Any]) -> Self:
        """Return a copy of the run with another header block, and with the defaults of the releases that this header
        block allows."""
        return replace(self, header=header, args=read_arguments(self.args.values, header))


def resolve(
    document: Document,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    refused: frozenset[str] = frozenset(),
    untrusted: bool = False,
) -> RunSettings:
    """Return the run that a recipe describes. `machine`: a machine to use instead of the machine in the recipe's header
    block. `host_ram_gib`: GiB of main memory per node, instead of the header block's.

    `refused`: keys whose value was reported already, or which are written under another name; later checks shall not
    report these keys again. `untrusted`: somebody else may have written the recipe, so messages quote no files outside
    of its repository."""
    header = document.header
    values = {key: intended_value(key, value) if key in refused else value for key, value in document.values.items()}
    values = {key: value for key, value in values.items() if value is not None or key not in refused}
    ram = host_ram_gib if host_ram_gib is not None else finite_number(header.get("host_ram_gib"))
    target, problem = _machine_or_problem(machine or header.get("machine"), ram if ram and ram > 0 else None)
    if target:
        # The command line says by itself for which device a short form in its option stands.
        note = None if machine else target.note
        target = target._replace(network=header.get("network"), price=header.get("price"), note=note)
    workspace = Workspace(document.path, tuple(search_folders(document.path)), untrusted, options=document.options)
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
        is_unmodified=machine is None and host_ram_gib is None and not document.overrides,
        refused_keys=refused - values.keys(),
    )


def run_of_values(
    values: Mapping[str, Any],
    header: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
    workspace: Workspace | None = None,
) -> RunSettings:
    """Return the run of a recipe that is not a file. `values`: the recipe's keys and values. `header`: the fields of
    its header block. `machine`: None for no machine. `workspace`: the folders in which relative paths are looked for;
    None for no folder."""
    header = header or {}
    return RunSettings(read_arguments(values, header), header, machine, workspace=workspace or Workspace())


def _machine_or_problem(name: Any, ram: float | None) -> tuple[Machine | None, str | None]:
    """Return the machine of this name and None, or None and the reason why the machine is not known; both None if no
    machine is named. `ram`: main memory per node in GiB, if it differs from the usual server's."""
    if not isinstance(name, str):
        return None, None
    try:
        return devices.parse_machine(name, ram), None
    except RecipeError as err:
        return None, str(err)
