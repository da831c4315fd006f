"""TRA111 and TRA116: the metric that checkpoints are compared by, and what evaluation measures."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule

# What transformers measures of every evaluation (trainer_utils.py, speed_metrics).
_SPEED = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}
_SCORES = {"rouge-1", "rouge-2", "rouge-l", "bleu-4"}
_PREFERENCE = ("rewards/", "logps/", "logits/")


def _measured(job: Job) -> set[str]:
    """What an evaluation gives, without `eval_`: the loss and an accuracy, or scores of generated text without a loss
    (train/*/workflow.py, train/sft/trainer.py, prediction_step)."""
    if job.generative:
        return _SCORES
    accuracy = job.stage == "rm" or (job.stage == "sft" and job.flag("compute_accuracy"))
    odds = {"sft_loss", "odds_ratio_loss"} if job.stage == "dpo" and job.get("pref_loss") == "orpo" else set()
    return {"loss"} | odds | ({"accuracy"} if accuracy else set()) | ({"kl"} if job.stage == "kto" else set())


def _gives(job: Job, metric: str) -> bool:
    """Whether an evaluation measures it; preference learning adds its own to the log (train/dpo/trainer.py)."""
    own = job.stage in ("dpo", "kto") and metric.startswith(_PREFERENCE)
    return own or metric in _measured(job) | _SPEED


def _apart(job: Job) -> tuple[str, ...]:
    """The data sets that are evaluated each by itself, which their metrics are called by."""
    return job.words("eval_dataset") if job.flag("eval_on_each_dataset") else ()


@rule("TRA111", Severity.ERROR)
def metric_never_measured(job: Job) -> Iterator[Finding]:
    """Checkpoints are compared by a metric that evaluation does not measure.

    Why: KeyError at the first evaluation, hours into the run, also where the best checkpoint is not loaded.
    Source: transformers/trainer.py:Trainer._determine_best_metric, llamafactory/train/sft/workflow.py:run_sft
    Fix: `eval_loss`; in stage sft `compute_accuracy: true` for eval_accuracy, and with `predict_with_generate` one of
    eval_rouge-l and eval_bleu-4, as no loss is measured then.
    """
    metric, sets = job.best_checkpoint_metric, _apart(job)
    if metric is None or not job.evaluates_while_training or (sets and metric in ("loss", "accuracy")):  # TRA116
        return
    names = [metric.removeprefix(f"{name}_") for name in sets if metric.startswith(f"{name}_")] if sets else [metric]
    if not any(_gives(job, name) for name in names):
        yield _at(job), f"{metric} is not measured in this run; {_instead(job, metric)}"


def _at(job: Job) -> str:
    """What makes transformers compare checkpoints."""
    keys = ("metric_for_best_model", "load_best_model_at_end")
    return next((key for key in keys if job.flag(key)), "lr_scheduler_type")


def _instead(job: Job, metric: str) -> str:
    if metric == "accuracy" and job.stage == "sft" and not job.generative:
        return "set `compute_accuracy: true`"
    sets = _apart(job)
    prefix = f"eval_{sets[0]}_" if sets else "eval_"
    names = " or ".join(f"{prefix}{name}" for name in sorted(_measured(job)))
    return f"set `metric_for_best_model` to {names}"


@rule("TRA116", Severity.ERROR)
def metric_of_no_data_set(job: Job) -> Iterator[Finding]:
    """The best checkpoint is chosen by a metric over all data, while each data set is evaluated by itself.

    Why: metrics are then named eval_<data set>_loss; KeyError at the first evaluation.
    Source: transformers/trainer.py:Trainer.evaluate, transformers/trainer.py:Trainer._determine_best_metric
    Fix: `metric_for_best_model: eval_<data set>_loss`, or remove `eval_on_each_dataset`.
    """
    metric, sets = job.best_checkpoint_metric, _apart(job)
    if job.evaluates_while_training and sets and metric in ("loss", "accuracy"):
        yield (
            "eval_on_each_dataset",
            (
                f"each data set has metrics of its own, such as eval_{sets[0]}_{metric}; "
                f"`metric_for_best_model` must name one, not {metric}"
            ),
        )
