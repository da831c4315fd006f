"""Hints for what people type before they have read the help: the command, option or argument that was meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from validator.catalogue.bundled_recipes import find_recipe_name
from validator.escaping import shell_join
from validator.knowledge.devices import is_machine
from validator.knowledge.guidance import TUNING_METHODS
from validator.knowledge.near_models import near_models
from validator.knowledge.tables import json_table
from validator.recipe.recipe_file import RECIPE_SUFFIXES

# Words that people type for a command.
_OTHER_WORDS = {
    "plan": "fit fits init create generate make new suggest recommend machines gpus hardware price prices",
    "list": "ls search find recipe recipes model models catalogue catalog",
    "copy": "cp get add clone",
    "data": "dataset datasets register preprocess tokenize inspect",
    "check": "validate verify lint test",
    "explain": "show info memory vram estimate time cost",
    "calibrate": "benchmark bench profile measure",
    "doctor": "env diagnose debug fix health status setup",
    "train": "run start launch finetune fine-tune sft lora resume",
    "submit": "slurm sbatch skypilot kubernetes",
    "diff": "compare",
    "rule": "rules code codes",
}
# Words for what other programs do, and how it is done.
_OTHER_PROGRAMS = {
    "export merge merge-lora": "`llamafactory-cli export` merges an adapter, by the keys `model_name_or_path`, "
    "`adapter_name_or_path`, `template`, `finetuning_type` and `export_dir`; `train` ends with the whole command "
    "(docs/tutorials/first-run.md)",
    "chat infer inference": "`llamafactory-cli chat` talks with a model, by the keys `model_name_or_path`, "
    "`adapter_name_or_path`, `template` and `finetuning_type`; `train` ends with the whole command "
    "(docs/tutorials/first-run.md)",
    "api serve server deploy vllm": "`llamafactory-cli api` serves a model, by the keys `model_name_or_path`, "
    "`adapter_name_or_path`, `template` and `finetuning_type`; `train` ends with a `chat` command that has them",
    "webui webchat board gui ui": "`llamafactory-cli webui` starts LLaMA Board; `lmf-recipes check` judges the "
    "training_args.yaml that it writes",
    "eval evaluate predict": "`lmf-recipes train RECIPE do_train=false do_predict=true predict_with_generate=true "
    "eval_dataset=NAME` predicts by a recipe",
    "download pull": "`lmf-recipes copy NAME` copies a recipe; the model is fetched when `lmf-recipes train` starts",
    "convert": "`lmf-recipes data FILE` takes data in their own form, `lmf-recipes plan --model M --write FILE.yaml` "
    "makes a recipe",
    "install": "docs/howto/install.md says how; `lmf-recipes doctor` names what is missing",
    "version": "`lmf-recipes --version` prints it",
    "llamafactory-cli lmf lmf-recipes": "the command comes first: `lmf-recipes train mine.yaml`",
}
_MISSING_ARGUMENTS = {
    "recipe": "Give a file such as `mine.yaml`, or a name that `lmf-recipes list` shows.",
    "name": "Give a name that `lmf-recipes list` shows.",
    "source": "Give a recipe such as `mine.yaml`, or a file of data such as `chats.jsonl`.",
    "file": "Give the file that was copied from the recipe.",
}
# Options that a command lacks, and what to write for them: the first answer that holds for the command. An answer is an
# option that the command has, a setting of the recipe as KEY=VALUE, or a sentence. A third column has the commands that
# the row is for.
_OTHER_OPTIONS: Sequence[tuple[str, Sequence[str]] | tuple[str, Sequence[str], str]] = (
    # `train` runs on the devices that are there; its --machine only judges.
    ("gpu gpus num-gpus n-gpus devices nproc-per-node",
     ("`NPROC_PER_NODE=2` before the command says on how many devices to train.",), "train"),
    ("resume", ("The same command resumes an interrupted run.",), "train"),
    ("gpu gpus device devices hardware cuda npu",
     ("The devices of this machine are looked at without it; `--machine 8xa100-80g` names others.",), "doctor"),
    ("fix install repair", ("`doctor` changes nothing; each of its lines ends with what to do.",), "doctor"),
    ("model m", ("`lmf-recipes list --model M` names the recipes for a model.",), "copy diff"),
    ("machine gpu gpus num-gpus n-gpus devices",
     ("`lmf-recipes list --machine 2xrtx-4090` names the recipes for a machine.",), "copy diff"),
    ("all a", ("`lmf-recipes list | cat` has all rows and columns.",), "list"),
    ("partition account qos queue p",
     ("`--site FILE` names a file that has it (docs/reference/site-file.md).",), "submit"),
    ("dry-run test", ("Nothing is changed or started without it.",), "plan list data check explain doctor diff"),
    ("output out o save", ("`> FILE` behind the command keeps its answer.",), "list data check explain doctor diff"),
    # A model and data are named when a recipe is made, not when it is used.
    ("model m base-model",
     ("`lmf-recipes plan --model M --machine 2xrtx-4090 --write FILE.yaml` makes a recipe for a model, here "
      "`model_name_or_path=M` takes another.",), "explain calibrate doctor train submit"),
    ("data", ("`lmf-recipes plan --model M --machine 2xrtx-4090 --data FILE --write FILE.yaml` makes a recipe for your "
     "data, here `dataset=NAME` takes another data set.",), "explain calibrate doctor train submit"),
    ("config config-file config-path yaml file recipe path input c",
     ("A file is named without an option: `lmf-recipes {command} mine.yaml`.",),
     "copy data check explain calibrate doctor train submit diff"),
    ("gpu gpus num-gpus n-gpus device devices hardware card cards node target", ("--machine 2xrtx-4090",)),
    ("nodes num-nodes nnodes", ("--machine 2x8xa100-80g",)),
    ("ctx context context-length context-len ctx-len max-length max-len max-seq-len max-seq-length seq-len "
     "sequence-length length cutoff cutoff-length cutoff-len model-max-length",
     ("--cutoff-len 8192", "cutoff_len=8192")),
    ("network net interconnect",
     ("--network N",
      "`# network: 8xroce-100g` in the header block (`# /// recipe` to `# ///`) names what joins the nodes.")),
    ("vram gpu-memory gpu-ram device-memory", ("--machine 1x24g",)),
    ("slurm sbatch", ("--to slurm",)),
    ("skypilot sky", ("--to skypilot",)),
    ("kubernetes k8s", ("--to kubernetes",)),
    ("ram memory cpu-ram host-memory main-memory", ("--host-ram GIB",)),
    ("m base-model model-name model-id model-path model-name-or-path", ("--model M", "model_name_or_path=M")),
    ("template chat-template", ("A template is a model's, and `--model M` names the model.",), "data plan"),
    ("template chat-template", ("template=NAME",)),
    ("dataset train-data train-file data-file data-path d", ("--data FILE", "dataset=NAME")),
    ("output output-dir out save save-as o", ("--write FILE", "output_dir=FOLDER")),
    ("html report", ("--html FILE", "--format json")),
    ("verbose v debug detail details", ("--full", "--pedantic", "--format json", "--version")),
    ("json output-format sort sort-by", ("--format json",)),
    ("time walltime time-limit t timeout max-time", ("--hours H",)),
    ("budget cost usd", ("--price P",)),
    ("stage", ("--method dpo", "stage=sft")),
    ("type finetuning-type tuning peft", ("--method M", "finetuning_type=lora")),
    ("qlora quantization quant quantize quantization-bit bits 4bit 4-bit load-in-4bit load-in-4-bit bnb",
     ("--method qlora", "quantization_bit=4")),
    ("lora", ("--method lora", "finetuning_type=lora")),
    ("full", ("--method full", "finetuning_type=full")),
    ("lr learning-rate", ("learning_rate=1e-4",)),
    ("epochs epoch num-epochs num-train-epochs", ("num_train_epochs=3",)),
    ("steps max-steps", ("max_steps=500",)),
    ("batch-size batch bs micro-batch micro-batch-size train-batch-size per-device-train-batch-size",
     ("per_device_train_batch_size=1",)),
    ("grad-accum accumulation gradient-accumulation gradient-accumulation-steps", ("gradient_accumulation_steps=8",)),
    ("rank r lora-r lora-rank", ("lora_rank=16",)),
    ("alpha lora-alpha", ("lora_alpha=32",)),
    ("target-modules lora-target lora-target-modules", ("lora_target=all",)),
    ("max-samples", ("--samples N", "max_samples=1000")),
    ("warmup warmup-ratio", ("warmup_ratio=0.03",)),
    ("save-steps", ("save_steps=100",)),
    ("seed", ("seed=42",)),
    ("bf16 fp16 precision dtype torch-dtype", ("bf16=true",)),
    ("packing", ("packing=true",)),
    ("flash-attn flash-attention", ("flash_attn=fa2",)),
    ("liger", ("enable_liger_kernel=true",)),
    ("deepspeed", ("deepspeed=FILE",)),
    ("quiet q silent s", ("`>/dev/null` behind the command hides its answer; the exit code says how it ended.",)),
    ("yes y force f overwrite", ("Nothing is asked, and what you changed is never overwritten; name another place.",)),
    ("fix", ("`lmf-recipes check --fix RECIPE` makes the fixes that cannot change what is trained.",)),
)  # fmt: skip
_DATA_SUFFIXES = (".jsonl", ".csv", ".parquet", ".arrow")


def meant_command(words: Sequence[str]) -> str:
    """Return what to type in place of `words`, the first of which is no command, as the end of a message."""
    word = words[0]
    if Path(word).suffix in _DATA_SUFFIXES:
        return f"`lmf-recipes data {word}` says what the file holds"
    if Path(word).suffix in (*RECIPE_SUFFIXES, ".json") or find_recipe_name(word):
        return f"`lmf-recipes check {word}` checks a file, `lmf-recipes train {word}` trains by it"
    if how := next((how for names, how in _OTHER_PROGRAMS.items() if word.lower() in names.split()), ""):
        return how
    meant = [name for name, names in _OTHER_WORDS.items() if word.lower() in names.split()]
    if meant := meant or get_close_matches(word.lower(), _OTHER_WORDS, 1):
        return f"did you mean `lmf-recipes {meant[0]}`?"
    named = _named_options(words)
    return f"did you mean `lmf-recipes plan {shell_join(named)}`?" if named else "`lmf-recipes --help` shows all"


def _named_options(words: Sequence[str]) -> list[str]:
    """Return the words that name a model, a machine or a method, each behind its option; empty if one of them names
    none."""
    named = []
    for word in words:
        if is_machine(word):
            named += ["--machine", word]
        elif word.lower() in TUNING_METHODS:
            named += ["--method", word.lower()]
        elif near := near_models(word):
            named += ["--model", near.names[0] if near.has_size and not near.is_family else word]
        else:
            return []
    return named


def hint(err: click.ClickException) -> str:
    """Return what to type in place of what click refuses, to be added to its message; empty if click says it all."""
    if isinstance(err, click.MissingParameter) and err.param:
        return _MISSING_ARGUMENTS.get(err.param.name or "", "")
    if isinstance(err, click.BadParameter) and err.ctx and err.param:
        hours = " Write a number, such as 24." if err.param.name == "hours" and "is not a valid" in err.message else ""
        return _other_option_for_value(err.message, err.param, err.ctx.command) or hours
    if isinstance(err, click.NoSuchOption) and err.ctx:
        if meant := _meant_option(err.option_name, err.ctx.command):
            err.possibilities = None  # type: ignore[misc]  # click's guess by spelling
        return f" {meant}" if meant else ""
    if isinstance(err, click.UsageError) and err.ctx:
        extra = re.search(r"unexpected extra arguments? \((.+)\)", err.message)
        return _meant_arguments(extra[1].split(), err.ctx.command) if extra else ""
    return ""


def _meant_arguments(words: Sequence[str], command: click.Command) -> str:
    """Return what to type in place of words that `command` does not take, as the end of a message."""
    if any(re.match(r"[\w.]+=", word) for word in words):
        return f"; `{command.name}` takes no KEY=VALUE, `explain` and `train` do"
    if not any(each.name == "model" for each in command.params):
        return ""
    if Path(words[0]).suffix in RECIPE_SUFFIXES or find_recipe_name(words[0]):
        return f"; `lmf-recipes explain {words[0]}` says what a recipe needs"
    named = _named_options(words)
    return f"; write `{shell_join(named)}`" if named else "; a model is named by `--model`, a machine by `--machine`"


def _other_option_for_value(message: str, refused: click.Parameter, command: click.Command) -> str:
    """Return a sentence that names another option of the command that takes the value, such as `--stage dpo` for
    `--method dpo`; empty if there is none. `message`: click's message that the option `refused` does not take it."""
    value = re.match(r"'([\w\-]+)' is not one of", message)
    for each in command.params:
        if (
            value
            and each is not refused
            and isinstance(each.type, click.Choice)
            and value[1].lower() in each.type.choices
        ):
            return f" Write `{each.opts[0]} {value[1].lower()}`."
    return ""


def _meant_option(option: str, command: click.Command) -> str:
    """Return what to write in place of an option that `command` lacks, as a sentence; empty if that is not known."""
    word, name = option.lstrip("-").lower().replace("_", "-"), command.name or ""
    own_options = {each for parameter in command.params for each in parameter.opts}
    takes_settings = "overrides" in own_options
    for words, answers, *commands in _OTHER_OPTIONS:
        if word not in words.split() or (commands and name not in commands[0].split()):
            continue
        for answer in answers:
            if answer.split()[0] in own_options:
                return f"Write `{answer}`."
            if re.match(r"\w+=", answer):
                return f"Write `{answer}`." if takes_settings else _in_recipe(answer)
            if not answer.startswith("--"):
                return answer.format(command=name)
    if option.lstrip("-") not in json_table("arguments")["arguments"]:
        return ""
    setting = f"{option.lstrip('-')}=VALUE"
    return f"A setting of the recipe is written `{setting}`." if takes_settings else _in_recipe(setting)


def _in_recipe(setting: str) -> str:
    """Return where a setting is written if the command takes none, as a sentence."""
    return f"It is a setting of the recipe: `lmf-recipes train FILE.yaml {setting}`, or a line of the file."
