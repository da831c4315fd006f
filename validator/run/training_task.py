"""The task of a run: stage, method, reference models, evaluation. A recipe's arguments alone give these answers.

Sources are the releases of data/seen.yaml unless a line says otherwise. Questions that the source left open were
answered by the real parser and trainers (tests/run/test_settings.py holds their answers)."""

from __future__ import annotations

from typing import NamedTuple

from validator.run.recipe_arguments import Arguments

# What `val_size` must exceed to hold anything back (hparams/data_args.py).
_LEAST_VAL_SIZE = 1e-6


class Task(NamedTuple):
    """Stage and method, and what follows from them. Each field says LLaMA-Factory's reason at its definition below."""

    stage: str
    method: str
    uses_adapter: bool
    trains: bool
    has_work: bool
    is_inference_only: bool
    targets_all_linear: bool
    uses_preference_pairs: bool
    uses_asft_loss: bool
    needs_reference_logprobs: bool
    frozen_model_copies: int


class Evaluation(NamedTuple):
    """Evaluation of a run. `strategy`: no, steps or epoch. `best_checkpoint_metric`: the metric, without `eval_`, by
    which transformers compares checkpoints; None if it compares none."""

    strategy: str
    while_training: bool
    runs: bool
    predicts: bool
    predict_with_generate: bool
    generates_text: bool
    splits_validation_set: bool
    drives_learning_rate: bool
    best_checkpoint_metric: str | None


def read_evaluation(args: Arguments) -> Evaluation:
    """Return when and how a run is evaluated.

    A strategy turns `do_eval` on (transformers, training_args.py), which evaluates once more at the end
    (train/*/workflow.py). Text is written only in stage sft (train/sft/trainer.py, prediction_step). Part of the
    training data is split off by `val_size` (hparams/data_args.py). Checkpoints are compared where a metric is named,
    the best one is loaded, or the learning rate follows the evaluation (transformers, training_args.py)."""
    strategy = str(args.get("eval_strategy"))
    while_training = strategy in ("steps", "epoch")
    runs, predicts = args.flag("do_eval") or while_training, args.flag("do_predict")
    predict_with_generate = args.get("stage") == "sft" and args.flag("predict_with_generate")
    drives_learning_rate = args.get("lr_scheduler_type") in ("reduce_lr_on_plateau", "greedy")
    if args.is_set("metric_for_best_model"):
        best_metric: str | None = str(args.get("metric_for_best_model")).removeprefix("eval_")
    else:
        best_metric = "loss" if args.flag("load_best_model_at_end") or drives_learning_rate else None
    return Evaluation(
        strategy=strategy,
        while_training=while_training,
        runs=runs,
        predicts=predicts,
        predict_with_generate=predict_with_generate,
        generates_text=predict_with_generate and (runs or predicts),
        splits_validation_set=args.number("val_size") > _LEAST_VAL_SIZE,
        drives_learning_rate=drives_learning_rate,
        best_checkpoint_metric=best_metric,
    )


def read_task(args: Arguments, evaluation: Evaluation) -> Task:
    """Return the task of a run. `trains` is false by default (train/*/workflow.py); PPO always trains
    (train/ppo/workflow.py)."""
    stage, method = str(args.get("stage")), str(args.get("finetuning_type"))
    trains = args.flag("do_train")
    has_work = trains or evaluation.runs or evaluation.predicts or stage == "ppo"
    # Meant to train nothing: to evaluate, to predict, or, of the other commands, to chat or to export.
    elsewhere = not has_work and (args.is_set("infer_backend") or args.is_set("export_dir"))
    otherwise = "do_train" in args.values or args.flag("do_eval") or evaluation.predicts
    # The ASFT loss compares with a reference (train/sft/workflow.py).
    asft = stage == "sft" and args.flag("use_asft_loss")
    # A reference's probabilities are computed beside the policy's in kto, ppo, dpo but for its two losses without one
    # (hparams/finetuning_args.py, use_ref_model), and with the ASFT loss.
    preference = stage == "dpo" and args.get("pref_loss") not in ("orpo", "simpo")
    reference = stage in ("kto", "ppo") or preference or asft
    # LoRA's reference is the model without its adapter unless another is named; PPO's rewards come from one more frozen
    # model unless an adapter or a server gives them (train/trainer_utils.py).
    rewards = stage == "ppo" and args.get("reward_model_type") == "full"
    copies = int(reference and (method != "lora" or args.is_set("ref_model"))) + int(rewards)
    return Task(
        stage=stage,
        method=method,
        uses_adapter=method in ("lora", "oft"),  # beside frozen weights (model/adapter.py, init_adapter)
        trains=trains,
        has_work=has_work,
        is_inference_only=not trains and (otherwise or elsewhere),
        targets_all_linear=args.words("lora_target") in ((), ("all",)),  # alone, it means all (model/adapter.py)
        uses_preference_pairs=stage in ("rm", "dpo"),  # both answers in one batch (data/collator.py)
        uses_asft_loss=asft,
        needs_reference_logprobs=reference,
        frozen_model_copies=copies,
    )
