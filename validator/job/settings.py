"""What LLaMA-Factory resolves from a recipe's values: the one home of each question that more than one place asks.

Sources are LLaMA-Factory 0.9.5 and transformers 5.6 unless a line says otherwise; differences that reading leaves open
were settled by running the real parser and trainers (tests/test_settings.py holds what they answered).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from validator.job.values import Values, quantity
from validator.memory.workload import Checkpointing, Precision
from validator.tables import data
from validator.tables.machines import Machine

# create_custom_optimizer takes the first of these that is set (train/trainer_utils.py).
OPTIMIZERS = ("use_galore", "use_apollo", "loraplus_lr_ratio", "use_badam", "use_adam_mini", "use_muon")
# What `val_size` must exceed to hold anything back (hparams/data_args.py).
_NOTHING = 1e-6


@dataclass
class Settings(Values):
    """A recipe's values, with the header block and the machine that some answers need."""

    header: Mapping[str, Any] = field(default_factory=dict)
    machine: Machine | None = None

    @property
    def stage(self) -> str:
        return str(self.get("stage"))

    @property
    def method(self) -> str:
        return str(self.get("finetuning_type"))

    @property
    def adapts(self) -> bool:
        """Whether adapters train beside frozen weights (model/adapter.py, init_adapter)."""
        return self.method in ("lora", "oft")

    @property
    def trains(self) -> bool:
        """Whether the run trains at all; false by default (train/*/workflow.py)."""
        return self.flag("do_train")

    @property
    def template(self) -> Mapping[str, Any] | None:
        """What is known of the template (data/template.py); None where the recipe names none or an unknown one."""
        known: Mapping[str, Mapping[str, Any]] = data.table("templates")["templates"]
        return known.get(str(self.get("template")))

    # The data.

    @property
    def pairs(self) -> bool:
        """Whether a sample is a chosen and a rejected answer, both in one batch (data/collator.py)."""
        return self.stage in ("rm", "dpo")

    @property
    def neat(self) -> bool:
        """Whether packed samples do not see each other (hparams/parser.py, block_diag_attn); refused outside sft."""
        return self.flag("neat_packing")

    @property
    def packs(self) -> bool:
        """Whether sequences are filled up with further samples. Only two stages do: pt unless `packing` is false, sft
        where either switch is on (hparams/data_args.py, parser.py; data/loader.py, _get_dataset_processor)."""
        if self.stage == "pt":
            return self.flag("packing") if self.has("packing") else True
        return self.stage == "sft" and (self.flag("packing") or self.neat)

    @property
    def length(self) -> int:
        """Tokens that are kept of a sample, or fill a packed sequence: one less than `cutoff_len` where packing is
        written, also in stages that do not pack (hparams/data_args.py). Batches are padded to a multiple of 8, so the
        tensors stay as long as `cutoff_len`."""
        return int(self.number("cutoff_len")) - int(self.flag("packing") or self.neat)

    @property
    def holds_back(self) -> bool:
        """Whether part of the training data is split off for evaluation (hparams/data_args.py)."""
        return self.number("val_size") > _NOTHING

    # Evaluation.

    @property
    def evaluation(self) -> str:
        """When the run is evaluated while it trains: no, steps or epoch."""
        return str(self.get("eval_strategy"))

    @property
    def evaluates_while_training(self) -> bool:
        return self.evaluation in ("steps", "epoch")

    @property
    def evaluates(self) -> bool:
        """Whether anything is evaluated: a strategy turns `do_eval` on (transformers, training_args.py), which
        evaluates once more at the end (train/*/workflow.py)."""
        return self.flag("do_eval") or self.evaluates_while_training

    @property
    def predicts(self) -> bool:
        """Whether predictions are written after training (train/sft/workflow.py)."""
        return self.flag("do_predict")

    @property
    def generative(self) -> bool:
        """Whether evaluation means to write text (train/sft/trainer.py, prediction_step); refused outside sft."""
        return self.stage == "sft" and self.flag("predict_with_generate")

    @property
    def generates(self) -> bool:
        """Whether text is really generated in this run."""
        return self.generative and (self.evaluates or self.predicts)

    # Reference models.

    @property
    def anchors(self) -> bool:
        """Whether the ASFT loss is asked for, which compares with a reference (train/sft/workflow.py)."""
        return self.stage == "sft" and self.flag("use_asft_loss")

    @property
    def compares(self) -> bool:
        """Whether a reference's probabilities are computed beside the policy's: in kto, ppo, dpo but for its two
        losses without one (hparams/finetuning_args.py, use_ref_model), and with the ASFT loss."""
        preference = self.stage == "dpo" and self.get("pref_loss") not in ("orpo", "simpo")
        return self.stage in ("kto", "ppo") or preference or self.anchors

    @property
    def copies(self) -> int:
        """Frozen models beside the trained one: LoRA's reference is the model without its adapter unless another is
        named, PPO's rewards come from one more unless an adapter or a server gives them (train/trainer_utils.py)."""
        rewards = self.stage == "ppo" and self.get("reward_model_type") == "full"
        return int(self.compares and (self.method != "lora" or self.has("ref_model"))) + int(rewards)

    # Devices, batches, steps.

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
        return tuple(value.split()) if isinstance(value, str) else tuple(value) if isinstance(value, list) else ()

    @property
    def fsdp(self) -> bool:
        return bool(self.fsdp_words)

    @property
    def samples(self) -> int | None:
        """Recommended number of samples, from the header block."""
        value = quantity(self.header.get("samples"))
        return int(value) if value and value > 0 else None

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

    @property
    def steps(self) -> int:
        """Optimizer steps of the run on the recommended samples; 0 where they are not known."""
        if self.number("max_steps") > 0:
            return int(self.number("max_steps"))
        return int(-(-self.steps_per_epoch(self.samples or 0) * self.number("num_train_epochs") // 1))

    # Number formats, recomputation, optimizer.

    @property
    def half(self) -> Literal["bf16", "fp16"] | None:
        """The 16-bit format of products; None where they are in 32. `fp8` alone changes nothing: the Trainer hands
        accelerate the precision before LLaMA-Factory names fp8, but for Transformer Engine, whose patch forces it, with
        bf16 around (train/fp8_utils.py; seen in a real run: "fp8_enabled=False")."""
        if self.flag("bf16") or (self.flag("fp8") and self.get("fp8_backend") == "te" and self.stage in ("pt", "sft")):
            return "bf16"
        return "fp16" if self.flag("fp16") else None

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
        """How mixed precision is done: not at all in 32 or in 16 bits, by autocast, or by DeepSpeed."""
        if self.pure:
            return "pure"
        return ("engine" if self.engine else "amp") if self.half else "fp32"

    @property
    def checkpointing(self) -> Checkpointing:
        """On by default, unsloth's way with `use_unsloth_gc`. `disable_gradient_checkpointing` leaves it to the
        Trainer, which turns on the plain one for `gradient_checkpointing` (model_utils/checkpointing.py)."""
        if self.flag("disable_gradient_checkpointing"):
            return "layer" if self.flag("gradient_checkpointing") else "off"
        return "offloaded" if self.flag("use_unsloth_gc") else "layer"

    @property
    def optimizers(self) -> list[str]:
        """The keys that ask for an optimizer of LLaMA-Factory's own; the first is made, the others have no effect
        (train/trainer_utils.py, create_custom_optimizer)."""
        return [key for key in OPTIMIZERS if (self.has(key) if key == "loraplus_lr_ratio" else self.flag(key))]
