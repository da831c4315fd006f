"""TRA0xx: the run itself: what is asked for, logging, saving, leftovers of examples. How much is in amount.py."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules import edits
from validator.rules.keys import of_other_command
from validator.rules.paths import PATHS
from validator.rules.rule import Finding, rule
from validator.tables.suggestion import suggest

_DAY = 86_400
_WEEK = 7 * _DAY
# transformers/integrations/integration_utils.py:INTEGRATION_TO_CALLBACK
_LOGGERS = (
    *("none", "all", "azure_ml", "comet_ml", "mlflow", "neptune", "tensorboard", "trackio", "wandb", "codecarbon"),
    *("clearml", "dagshub", "flyte", "dvclive", "swanlab", "kubeflow"),
)
# Read by supervised fine-tuning only (hparams/parser.py, get_train_args)
_SUPERVISED = ("predict_with_generate", "neat_packing", "train_on_prompt", "mask_history")


@rule("TRA001", Severity.ERROR)
def model_missing(job: Job) -> Iterator[Finding]:
    """The recipe names no model.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/model_args.py:BaseModelArguments.__post_init__
    Fix: set `model_name_or_path` to a hub name or a folder.
    """
    if not job.has("model_name_or_path"):
        yield "model_name_or_path", "no model is named; set `model_name_or_path`"


@rule("TRA002", Severity.WARNING)
def nothing_trained(job: Job) -> Iterator[Finding]:
    """The recipe does not ask for training.

    Why: `do_train` is false by default; LLaMA-Factory reads the data, loads the model and ends with exit code 0, having
    trained nothing.
    Source: llamafactory/train/sft/workflow.py:run_sft, transformers/training_args.py:TrainingArguments.do_train
    Fix: `do_train: true`.
    """
    other = job.get("infer_backend") != "huggingface" or any(map(of_other_command, job.values))  # to chat, or SCH007
    if not (job.asked or other):
        yield "do_train", "`do_train` is not set: the model is loaded and nothing is trained; set it to true"


@rule("TRA003", Severity.ERROR)
def data_missing(job: Job) -> Iterator[Finding]:
    """The recipe trains but names no data set.

    Why: refused at parse, on every rank; also where `tokenized_path` holds prepared data.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: set `dataset` to one or more names of dataset_info.json.
    """
    if job.trains and not job.has("dataset"):
        yield "dataset", "training is asked for and no data set is named; set `dataset`"


@rule("TRA004", Severity.ERROR)
def supervised_only(job: Job) -> Iterator[Finding]:
    """A setting of supervised fine-tuning is used in another stage.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove it, or set `stage: sft`.
    """
    if job.stage != "sft":
        for key in _SUPERVISED:
            if job.flag(key):
                yield key, f"`{key}` is refused in stage {job.stage}; it needs `stage: sft`"


@rule("TRA005", Severity.ERROR)
def prompt_and_history(job: Job) -> Iterator[Finding]:
    """The loss is asked to cover the prompt and to leave out the history.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/data_args.py:DataArguments.__post_init__
    Fix: keep one of `train_on_prompt` and `mask_history`.
    """
    if job.flag("mask_history") and job.flag("train_on_prompt") and job.stage == "sft":
        yield "mask_history", "`mask_history` and `train_on_prompt` exclude each other; remove one"


@rule("TRA006", Severity.ERROR)
def inference_backend(job: Job) -> Iterator[Finding]:
    """A serving backend is set for a run of the train command.

    Why: refused at parse, on every rank; vLLM and SGLang serve the API, chat and web commands.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `infer_backend`.
    """
    if job.asked and job.get("infer_backend") != "huggingface":
        yield (
            "infer_backend",
            f"`infer_backend: {job.get('infer_backend')}` cannot train; remove it",
            edits.drop("infer_backend"),
        )


@rule("TRA008", Severity.ERROR)
def report_target_unknown(job: Job) -> Iterator[Finding]:
    """A tool to report to is not known.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded on every rank. A text is one
    name: several need a list.
    Source: transformers/integrations/integration_utils.py:get_reporting_integration_callbacks,
    transformers/integrations/integration_utils.py:INTEGRATION_TO_CALLBACK
    Fix: one of none, tensorboard, wandb, swanlab, mlflow, trackio …, or a list of them.
    """
    value = job.get("report_to")
    for name in value if isinstance(value, list) else [value]:
        if isinstance(name, str) and "," in name:
            several = tuple(word.strip() for word in name.split(","))
            fix = edits.put("report_to", several) if set(several) <= {*_LOGGERS} else None
            yield "report_to", f"`report_to: {name}` is read as one name; write a list: [{name}]", fix
        elif name not in _LOGGERS:
            shown = "null" if name is None else name
            hint = suggest(str(name), _LOGGERS) or "; for no report write none"
            only = str(name).lower() if name is value and str(name).lower() in _LOGGERS else None
            fix = edits.put("report_to", only) if only else None
            yield "report_to", f"`report_to` holds `{shown}`, which transformers does not know{hint}", fix


@rule("TRA011", Severity.NOTE)
def timeout_of_years(job: Job) -> Iterator[Finding]:
    """The collective timeout is longer than a week.

    Why: `ddp_timeout: 180000000` of the official examples is 5.7 years: when one process dies or hangs, the others wait
    for it, and the machine is paid for, until someone looks.
    Source: own (LLaMA-Factory's examples)
    Fix: as long as the slowest preprocessing or saving takes, such as 7200 (two hours); prepare long data once with
    `tokenized_path`.
    """
    seconds = job.number("ddp_timeout")
    if seconds > _WEEK:
        yield (
            "ddp_timeout",
            (
                f"`ddp_timeout` is {seconds / _DAY:,.0f} days: a process that hangs stops the run silently; "
                f"set {_WEEK} (a week) or less"
            ),
            edits.put("ddp_timeout", _WEEK),
        )


@rule("TRA013", Severity.ERROR)
def export_without_data(job: Job) -> Iterator[Finding]:
    """Quantization at export is set without its calibration data.

    Why: refused at parse even though training never exports.
    Source: llamafactory/hparams/model_args.py:ExportArguments.__post_init__
    Fix: remove the export keys from a training recipe.
    """
    if job.has("export_quantization_bit") and not job.has("export_quantization_dataset"):
        text = "`export_quantization_bit` needs `export_quantization_dataset`; remove it"
        yield "export_quantization_bit", text, edits.drop("export_quantization_bit")


@rule("TRA014", Severity.ERROR, since="llamafactory 0.9.5")
def tracker_without_project(job: Job) -> Iterator[Finding]:
    """Trackio is asked for with an empty project.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:_verify_trackio_args
    Fix: set `project`.
    """
    if "trackio" in job.words("report_to") and not job.flag("project"):
        yield "project", "`report_to: trackio` needs a `project`"


@rule("TRA017", Severity.WARNING)
def resume_unread(job: Job) -> Iterator[Finding]:
    """The run is to resume in a stage and method that never do.

    Why: a reward model trained by full or freeze starts anew, with a line in the log only.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `resume_from_checkpoint`.
    """
    if job.stage in ("rm", "ppo") and job.method in ("full", "freeze") and job.has("resume_from_checkpoint"):
        text = f"stage {job.stage} with {job.method} never resumes; the run starts anew"
        yield "resume_from_checkpoint", text, edits.drop("resume_from_checkpoint")


@rule("TRA019", Severity.ERROR)
def workers_missing(job: Job) -> Iterator[Finding]:
    """Loader workers are to be kept, and there are none.

    Why: torch refuses it when the data loader is built, after the data is tokenized and the model loaded on every rank.
    Source: torch/utils/data/dataloader.py:DataLoader.__init__
    Fix: `dataloader_num_workers: 1` or more, or remove `dataloader_persistent_workers`.
    """
    if job.flag("dataloader_persistent_workers") and job.get("dataloader_num_workers") == 0:
        yield "dataloader_persistent_workers", "there are no workers to keep; set `dataloader_num_workers` or remove it"


@rule("TRA021", Severity.WARNING)
def placeholder_kept(job: Job) -> Iterator[Finding]:
    """A value holds `${…}` or is `???`, which LLaMA-Factory does not fill in.

    Why: it reads recipes with OmegaConf, but never resolves them: the text stays as it is, in the run's name or as the
    system prompt that is trained on. Paths are judged by PTH004 and PTH005.
    Source: llamafactory/hparams/parser.py:read_args
    Fix: write the value out, or give it on the command line, where the shell fills it in.
    """
    kept = {key: value for key, value in job.values.items() if key not in PATHS and _holds_a_place(value)}
    if kept:
        key, *others = kept
        too = f" (and so {', '.join(others)})" if others else ""
        yield key, f"`{key}` stays `{kept[key]}`{too}: LLaMA-Factory fills in no placeholder; write the value out"


def _holds_a_place(value: object) -> bool:
    return isinstance(value, str) and (value == "???" or "${" in value.replace("\\${", ""))
