"""What a run does, and with which data: stage, method, packing, evaluation and reference models. A recipe's values
alone give these answers.

Sources are the releases of data/seen.yaml unless a line says otherwise. What reading leaves open was settled by
the real parser and trainers (tests/test_settings.py holds what they answered)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.knowledge import tables
from validator.run.recipe_arguments import Values

# What `val_size` must exceed to hold anything back (hparams/data_args.py).
_LEAST_VAL_SIZE = 1e-6


class Task(Values):
    """Stage and method, the data, evaluation, reference models."""

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
    def asked(self) -> bool:
        """Whether the train command is asked for something: to train, to evaluate or to predict. PPO trains unasked
        (train/ppo/workflow.py)."""
        return self.trains or self.evaluates or self.predicts or self.stage == "ppo"

    @property
    def trains_nothing(self) -> bool:
        """Whether the run is meant to train nothing: to evaluate, to predict, or, of the other commands, to chat or to
        export."""
        elsewhere = not self.asked and (self.has("infer_backend") or self.has("export_dir"))
        otherwise = "do_train" in self.values or self.flag("do_eval") or self.predicts
        return not self.trains and (otherwise or elsewhere)

    @property
    def template(self) -> Mapping[str, Any] | None:
        """What is known of the template (data/template.py); None where the recipe names none or an unknown one."""
        known: Mapping[str, Mapping[str, Any]] = tables.json_table("templates")["templates"]
        return known.get(str(self.get("template")))

    @property
    def targets_all(self) -> bool:
        """Whether an adapter goes on all linear layers: `all` means that where it stands alone (model/adapter.py)."""
        return self.words("lora_target") in ((), ("all",))

    # The data.

    @property
    def loaders(self) -> int:
        """Processes that load batches for each device."""
        return int(self.number("dataloader_num_workers"))

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
    def groups(self) -> bool:
        """Whether batches are made of samples about as long, so that hardly any padding is left (transformers,
        trainer.py, _get_train_sampler; under its name of before 5.2, too)."""
        asked = self.flag("group_by_length") or self.get("train_sampling_strategy") == "group_by_length"
        return asked and not self.flag("disable_shuffling")

    @property
    def length(self) -> int:
        """Tokens that are kept of a sample, or fill a packed sequence: one less than `cutoff_len` where packing is
        written, also in stages that do not pack (hparams/data_args.py). Batches are padded to a multiple of 8, so the
        tensors stay as long as `cutoff_len`."""
        return int(self.number("cutoff_len")) - int(self.flag("packing") or self.neat)

    @property
    def holds_back(self) -> bool:
        """Whether part of the training data is split off for evaluation (hparams/data_args.py)."""
        return self.number("val_size") > _LEAST_VAL_SIZE

    # Evaluation.

    @property
    def evaluation(self) -> str:
        """When the run is evaluated while it trains: no, steps or epoch."""
        return str(self.get("eval_strategy"))

    @property
    def evaluates_while_training(self) -> bool:
        return self.evaluation in ("steps", "epoch")

    @property
    def lr_follows_evaluation(self) -> bool:
        """Whether the learning rate falls when the evaluation stops getting better."""
        return self.get("lr_scheduler_type") in ("reduce_lr_on_plateau", "greedy")

    @property
    def best_checkpoint_metric(self) -> str | None:
        """The metric, without `eval_`, that transformers compares checkpoints by; None where it compares none
        (transformers, training_args.py)."""
        if self.has("metric_for_best_model"):
            return str(self.get("metric_for_best_model")).removeprefix("eval_")
        return "loss" if self.flag("load_best_model_at_end") or self.lr_follows_evaluation else None

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
