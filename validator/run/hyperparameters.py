"""Settings that need the header block, the machine or the accelerate file beside a recipe's values: devices,
batches, sample lengths, number formats, activation checkpointing, optimizer. Sources as in training_task.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from validator.knowledge.devices import Machine
from validator.knowledge.releases import may_be_before_torch, may_be_since_torch, possible_defaults
from validator.physics.workload import Checkpointing, Precision
from validator.run.recipe_arguments import finite_number
from validator.run.training_task import Task

if TYPE_CHECKING:
    from validator.run.fsdp import AccelerateFile, Fsdp


# Hardly a set of data has no sample of so many tokens; some have none of 1,024 (350 questions with answers, of a public
# run on 6 GB). Beyond it, whether samples reach `cutoff_len` is not known.
ORDINARY_TOKENS = 512


class HeaderLengths(NamedTuple):
    """Tokens of a usual sample, and of the longest; None: not told."""

    typical: int | None = None
    longest: int | None = None


def header_lengths(value: Any) -> HeaderLengths | None:
    """What the header's `lengths` says: the typical length, or a list of it and the longest; None where it is neither
    of them."""
    given = value if isinstance(value, list) else [value]
    numbers = [int(number) for each in given if (number := finite_number(each)) and number >= 1]
    if len(numbers) != len(given) or not 1 <= len(given) <= 2 or numbers != sorted(numbers):
        return None
    return HeaderLengths(*numbers)


# create_custom_optimizer takes the first of these that is set (train/trainer_utils.py).
OPTIMIZER_KEYS = ("use_galore", "use_apollo", "loraplus_lr_ratio", "use_badam", "use_adam_mini", "use_muon")


@dataclass(eq=False, repr=False)
class Settings(Task):
    """A recipe's values with the header block, the machine and the accelerate file that further answers need: devices,
    batches, steps, number formats, recomputation, optimizer. Sources as in task.py."""

    header: Mapping[str, Any] = field(default_factory=dict)
    machine: Machine | None = None
    accelerate: AccelerateFile | None = None

    def get(self, key: str) -> Any:
        """As `Values.get`. The default optimizer is AdamW's fused form, but where the header block admits an older
        transformers, or torch before 2.8, the form that holds the roots of all second moments at once
        (transformers, training_args.py, default_optim)."""
        if key == "optim" and key not in self.values and self.header:
            plain = "adamw_torch"
            if plain in self.default_optimizers:
                return plain
        return super().get(key)

    @cached_property
    def default_optimizers(self) -> set[str]:
        """What `optim` stands for where it is left out, with each release that the header block admits."""
        since = possible_defaults(self.header, "optim") if may_be_since_torch(self.header, 8) else set()
        return since | ({"adamw_torch"} if may_be_before_torch(self.header, 8) else set())

    @property
    def world(self) -> int:
        """Processes of the run; one where no machine is named."""
        return self.machine.world if self.machine else 1

    @property
    def on_cpu(self) -> bool:
        return self.flag("use_cpu") or (self.machine is not None and self.machine.device.vendor == "cpu")

    @property
    def engine(self) -> bool:
        """Whether DeepSpeed runs the step; an empty value leaves it off (transformers, training_args.py)."""
        value = self.get("deepspeed")
        return bool(value) and isinstance(value, (str, dict))

    @property
    def fsdp_words(self) -> tuple[str, ...]:
        """The words of `fsdp`: true shards in full, a text is split at spaces, a list is taken as it is (transformers,
        training_args.py, _process_fsdp_args)."""
        value = self.get("fsdp")
        if value is True:
            return ("full_shard",)
        return tuple(value.split()) if isinstance(value, str) else self.words("fsdp")

    @property
    def fsdp(self) -> Fsdp | None:
        """FSDP by the accelerate file, else by the recipe's own keys; None where nothing asks for it."""
        launched = self.accelerate.fsdp if self.accelerate else None
        if launched or not self.fsdp_words:
            return launched
        from .fsdp import fsdp_of_words

        return fsdp_of_words(self.fsdp_words)

    @property
    def samples(self) -> int | None:
        """Recommended number of samples, from the header block."""
        value = finite_number(self.header.get("samples"))
        return int(value) if value and value > 0 else None

    @property
    def overfits(self) -> bool:
        """True if the header block says that the run is meant to learn its samples by heart."""
        return self.header.get("overfit") is True

    @property
    def packages(self) -> frozenset[str]:
        """Packages beside LLaMA-Factory's own that the run has, as the header block says."""
        given = self.header.get("packages")
        names = given if isinstance(given, list) else str(given or "").split(",")
        return frozenset(str(name).strip() for name in names) - {""}

    @property
    def on_gpu(self) -> bool:
        """True if the devices are NVIDIA's or AMD's, or if no machine is named. Only there does transformers replace
        layers by fused kernels (utils/import_utils.py, is_flash_linear_attention_available,
        is_mamba_2_ssm_available)."""
        return self.machine is None or self.machine.device.vendor in ("nvidia", "amd", "unknown")

    @property
    def lengths(self) -> HeaderLengths:
        """How long samples are, from the header block."""
        return (header_lengths(self.header["lengths"]) if "lengths" in self.header else None) or HeaderLengths()

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: `cutoff_len`, or what the header block says where that is less and nothing
        packs; batches are padded to a multiple of 8 (data/collator.py)."""
        most = max(int(self.number("cutoff_len")), 1)
        told = self.lengths.longest
        return most if told is None or self.packs else min(most, -(-told // 8) * 8)

    @property
    def reached(self) -> int:
        """Tokens that the longest sequence has at least: all of them where that is known, else those of the longest
        sample of ordinary data, or of a typical one."""
        if self.packs or self.lengths.longest:
            return self.longest
        return min(self.longest, self.lengths.typical or ORDINARY_TOKENS)

    @property
    def micro_batch(self) -> int:
        """Samples of one forward pass of one device."""
        return max(int(self.number("per_device_train_batch_size")), 1)

    @property
    def accumulation(self) -> int:
        """Passes whose gradients are added up for one optimizer step."""
        return max(int(self.number("gradient_accumulation_steps")), 1)

    @property
    def effective_batch(self) -> int:
        """Samples of one optimizer step: micro batch x accumulation x devices."""
        return self.micro_batch * self.accumulation * self.world

    def steps_per_epoch(self, samples: int) -> int:
        """Optimizer steps of a pass over so many samples; the last one may be short (transformers, trainer.py)."""
        return -(-samples // self.effective_batch)

    # Number formats, recomputation, optimizer.

    @property
    def half(self) -> Literal["bf16", "fp16"] | None:
        """The 16-bit format of products, an accelerate file's where the recipe names none; None where they are in 32.
        `fp8` alone changes nothing: the Trainer hands accelerate the precision before LLaMA-Factory names fp8, but for
        Transformer Engine, whose patch forces it, with bf16 around (train/fp8_utils.py; seen in a real run:
        "fp8_enabled=False")."""
        if self.flag("bf16") or (self.flag("fp8") and self.get("fp8_backend") == "te" and self.stage in ("pt", "sft")):
            return "bf16"
        return "fp16" if self.flag("fp16") else self.accelerate.half if self.accelerate else None

    @property
    def casts(self) -> bool:
        """Whether products are computed in one format whatever their factors have; on a CPU fp16 does not do it."""
        return self.half == "bf16" or (self.half == "fp16" and not self.on_cpu)

    @property
    def pure(self) -> bool:
        """Whether trained weights stay in 16 bits (model/adapter.py, init_adapter)."""
        return self.flag("pure_bf16") or self.flag("use_badam")

    @property
    def precision(self) -> Precision:
        """How mixed precision is done: not at all in 32 or in 16 bits, by autocast, or by DeepSpeed. Where it is mixed,
        FSDP raises trained weights to 32 bits whatever was asked (accelerate, accelerator.py, prepare_model)."""
        if self.pure and not (self.fsdp and self.half):
            return "pure"
        return ("engine" if self.engine else "amp") if self.half else "fp32"

    @property
    def own_checkpointing(self) -> Checkpointing:
        """On by default, unsloth's way with `use_unsloth_gc`. `disable_gradient_checkpointing` leaves it to the
        Trainer, which turns on the plain one for `gradient_checkpointing` (model_utils/checkpointing.py)."""
        if self.flag("disable_gradient_checkpointing"):
            return "layer" if self.flag("gradient_checkpointing") else "off"
        return "offloaded" if self.flag("use_unsloth_gc") else "layer"

    @property
    def checkpointing(self) -> Checkpointing:
        """LLaMA-Factory's, else that of FSDP."""
        own = self.own_checkpointing
        return "layer" if own == "off" and self.fsdp and self.fsdp.recomputes else own

    @property
    def reentrant(self) -> bool:
        """Whether torch checkpoints the way that computes whole layers again; FSDP2 turns that off
        (model_utils/checkpointing.py, prepare_model_for_training)."""
        return self.flag("use_reentrant_gc") and not (self.fsdp and self.fsdp.version == 2)

    @property
    def optimizers(self) -> list[str]:
        """The keys that ask for an optimizer of LLaMA-Factory's own; the first is made, the others have no effect
        (train/trainer_utils.py, create_custom_optimizer)."""
        return [key for key in OPTIMIZER_KEYS if (self.has(key) if key == "loraplus_lr_ratio" else self.flag(key))]

    @property
    def origin(self) -> tuple[str, str | None]:
        """The revision of a hub model, and the folder it is kept in where that is not the hub's own cache."""
        revision, folder = self.get("model_revision"), self.get("cache_dir")
        return str(revision or "main"), folder if isinstance(folder, str) else None
