"""TRA0xx: what the run is asked to do, logging, saving, intervals and counts, leftovers of examples, and numbers
outside of the range with which torch, peft or the run can work."""

from __future__ import annotations

from typing import NamedTuple

from validator.knowledge.path_keys import PATH_KEY_NAMES
from validator.recipe.suggestions import unknown_name
from validator.rules.read_conditions import never_read
from validator.rules.rule import ERROR, NOTE, WARNING, FailsAt, Findings, remove_keys, rule, set_value
from validator.run.recipe_arguments import finite_number
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
        yield "model_name_or_path", "no model is named; set `model_name_or_path` to a folder or a hub name"


@rule("TRA002", WARNING)
def nothing_trained(run: RunSettings) -> Findings:
    """The recipe has data or training arguments, and does not ask for training.

    Why: `do_train` is false by default; LLaMA-Factory reads the data, loads the model and ends with exit code 0, having
    trained nothing. A file without data and without training arguments is one for chat or export.
    Source: llamafactory/train/sft/workflow.py:run_sft, transformers/training_args.py:TrainingArguments.do_train,
    llamafactory/hparams/parser.py:_parse_infer_args
    Fix: `do_train: true`.
    """
    if not run.task.has_work and not run.task.is_for_other_command:
        yield "do_train", "`do_train` is not set, so the model is loaded and nothing is trained; set `do_train: true`"


@rule("TRA003", ERROR)
def data_missing(run: RunSettings) -> Findings:
    """The recipe trains but names no data set.

    Why: refused at parse, on every rank; also where `tokenized_path` holds prepared data.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: set `dataset` to one or more names of dataset_info.json.
    """
    if run.task.trains and not run.args.is_set("dataset"):
        yield "dataset", "training is asked for, but no data set is named; set `dataset` to a name of dataset_info.json"


@rule("TRA004", ERROR)
def supervised_only(run: RunSettings) -> Findings:
    """A setting of supervised fine-tuning is used in another stage.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove it, or set `stage: sft`.
    """
    for key in _SUPERVISED_KEYS if run.task.stage != "sft" else ():
        if run.args.flag(key):
            yield key, f"`{key}` needs `stage: sft`, not {run.task.stage}; remove `{key}`, or write `stage: sft`"


@rule("TRA005", ERROR)
def prompt_and_history(run: RunSettings) -> Findings:
    """Both `train_on_prompt` and `mask_history` are set.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/data_args.py:DataArguments.__post_init__
    Fix: keep one of `train_on_prompt` and `mask_history`.
    """
    if run.args.flag("mask_history") and run.args.flag("train_on_prompt") and run.task.stage == "sft":
        text = "`mask_history` and `train_on_prompt` exclude each other; remove `mask_history`, or `train_on_prompt`"
        yield "mask_history", text


@rule("TRA006", ERROR)
def inference_backend(run: RunSettings) -> Findings:
    """A serving backend is set for a run of the train command.

    Why: refused at parse, on every rank; vLLM and SGLang serve the API, chat and web commands.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `infer_backend`.
    """
    if run.task.has_work and run.args.get("infer_backend") != "huggingface":
        text = f"`infer_backend: {run.args.get('infer_backend')}` cannot train; remove `infer_backend`"
        yield "infer_backend", text, remove_keys("infer_backend")


@rule("TRA008", ERROR)
def report_target_unknown(run: RunSettings) -> Findings:
    """`report_to` names a tool that transformers does not know.

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
            yield (
                "report_to",
                f"`report_to: {name}` is read as one name; write `report_to: [{', '.join(several)}]`",
                fix,
            )
        elif name not in _LOGGERS:
            none = "`report_to` is null, which names no tool; write `report_to: none`" if name is None else ""
            text = none or unknown_name("`report_to` tool", str(name), _LOGGERS)
            only = str(name).lower() if name is value and str(name).lower() in _LOGGERS else None
            fix = set_value("report_to", only) if only else None
            yield "report_to", text, fix


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
        found = f"`ddp_timeout` is {seconds / _DAY:,.0f} days, so a process that hangs is not reported for that long"
        yield "ddp_timeout", f"{found}; set `ddp_timeout: {_WEEK}` (a week) or less", set_value("ddp_timeout", _WEEK)


@rule("TRA013", ERROR)
def export_without_data(run: RunSettings) -> Findings:
    """Quantization at export is set without its calibration data.

    Why: refused at parse even though training never exports.
    Source: llamafactory/hparams/model_args.py:ExportArguments.__post_init__
    Fix: remove the export keys from a training recipe.
    """
    if run.args.is_set("export_quantization_bit") and not run.args.is_set("export_quantization_dataset"):
        found = "`export_quantization_bit` needs `export_quantization_dataset`, even in training"
        text = f"{found}; remove `export_quantization_bit`"
        yield "export_quantization_bit", text, remove_keys("export_quantization_bit")


@rule("TRA014", ERROR, since="llamafactory 0.9.5")
def tracker_without_project(run: RunSettings) -> Findings:
    """The recipe reports to Trackio with an empty project.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/parser.py:_verify_trackio_args
    Fix: set `project`.
    """
    if "trackio" in run.args.words("report_to") and not run.args.flag("project"):
        yield "project", "`report_to: trackio` needs a `project`, which is empty; set `project` to a name"


@rule("TRA017", WARNING)
def resume_unread(run: RunSettings) -> Findings:
    """The recipe asks to resume in a stage and method that never resume.

    Why: a reward model trained by full or freeze starts anew, with a line in the log only.
    Source: llamafactory/hparams/parser.py:get_train_args
    Fix: remove `resume_from_checkpoint`.
    """
    never = run.task.stage in ("rm", "ppo") and run.task.method in ("full", "freeze")
    if never and run.args.is_set("resume_from_checkpoint"):
        found = f"stage {run.task.stage} with {run.task.method} never resumes, so the run starts anew"
        text = f"{found}; remove `resume_from_checkpoint`"
        yield "resume_from_checkpoint", text, remove_keys("resume_from_checkpoint")


@rule("TRA019", ERROR)
def workers_missing(run: RunSettings) -> Findings:
    """`dataloader_persistent_workers` is set, and there are no loader workers.

    Why: torch refuses it when the data loader is built, after the data is tokenized and the model loaded on every rank.
    Source: torch/utils/data/dataloader.py:DataLoader.__init__
    Fix: `dataloader_num_workers: 1` or more, or remove `dataloader_persistent_workers`.
    """
    if run.args.flag("dataloader_persistent_workers") and run.args.get("dataloader_num_workers") == 0:
        found = "`dataloader_persistent_workers` needs workers, but `dataloader_num_workers` is 0"
        remedy = "set `dataloader_num_workers` to 1 or more, or remove `dataloader_persistent_workers`"
        yield "dataloader_persistent_workers", f"{found}; {remedy}"


@rule("TRA021", WARNING)
def placeholder_kept(run: RunSettings) -> Findings:
    """A value holds `${…}` or is `???`, which LLaMA-Factory does not fill in.

    Why: it reads recipes with OmegaConf, but never resolves them: the text stays as it is, in the run's name or as the
    system prompt that is trained on. Paths are judged by PTH004 and PTH005.
    Source: llamafactory/hparams/parser.py:read_args
    Fix: write the value out, or give it on the command line, where the shell fills it in.
    """
    texts = {key: text for key, text in run.args.values.items() if isinstance(text, str) and key not in PATH_KEY_NAMES}
    if kept := [key for key, text in texts.items() if text == "???" or "${" in text.replace("\\${", "")]:
        key, *others = kept
        too = f" (and so {', '.join(others)})" if others else ""
        yield (
            key,
            f"`{key}` stays `{texts[key]}`{too}, because LLaMA-Factory fills in no placeholder; write the value itself",
        )


@rule("TRA007", ERROR)
def interval_refused(run: RunSettings) -> Findings:
    """An interval of logging, evaluation or saving is zero or not a whole number of steps.

    Why: refused at parse, on every rank. Below 1 it is a share of all steps; above 1 it must be whole.
    Source: transformers/training_args.py:TrainingArguments._validate_args
    Fix: a whole number of steps, or a share such as 0.1.
    """
    for what in ("logging", "eval", "save"):
        key, by_steps = f"{what}_steps", run.args.get(f"{what}_strategy") == "steps"
        value = run.args.number(key)
        if by_steps and key == "logging_steps" and run.args.get(key) == 0:
            yield key, "`logging_steps` is 0; write 1 or more, or set `logging_strategy: epoch`"
        elif by_steps and value > 1 and value != int(value):
            text = f"`{key}` is {value:g}; above 1 it must be a whole number; write `{key}: {int(value)}`"
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
            found = f"`{kind}_max_pixels` {most:.0f} is below `{kind}_min_pixels` {least:.0f}"
            if f"{kind}_max_pixels" in run.args.values:
                yield f"{kind}_max_pixels", f"{found}; set `{kind}_max_pixels` to {least:.0f} or more"
            else:
                yield f"{kind}_min_pixels", f"{found}; set `{kind}_min_pixels` to {most:.0f} or less"
    if run.args.is_set("torch_empty_cache_steps") and run.args.number("torch_empty_cache_steps") <= 0:
        found = f"`torch_empty_cache_steps` is {run.args.get('torch_empty_cache_steps')}, not above 0"
        remedy = "write 1 or more, or remove `torch_empty_cache_steps` to never empty the cache"
        yield "torch_empty_cache_steps", f"{found}; {remedy}"
    if run.args.is_set("dataloader_prefetch_factor") and run.args.get("dataloader_num_workers") == 0:
        found = "`dataloader_prefetch_factor` needs workers, but `dataloader_num_workers` is 0"
        remedy = "set `dataloader_num_workers` to 1 or more, or remove `dataloader_prefetch_factor`"
        yield "dataloader_prefetch_factor", f"{found}; {remedy}"


@rule("TRA015", NOTE)
def steps_over_epochs(run: RunSettings) -> Findings:
    """Both a number of steps and a number of epochs are set.

    Why: `max_steps` wins; `num_train_epochs` has no effect.
    Source: transformers/trainer.py:Trainer.set_initial_training_values
    Fix: remove one.
    """
    if run.args.number("max_steps") > 0 and "num_train_epochs" in run.args.values:
        found = f"`max_steps: {run.args.get('max_steps')}` wins, so `num_train_epochs` has no effect"
        text = f"{found}; remove `num_train_epochs`, or `max_steps`"
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
        yield "per_device_train_batch_size", f"`per_device_train_batch_size` is {value}; write 1 or more"


_UNBOUNDED = float("inf")
_ABOVE_0 = 5e-324


class NumericRange(NamedTuple):
    """The range of values that a key's number may have: from `low` up to, but not including, `end`. `fails`: the moment
    at which LLaMA-Factory fails on a value outside of the range."""

    low: float
    fails: FailsAt
    end: float = _UNBOUNDED


# Each limit was seen in a real run of LLaMA-Factory (benchmarks/evidence/conformity/conformity.csv, group range).
_RANGES = {
    "adam_beta1": NumericRange(0, FailsAt.TRAINER, 1),
    "adam_beta2": NumericRange(0, FailsAt.TRAINER, 1),
    "adam_epsilon": NumericRange(0, FailsAt.TRAINER),
    "neftune_noise_alpha": NumericRange(0, FailsAt.FIRST_STEP),
    "cutoff_len": NumericRange(1, FailsAt.FIRST_STEP),
    "dataloader_prefetch_factor": NumericRange(1, FailsAt.TRAINER),
    "dataloader_num_workers": NumericRange(0, FailsAt.TRAINER),
    "per_device_eval_batch_size": NumericRange(1, FailsAt.FIRST_EVALUATION),
    "eval_num_beams": NumericRange(0, FailsAt.FIRST_EVALUATION),  # 0 stands for the default
    "num_beams": NumericRange(1, FailsAt.FIRST_EVALUATION),
    "generation_num_beams": NumericRange(1, FailsAt.FIRST_EVALUATION),
    "generation_max_length": NumericRange(0, FailsAt.FIRST_EVALUATION),
    "temperature": NumericRange(_ABOVE_0, FailsAt.FIRST_EVALUATION),
    "top_p": NumericRange(0, FailsAt.FIRST_EVALUATION),
    "top_k": NumericRange(0, FailsAt.FIRST_EVALUATION),
    "repetition_penalty": NumericRange(_ABOVE_0, FailsAt.FIRST_EVALUATION),
    "ddp_timeout": NumericRange(1, FailsAt.PARSING, 8.64e13),  # a timedelta has no more than 999,999,999 days
    "num_train_epochs": NumericRange(_ABOVE_0, FailsAt.UNTRAINED),
    "export_quantization_bit": NumericRange(2, FailsAt.MODEL_LOADING, 9),
    "apollo_scale": NumericRange(0, FailsAt.UNTRAINED),
    "apollo_rank": NumericRange(0, FailsAt.TRAINER),
    "oft_block_size": NumericRange(0, FailsAt.MODEL_LOADING),
    "profiler_active_steps": NumericRange(1, FailsAt.TRAINER),
    "profiler_wait_steps": NumericRange(0, FailsAt.TRAINER),
    "profiler_warmup_steps": NumericRange(0, FailsAt.TRAINER),
    "profiler_repeat": NumericRange(0, FailsAt.TRAINER),
}
# An interval of zero is divided by; below zero it passes.
_INTERVALS = {
    "eval_accumulation_steps": FailsAt.FIRST_EVALUATION,
    "apollo_update_interval": FailsAt.TRAINER,
    "galore_update_interval": FailsAt.TRAINER,
    "buffer_size": FailsAt.DATASET,
    "gradient_accumulation_steps": FailsAt.TRAINER,
    "badam_switch_interval": FailsAt.TRAINER,
}


@rule("TRA018", ERROR)
def number_out_of_range(run: RunSettings) -> Findings:
    """A number is outside its range.

    Why: torch or peft refuse it only when they use it, after the data is tokenized and the model loaded on every rank;
    what belongs to evaluation fails hours into the run. With some numbers the run ends well, and the weights that it
    saves are NaN, or those that it began with.
    Source: torch/utils/data/dataloader.py:DataLoader.__init__, torch/utils/data/sampler.py:BatchSampler.__init__,
    torch/optim/adam.py:Adam.__init__, peft/tuners/oft/layer.py:OFTLayer.update_layer,
    transformers/generation/logits_process.py:TemperatureLogitsWarper.__init__
    Fix: the default, or a number within the limits named.
    """
    for key, (low, fails, end) in _RANGES.items():
        value = run.args.values.get(key)
        number = finite_number(value)  # SCH002 and SCH003 judge what is not finite
        if number is not None and not low <= number < end and not never_read(run, key):
            least = "a number above 0" if low == _ABOVE_0 else f"{low:g} or more"
            limit = f", but less than {end:g}" if end < _UNBOUNDED else ""
            yield key, f"`{key}` is {value}, and fails {fails}; write {least}{limit}, or remove `{key}`"
    is_new = run.task.method == "lora" and not (run.args.flag("pissa_init") or run.args.is_set("adapter_name_or_path"))
    if is_new and run.args.get("adam_epsilon") == 0 and not never_read(run, "adam_epsilon"):
        found = "`adam_epsilon` is 0, and the first gradients of a LoRA's A are 0, so that Adam makes them 0/0, NaN"
        yield "adam_epsilon", f"{found}; write 1.0e-8, or remove `adam_epsilon`"


@rule("TRA020", ERROR)
def seed_out_of_range(run: RunSettings) -> Findings:
    """The seed is below zero or has more than 32 bits.

    Why: refused at parse, on every rank: "Seed must be between 0 and 2**32 - 1".
    Source: transformers/trainer_utils.py:set_seed
    Fix: any whole number from 0 to 4294967295.
    """
    seed = run.args.get("seed")
    if isinstance(seed, int) and not 0 <= seed < 1 << 32:
        yield "seed", f"`seed` is {seed}; write a whole number from 0 to {(1 << 32) - 1}"


@rule("TRA022", ERROR)
def interval_zero(run: RunSettings) -> Findings:
    """An interval is zero.

    Why: the run divides by it: ZeroDivisionError after the model is loaded on every rank, or at the first evaluation,
    hours into the run.
    Source: transformers/trainer.py:Trainer.evaluation_loop,
    transformers/trainer.py:Trainer.set_initial_training_values,
    llamafactory/train/trainer_utils.py:_create_galore_optimizer,
    llamafactory/train/trainer_utils.py:_create_apollo_optimizer,
    llamafactory/train/trainer_utils.py:_create_badam_optimizer
    Fix: at least 1, or leave it out.
    """
    for key, fails in _INTERVALS.items():
        if run.args.is_set(key) and run.args.get(key) == 0 and not never_read(run, key):
            found = f"`{key}: {run.args.get(key)}` is used as a divisor, and fails {fails}"
            yield key, f"{found}; write 1 or more, or remove `{key}`"


@rule("TRA023", ERROR)
def accumulation_below_zero(run: RunSettings) -> Findings:
    """`gradient_accumulation_steps` is below zero.

    Why: the run reads all data, makes no step and saves the weights that it began with. There is no value that stands
    for an automatic choice in a recipe.
    Source: transformers/trainer.py:Trainer._run_epoch
    Fix: at least 1.
    """
    if run.task.trains and run.args.number("gradient_accumulation_steps") < 0:
        found = f"`gradient_accumulation_steps` is {run.args.get('gradient_accumulation_steps')}, so no step is made"
        yield "gradient_accumulation_steps", f"{found}; write 1 or more"
