"""TRA0xx: the run itself: what is asked for, logging, saving, intervals and counts, leftovers of examples."""

from __future__ import annotations

from validator.knowledge.path_keys import PATH_KEY_NAMES
from validator.recipe.suggestions import suggest
from validator.rules.recipe_schema import belongs_to_other_command
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, remove_keys, rule, set_value
from validator.run.settings import RunSettings

_DAY = 86_400
_WEEK = 7 * _DAY
# transformers/integrations/integration_utils.py:INTEGRATION_TO_CALLBACK
_LOGGERS = (
    *("none", "all", "azure_ml", "comet_ml", "mlflow", "neptune", "tensorboard", "trackio", "wandb", "codecarbon"),
    *("clearml", "dagshub", "flyte", "dvclive", "swanlab", "kubeflow"),
)
# Read by supervised fine-tuning only (hparams/parser.py, get_train_args)
_SUPERVISED_KEYS = ("predict_with_generate", "neat_packing", "train_on_prompt", "mask_history")


@rule("TRA001", ERROR)
def model_missing(run: RunSettings) -> Findings:
    """The recipe names no model.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/model_args.py:BaseModelArguments.__post_init__
    Fix: set `model_name_or_path` to a hub name or a folder.
    """
    if not run.args.is_set("model_name_or_path"):
        yield "model_name_or_path", "no model is named; set `model_name_or_path`"


@rule("TRA002", WARNING)
def nothing_trained(run: RunSettings) -> Findings:
    """The recipe does not ask for training.

    Why: `do_train` is false by default; LLaMA-Factory reads the data, loads the model and ends with exit code 0, having
    trained nothing.
    Source: llamafactory/train/sft/workflow.py:run_sft, transformers/training_args.py:TrainingArguments.do_train
    Fix: `do_train: true`.
    """
    other_command = any(map(belongs_to_other_command, run.args.values))  # to chat, or SCH007
    if not run.task.has_work and not other_command and run.args.get("infer_backend") == "huggingface":
        yield "do_train", "`do_train` is not set: the model is loaded and nothing is trained; set it to true"


@rule("TRA003", ERROR)
def data_missing(run: RunSettings) -> Findings:
    """The recipe trains but names no data set.

    Why: refused at parse, on every rank; also where `tokenized_path` holds prepared data.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: set `dataset` to one or more names of dataset_info.json.
    """
    if run.task.trains and not run.args.is_set("dataset"):
        yield "dataset", "training is asked for and no data set is named; set `dataset`"


@rule("TRA004", ERROR)
def supervised_only(run: RunSettings) -> Findings:
    """A setting of supervised fine-tuning is used in another stage.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove it, or set `stage: sft`.
    """
    for key in _SUPERVISED_KEYS if run.task.stage != "sft" else ():
        if run.args.flag(key):
            yield key, f"`{key}` is refused in stage {run.task.stage}; it needs `stage: sft`"


@rule("TRA005", ERROR)
def prompt_and_history(run: RunSettings) -> Findings:
    """The loss is asked to cover the prompt and to leave out the history.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/data_args.py:DataArguments.__post_init__
    Fix: keep one of `train_on_prompt` and `mask_history`.
    """
    if run.args.flag("mask_history") and run.args.flag("train_on_prompt") and run.task.stage == "sft":
        yield "mask_history", "`mask_history` and `train_on_prompt` exclude each other; remove one"


@rule("TRA006", ERROR)
def inference_backend(run: RunSettings) -> Findings:
    """A serving backend is set for a run of the train command.

    Why: refused at parse, on every rank; vLLM and SGLang serve the API, chat and web commands.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `infer_backend`.
    """
    if run.task.has_work and run.args.get("infer_backend") != "huggingface":
        text = f"`infer_backend: {run.args.get('infer_backend')}` cannot train; remove it"
        yield "infer_backend", text, remove_keys("infer_backend")


@rule("TRA008", ERROR)
def report_target_unknown(run: RunSettings) -> Findings:
    """A tool to report to is not known.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded on every rank. A text is one
    name: several need a list.
    Source: transformers/integrations/integration_utils.py:get_reporting_integration_callbacks,
    transformers/integrations/integration_utils.py:INTEGRATION_TO_CALLBACK
    Fix: one of none, tensorboard, wandb, swanlab, mlflow, trackio …, or a list of them.
    """
    value = run.args.get("report_to")
    for name in value if isinstance(value, list) else [value]:
        if isinstance(name, str) and "," in name:
            several = tuple(word.strip() for word in name.split(","))
            fix = set_value("report_to", several) if set(several) <= {*_LOGGERS} else None
            yield "report_to", f"`report_to: {name}` is read as one name; write a list: [{name}]", fix
        elif name not in _LOGGERS:
            shown = "null" if name is None else name
            hint = suggest(str(name), _LOGGERS) or "; for no report write none"
            only = str(name).lower() if name is value and str(name).lower() in _LOGGERS else None
            fix = set_value("report_to", only) if only else None
            yield "report_to", f"`report_to` holds `{shown}`, which transformers does not know{hint}", fix


@rule("TRA011", NOTE)
def timeout_of_years(run: RunSettings) -> Findings:
    """The collective timeout is longer than a week.

    Why: `ddp_timeout: 180000000` of the official examples is 5.7 years: when one process dies or hangs, the others wait
    for it, and the machine is paid for, until someone looks.
    Source: own (LLaMA-Factory's examples)
    Fix: as long as the slowest preprocessing or saving takes, such as 7200 (two hours); prepare long data once with
    `tokenized_path`.
    """
    seconds = run.args.number("ddp_timeout")
    if seconds > _WEEK:
        found = f"`ddp_timeout` is {seconds / _DAY:,.0f} days: a process that hangs stops the run silently"
        yield "ddp_timeout", f"{found}; set {_WEEK} (a week) or less", set_value("ddp_timeout", _WEEK)


@rule("TRA013", ERROR)
def export_without_data(run: RunSettings) -> Findings:
    """Quantization at export is set without its calibration data.

    Why: refused at parse even though training never exports.
    Source: llamafactory/hparams/model_args.py:ExportArguments.__post_init__
    Fix: remove the export keys from a training recipe.
    """
    if run.args.is_set("export_quantization_bit") and not run.args.is_set("export_quantization_dataset"):
        text = "`export_quantization_bit` needs `export_quantization_dataset`; remove it"
        yield "export_quantization_bit", text, remove_keys("export_quantization_bit")


@rule("TRA014", ERROR, since="llamafactory 0.9.5")
def tracker_without_project(run: RunSettings) -> Findings:
    """Trackio is asked for with an empty project.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:_verify_trackio_args
    Fix: set `project`.
    """
    if "trackio" in run.args.words("report_to") and not run.args.flag("project"):
        yield "project", "`report_to: trackio` needs a `project`"


@rule("TRA017", WARNING)
def resume_unread(run: RunSettings) -> Findings:
    """The run is to resume in a stage and method that never do.

    Why: a reward model trained by full or freeze starts anew, with a line in the log only.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `resume_from_checkpoint`.
    """
    never = run.task.stage in ("rm", "ppo") and run.task.method in ("full", "freeze")
    if never and run.args.is_set("resume_from_checkpoint"):
        text = f"stage {run.task.stage} with {run.task.method} never resumes; the run starts anew"
        yield "resume_from_checkpoint", text, remove_keys("resume_from_checkpoint")


@rule("TRA019", ERROR)
def workers_missing(run: RunSettings) -> Findings:
    """Loader workers are to be kept, and there are none.

    Why: torch refuses it when the data loader is built, after the data is tokenized and the model loaded on every rank.
    Source: torch/utils/data/dataloader.py:DataLoader.__init__
    Fix: `dataloader_num_workers: 1` or more, or remove `dataloader_persistent_workers`.
    """
    if run.args.flag("dataloader_persistent_workers") and run.args.get("dataloader_num_workers") == 0:
        yield "dataloader_persistent_workers", "there are no workers to keep; set `dataloader_num_workers` or remove it"


@rule("TRA021", WARNING)
def placeholder_kept(run: RunSettings) -> Findings:
    """A value holds `${…}` or is `???`, which LLaMA-Factory does not fill in.

    Why: it reads recipes with OmegaConf, but never resolves them: the text stays as it is, in the run's name or as the
    system prompt that is trained on. Paths are judged by PTH004 and PTH005.
    Source: llamafactory/hparams/parser.py:read_args
    Fix: write the value out, or give it on the command line, where the shell fills it in.
    """
    written = {key: value for key, value in run.args.values.items() if key not in PATH_KEY_NAMES}
    if kept := {key: value for key, value in written.items() if _has_placeholder(value)}:
        key, *others = kept
        too = f" (and so {', '.join(others)})" if others else ""
        yield key, f"`{key}` stays `{kept[key]}`{too}: LLaMA-Factory fills in no placeholder; write the value out"


def _has_placeholder(value: object) -> bool:
    return isinstance(value, str) and (value == "???" or "${" in value.replace("\\${", ""))


_INTERVAL_KEYS = (
    ("logging_steps", "logging_strategy"),
    ("eval_steps", "eval_strategy"),
    ("save_steps", "save_strategy"),
)


@rule("TRA007", ERROR)
def interval_refused(run: RunSettings) -> Findings:
    """An interval of logging, evaluation or saving is zero or not a whole number of steps.

    Why: refused at parse, on every rank. Below 1 it is a share of all steps; above 1 it must be whole.
    Source: transformers/training_args.py:TrainingArguments._validate_args
    Fix: a whole number of steps, or a share such as 0.1.
    """
    for key, strategy in _INTERVAL_KEYS:
        value, by_steps = run.args.number(key), run.args.get(strategy) == "steps"
        if by_steps and key == "logging_steps" and run.args.get(key) == 0:
            yield key, "`logging_steps` is 0; set at least 1, or `logging_strategy: epoch`"
        elif by_steps and value > 1 and value != int(value):
            text = f"`{key}` is {value:g}, above 1 it must be a whole number; write {int(value)}"
            yield key, text, set_value(key, int(value))


@rule("TRA012", ERROR)
def limit_refused(run: RunSettings) -> Findings:
    """A lower limit is above its upper limit, or a count that must be positive is not.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/model_args.py:ProcessorArguments.__post_init__,
    transformers/training_args.py:TrainingArguments.__post_init__,
    transformers/training_args.py:TrainingArguments._validate_args
    Fix: as the message says.
    """
    for kind in ("image", "video"):
        most, least = run.args.number(f"{kind}_max_pixels"), run.args.number(f"{kind}_min_pixels")
        if most < least:
            yield f"{kind}_max_pixels", f"`{kind}_max_pixels` {most:.0f} is below `{kind}_min_pixels` {least:.0f}"
    if run.args.is_set("torch_empty_cache_steps") and run.args.number("torch_empty_cache_steps") <= 0:
        yield "torch_empty_cache_steps", "`torch_empty_cache_steps` must be above 0; remove it to never empty the cache"
    if run.args.is_set("dataloader_prefetch_factor") and run.args.get("dataloader_num_workers") == 0:
        yield "dataloader_prefetch_factor", "prefetching needs workers; set `dataloader_num_workers` or remove it"


@rule("TRA015", NOTE)
def steps_over_epochs(run: RunSettings) -> Findings:
    """Both a number of steps and a number of epochs are set.

    Why: `max_steps` wins; `num_train_epochs` has no effect.
    Source: transformers/trainer.py:Trainer.set_initial_training_values
    Fix: remove one.
    """
    if run.args.number("max_steps") > 0 and "num_train_epochs" in run.args.values:
        text = f"`max_steps: {run.args.get('max_steps')}` wins; `num_train_epochs` has no effect"
        yield "num_train_epochs", text, remove_keys("num_train_epochs")


@rule("TRA016", ERROR)
def batch_not_positive(run: RunSettings) -> Findings:
    """The micro batch is below 1.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded on every rank.
    Source: torch/utils/data/sampler.py:BatchSampler.__init__
    Fix: at least 1.
    """
    value = run.args.get("per_device_train_batch_size")
    if run.task.trains and isinstance(value, (int, float)) and not isinstance(value, bool) and value < 1:
        yield "per_device_train_batch_size", f"`per_device_train_batch_size` is {value}, it must be at least 1"
