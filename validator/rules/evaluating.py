"""TRA1xx: evaluation, prediction, the best checkpoint and the metric that chooses it, early stopping."""

from __future__ import annotations

from validator.levers.options import together
from validator.rules.number_formats import fp32_weights_key
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, rule
from validator.run.sample_counts import training_steps
from validator.run.schedule import evaluation_interval
from validator.run.settings import RunSettings
from validator.run.variants import ArgumentChanges

_MILLION = 1_000_000


def evaluation_settings(run: RunSettings, share: float = 0.05) -> ArgumentChanges:
    """Return the settings by which a run that does not evaluate would: ten times on the way, on a `share` of its data
    if the recipe names no data for it."""
    strategy: ArgumentChanges = {"eval_strategy": "steps"}
    interval: ArgumentChanges = {} if run.args.is_set("eval_steps") else {"eval_steps": 0.1}
    if _has_evaluation_data(run):
        return {**strategy, **interval}
    return {"val_size": 100 if run.args.flag("streaming") else share, **strategy, **interval}


def _has_evaluation_data(run: RunSettings) -> bool:
    return run.args.is_set("eval_dataset") or run.evaluation.splits_validation_set


@rule("TRA101", ERROR)
def evaluation_without_data(run: RunSettings) -> Findings:
    """The recipe asks for evaluation or prediction, and there is no data for it.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: `val_size: 0.05` to hold back part of the data, `eval_dataset`, or `eval_strategy: "no"`.
    """
    switches = {key: run.args.flag(key) for key in ("do_eval", "do_predict")}
    switches["eval_strategy"] = run.evaluation.while_training
    switches["predict_with_generate"] = run.evaluation.predict_with_generate
    key = next((key for key, on in switches.items() if on), None)
    if key and not _has_evaluation_data(run):
        found = f"`{key}` asks for evaluation, and there is no data for it"
        if run.args.is_set("val_size"):
            found = f"`val_size` is {run.args.get('val_size')}, which leaves no data for the evaluation by `{key}`"
            key = "val_size"
        yield key, f"{found}; set `val_size: 0.05` or `eval_dataset`"


@rule("TRA102", ERROR)
def two_sources_of_evaluation_data(run: RunSettings) -> Findings:
    """Evaluation data is both named and split off.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/data_args.py:DataArguments.__post_init__
    Fix: keep one of `eval_dataset` and `val_size`.
    """
    if run.args.is_set("eval_dataset") and run.evaluation.splits_validation_set:
        yield "val_size", "`val_size` and `eval_dataset` exclude each other; remove `val_size` or `eval_dataset`"


@rule("TRA103", ERROR)
def split_without_data(run: RunSettings) -> Findings:
    """Part of the training data is held back for evaluation, and there is no training data.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/data_args.py:DataArguments.__post_init__
    Fix: name the data with `eval_dataset`, or set `dataset`.
    """
    if run.evaluation.splits_validation_set and not run.args.is_set("dataset") and not run.task.trains:
        remedy = "set `eval_dataset` in place of `val_size`, or set `dataset`"
        yield "val_size", f"`val_size` splits `dataset`, which is not set; {remedy}"


@rule("TRA104", ERROR)
def prediction_without_text(run: RunSettings) -> Findings:
    """The recipe asks for prediction without generating text.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: `predict_with_generate: true`.
    """
    if run.task.stage == "sft" and run.evaluation.predicts and not run.evaluation.predict_with_generate:
        text = "`do_predict` is refused without `predict_with_generate`; set `predict_with_generate: true`"
        yield "do_predict", text


@rule("TRA105", ERROR)
def best_checkpoint_refused(run: RunSettings) -> Findings:
    """The best checkpoint is loaded at the end, but checkpoints and evaluations do not coincide.

    Why: refused at parse, on every rank.
    Source: transformers/training_args.py:TrainingArguments._validate_args
    Fix: the same `save_strategy` and `eval_strategy`, `save_steps` a multiple of `eval_steps`; or `save_strategy:
    best`.
    """
    evaluation, saving = run.evaluation.strategy, run.args.get("save_strategy")
    save_steps = run.args.number("save_steps")
    eval_steps = run.args.number("eval_steps") or run.args.number("logging_steps")
    if not run.args.flag("load_best_model_at_end") or saving == "best":
        return
    if evaluation != saving:
        found = f'`load_best_model_at_end` needs a save at each evaluation, but `eval_strategy` is "{evaluation}"'
        remedy = f"set `eval_strategy: {saving}`" if evaluation == "no" else f"set `save_strategy: {evaluation}`"
        yield "load_best_model_at_end", f'{found} and `save_strategy` "{saving}"; {remedy}'
    elif evaluation == "steps" and not _is_multiple(save_steps, eval_steps):
        found = f"`save_steps` is {save_steps:g}, and `load_best_model_at_end` needs a multiple of `eval_steps`"
        yield "save_steps", f"{found}; write `save_steps: {eval_steps:g}`, or a multiple of it"


def _is_multiple(saving: float, evaluation: float) -> bool:
    """True if `saving` is a multiple of `evaluation`: the values of `save_steps` and `eval_steps`, numbers of steps or
    shares of the run. Computed as in transformers' TrainingArguments._validate_args: two shares or two numbers of steps
    are compared in millionths, a share and a number of steps as they are."""
    if evaluation <= 0:
        return True
    if (saving < 1) != (evaluation < 1):
        return saving % evaluation == 0
    return (saving * _MILLION) % (evaluation * _MILLION) == 0


@rule("TRA106", ERROR)
def best_checkpoint_of_reward_model(run: RunSettings) -> Findings:
    """The best checkpoint is loaded at the end, in a stage that cannot load it.

    Why: refused at parse, on every rank: a value head is not loaded back.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `load_best_model_at_end` in stages rm and ppo.
    """
    if run.task.stage in ("rm", "ppo") and run.args.flag("load_best_model_at_end"):
        text = f"stage {run.task.stage} cannot load its best checkpoint; remove `load_best_model_at_end`"
        yield "load_best_model_at_end", text


@rule("TRA107", ERROR)
def generation_conflict(run: RunSettings) -> Findings:
    """Evaluation generates text beside a setting that excludes it.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: predict in a run of its own, without ZeRO-3 and without `compute_accuracy`.
    """
    if run.evaluation.predict_with_generate and run.zero_stage == 3:
        remedy = "remove `predict_with_generate`, and predict in a run without ZeRO-3"
        yield "predict_with_generate", f"`predict_with_generate` is refused with DeepSpeed ZeRO-3; {remedy}"
    if run.evaluation.predict_with_generate and run.args.flag("compute_accuracy"):
        found = "`compute_accuracy` and `predict_with_generate` exclude each other"
        yield "compute_accuracy", f"{found}; remove `compute_accuracy` or `predict_with_generate`"


@rule("TRA108", ERROR)
def schedule_without_evaluation(run: RunSettings) -> Findings:
    """The learning-rate schedule follows an evaluation that never happens.

    Why: refused at parse, on every rank.
    Source: transformers/training_args.py:TrainingArguments._validate_args
    Fix: set `eval_strategy` and data for it, or another `lr_scheduler_type`.
    """
    name = run.args.get("lr_scheduler_type")
    if run.evaluation.drives_learning_rate and not run.evaluation.while_training:
        found = f"`lr_scheduler_type: {name}` follows evaluations, and `eval_strategy` is no"
        yield "lr_scheduler_type", f"{found}; set {together(evaluation_settings(run))}, or `lr_scheduler_type: cosine`"


@rule("TRA109", ERROR)
def early_stopping_blind(run: RunSettings) -> Findings:
    """Early stopping has no metric to watch, or no evaluation.

    Why: fails at the first step, after the data is tokenized and the model loaded on every rank.
    Source: transformers/trainer_callback.py:EarlyStoppingCallback.on_train_begin
    Fix: `load_best_model_at_end: true` or `metric_for_best_model: eval_loss`, and an `eval_strategy`.
    """
    key = "early_stopping_steps"
    if run.args.is_set(key) and not run.evaluation.while_training:
        remedy = f"set {together(evaluation_settings(run))}"
        yield key, f"`{key}` stops the run by evaluations, and there are none; {remedy}"
    elif run.args.is_set(key) and run.evaluation.best_checkpoint_metric is None:
        yield key, f"`{key}` has no metric to watch; set `metric_for_best_model: eval_loss`"


@rule("TRA110", ERROR)
def best_metric_missing(run: RunSettings) -> Findings:
    """Checkpoints are chosen by a metric, and none is named.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded on every rank.
    Source: transformers/trainer.py:Trainer._validate_args
    Fix: `metric_for_best_model: eval_loss`.
    """
    if run.args.get("save_strategy") == "best" and run.evaluation.best_checkpoint_metric is None:
        yield "save_strategy", "`save_strategy: best` has no metric to watch; set `metric_for_best_model: eval_loss`"


@rule("TRA112", WARNING)
def evaluation_data_unused(run: RunSettings) -> Findings:
    """Data is held back or named for evaluation, and nothing is evaluated.

    Why: the rows of `val_size` are lost to training and nothing is measured.
    Source: llamafactory/data/data_utils.py:split_dataset
    Fix: `eval_strategy: steps` with `eval_steps`, or remove `val_size` or `eval_dataset`.
    """
    unused = run.task.trains and not run.evaluation.runs and not run.evaluation.predicts
    named, splits = run.args.is_set("eval_dataset"), run.evaluation.splits_validation_set
    if unused and splits and not named and run.args.is_set("dataset"):
        found = "`val_size` holds data back, and nothing is evaluated"
        yield "val_size", f"{found}; set {together(evaluation_settings(run))}, or remove `val_size`"
    elif unused and named and not splits:
        found = "`eval_dataset` is set, and nothing is evaluated"
        yield "eval_dataset", f"{found}; set {together(evaluation_settings(run))}, or remove `eval_dataset`"


@rule("TRA113", NOTE)
def evaluation_batch_default(run: RunSettings) -> Findings:
    """Evaluation uses larger batches than training, by default.

    Why: `per_device_eval_batch_size` is 8 unless set; logits of eight long samples can run out of memory at the first
    evaluation, where training at 1 fits.
    Source: transformers/training_args.py:TrainingArguments.per_device_eval_batch_size
    Fix: set `per_device_eval_batch_size` to the training batch.
    """
    train = run.batch.micro_batch
    if run.evaluation.runs and "per_device_eval_batch_size" not in run.args.values and train < 4:
        found = f"evaluation takes 8 samples per device (the default) and training {train}, so it may run out of memory"
        yield "per_device_train_batch_size", f"{found}; set `per_device_eval_batch_size: {train}`"


@rule("TRA114", WARNING)
def evaluation_never_reached(run: RunSettings) -> Findings:
    """The first evaluation lies beyond the end of the run.

    Why: nothing is measured while training; early stopping and the best checkpoint never act.
    Source: transformers/trainer_callback.py:DefaultFlowCallback.on_step_end
    Fix: a smaller `eval_steps`, or a share such as 0.1.
    """
    total = training_steps(run) if run.evaluation.strategy == "steps" else None
    if total and total.total < (every := evaluation_interval(run, total.total)):
        found = f"evaluation every {every} steps never happens in a run of {total} steps"
        yield "eval_steps", f"{found}; set a smaller `eval_steps`, such as `eval_steps: 0.1` (a share)"


@rule("TRA115", ERROR)
def evaluation_interval_missing(run: RunSettings) -> Findings:
    """Evaluation by steps has no interval.

    Why: refused at parse, on every rank.
    Source: transformers/training_args.py:TrainingArguments.__post_init__
    Fix: set `eval_steps`.
    """
    logs = run.args.get("logging_steps") != 0 or run.args.get("logging_strategy") == "steps"
    if run.evaluation.strategy == "steps" and not run.args.number("eval_steps") and not logs:
        found = "`eval_strategy: steps` has neither `eval_steps` nor `logging_steps`"
        yield "eval_strategy", f"{found}; set `eval_steps`, such as `eval_steps: 100`"


@rule("TRA117", WARNING)
def best_never_found(run: RunSettings) -> Findings:
    """Only the best checkpoint is saved, and nothing is evaluated.

    Why: no checkpoint is ever written; only the end of the run is saved, and a crash loses everything.
    Source: transformers/trainer.py:Trainer._maybe_log_save_evaluate
    Fix: `eval_strategy: steps` with data for it, or `save_strategy: steps`.
    """
    best = run.args.get("save_strategy") == "best" and run.args.is_set("metric_for_best_model")
    if best and not run.evaluation.while_training:
        remedy = f"set {together(evaluation_settings(run))}, or `save_strategy: steps`"
        yield "save_strategy", f"`save_strategy: best` saves after evaluations, and there are none; {remedy}"


@rule("TRA118", ERROR)
def generation_formats_meet(run: RunSettings) -> Findings:
    """Evaluation generates text with an adapter model that holds weights in 32 and in 16 bits.

    Why: mixed precision covers a LoRA or OFT model's training steps, but not its text generation: "expected m1 and m2
    to have the same dtype" at the first evaluation, hours into the run.
    Source: llamafactory/train/sft/trainer.py:CustomSeq2SeqTrainer.prediction_step,
    transformers/trainer_seq2seq.py:Seq2SeqTrainer.prediction_step
    Fix: evaluate by the loss, without `predict_with_generate`; and predict in a run of its own, with
    `do_predict: true` and the trained adapter.
    """
    key = fp32_weights_key(run)
    if key and run.evaluation.generates_text and run.task.trains and run.task.uses_adapter and run.precision.autocast:
        found = f"`{key}` leaves 32-bit weights in the adapter model, and text generation fails on them"
        remedy = "remove `predict_with_generate`, and predict in a run of its own"
        yield "predict_with_generate", f"{found}; {remedy}"


# What transformers measures of every evaluation (trainer_utils.py, speed_metrics).
_SPEED_METRICS = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}
_TEXT_METRICS = {"rouge-1", "rouge-2", "rouge-l", "bleu-4"}
_PREFERENCE_PREFIXES = ("rewards/", "logps/", "logits/")


def _loss_and_scores(run: RunSettings) -> set[str]:
    """Return the names of the metrics that an evaluation of the run returns, without the prefix `eval_`. These are
    scores if text is generated; otherwise the loss and further metrics of the stage (train/*/workflow.py,
    train/sft/trainer.py, prediction_step)."""
    if run.evaluation.predict_with_generate:
        return _TEXT_METRICS
    accuracy = run.task.stage == "rm" or (run.task.stage == "sft" and run.args.flag("compute_accuracy"))
    odds = {"sft_loss", "odds_ratio_loss"} if run.task.stage == "dpo" and run.args.get("pref_loss") == "orpo" else set()
    return {"loss"} | odds | ({"accuracy"} if accuracy else set()) | ({"kl"} if run.task.stage == "kto" else set())


def _separate_eval_datasets(run: RunSettings) -> tuple[str, ...]:
    """Return the names of the data sets that are evaluated separately; empty unless `eval_on_each_dataset` is set.
    Their metrics are named after them."""
    return run.args.words("eval_dataset") if run.args.flag("eval_on_each_dataset") else ()


@rule("TRA111", ERROR)
def metric_never_measured(run: RunSettings) -> Findings:
    """Checkpoints are compared by a metric that evaluation does not measure.

    Why: KeyError at the first evaluation, hours into the run, also where the best checkpoint is not loaded.
    Source: transformers/trainer.py:Trainer._determine_best_metric, llamafactory/train/sft/workflow.py:run_sft
    Fix: `eval_loss`; in stage sft `compute_accuracy: true` for eval_accuracy, and with `predict_with_generate` one of
    eval_rouge-l and eval_bleu-4, as no loss is measured then.
    """
    metric, sets = run.evaluation.best_checkpoint_metric, _separate_eval_datasets(run)
    if metric is None or not run.evaluation.while_training or (sets and metric in ("loss", "accuracy")):  # TRA116
        return
    names = [metric.removeprefix(f"{name}_") for name in sets if metric.startswith(f"{name}_")] if sets else [metric]
    # Preference learning adds its own to the log (train/dpo/trainer.py).
    own = run.task.stage in ("dpo", "kto") and any(name.startswith(_PREFERENCE_PREFIXES) for name in names)
    if not own and not (_loss_and_scores(run) | _SPEED_METRICS) & set(names):
        keys = ("metric_for_best_model", "load_best_model_at_end")  # which make transformers compare checkpoints
        key = next((key for key in keys if run.args.flag(key)), "lr_scheduler_type")
        yield key, f"the metric {metric} is not measured in this run; {_metric_remedy(run, metric)}"


def _metric_remedy(run: RunSettings, metric: str) -> str:
    if metric == "accuracy" and run.task.stage == "sft" and not run.evaluation.predict_with_generate:
        return "set `compute_accuracy: true`"
    prefix = "_".join(["eval", *_separate_eval_datasets(run)[:1]])
    return f"set `metric_for_best_model` to {' or '.join(f'{prefix}_{name}' for name in sorted(_loss_and_scores(run)))}"


@rule("TRA116", ERROR)
def metric_of_no_data_set(run: RunSettings) -> Findings:
    """The best checkpoint is chosen by a metric over all data, while each data set is evaluated by itself.

    Why: metrics are then named eval_<data set>_loss; KeyError at the first evaluation.
    Source: transformers/trainer.py:Trainer.evaluate, transformers/trainer.py:Trainer._determine_best_metric
    Fix: `metric_for_best_model: eval_<data set>_loss`, or remove `eval_on_each_dataset`.
    """
    metric, sets = run.evaluation.best_checkpoint_metric, _separate_eval_datasets(run)
    if run.evaluation.while_training and sets and metric in ("loss", "accuracy"):
        found = f"under `eval_on_each_dataset` each data set has a {metric} of its own, and there is none over all"
        yield "eval_on_each_dataset", f"{found}; set `metric_for_best_model: eval_{sets[0]}_{metric}`"
