"""Hints for what people type before they have read the help: the command, option or argument that was meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

import click

from validator.catalogue.bundled_recipes import NEW_RECIPE, find_recipe_name
from validator.escaping import shell_join, shell_quote
from validator.knowledge.devices import is_machine
from validator.knowledge.file_kinds import DATA_SUFFIXES, kind_of_file
from validator.knowledge.guidance import TUNING_METHODS
from validator.knowledge.models import offered_models
from validator.knowledge.near_models import near_models
from validator.knowledge.tables import json_table
from validator.plan.new_recipe import PLANNED_STAGES
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
    "doctor": "env diagnose debug health status setup",
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
    "fix repair format": "`lmf-recipes check --fix RECIPE` makes the fixes that cannot change what is trained",
    "dry-run dryrun": "`lmf-recipes train RECIPE --dry-run` checks, and prints what a start would run",
    "smoke": "`lmf-recipes train RECIPE --smoke` trains two steps",
    "upload push publish": "nothing is uploaded; `hf upload REPO FOLDER` uploads what a run wrote into its output_dir",
    "eval evaluate predict": "`lmf-recipes train RECIPE do_train=false do_predict=true predict_with_generate=true "
    "eval_dataset=NAME` predicts by a recipe",
    "download pull": "`lmf-recipes copy NAME` copies a recipe; the model is fetched when `lmf-recipes train` starts",
    "convert": "`lmf-recipes data FILE` takes data in their own form, `lmf-recipes plan --model M --write FILE.yaml` "
    "makes a recipe",
    "install update upgrade pip conda uv docker": "docs/howto/install.md says how; `lmf-recipes doctor` names what is "
    "missing",
    "accelerate torchrun deepspeed python tune axolotl unsloth swift": "`lmf-recipes train RECIPE` starts the launcher "
    "that a recipe needs",
    "hf huggingface-cli login": "`hf auth login` signs in at Hugging Face, `lmf-recipes doctor` asks whether it "
    "answers",
    "stop kill cancel quit exit logs": "Ctrl-C ends a run after its save, a job is ended by its scheduler; logs lie in "
    "the output_dir",
    "version": "`lmf-recipes --version` prints it",
    "llamafactory-cli lmf lmf-recipes": "the command comes first: `lmf-recipes train mine.yaml`",
}
_MISSING_ARGUMENTS = {
    "recipe": f"Give a file such as `mine.yaml`, or a name that `lmf-recipes list` shows; {NEW_RECIPE} makes a recipe.",
    "name": "Give a name that `lmf-recipes list` shows.",
    "source": "Give a recipe such as `mine.yaml`, or a file of data such as `chats.jsonl`.",
    "file": "Give the file that was copied from the recipe.",
}
# Options that a command lacks, and what to write for them: the first answer that holds for the command. An answer is an
# option that the command has, a setting of the recipe as KEY=VALUE, or a sentence; a word in braces stands for the
# value that was typed. A third column has the commands that the row is for.
_OTHER_OPTIONS: Sequence[tuple[str, Sequence[str]] | tuple[str, Sequence[str], str]] = (
    # `train` runs on the devices that are there; its --machine only judges.
    ("gpu gpus num-gpus n-gpus devices nproc-per-node num-processes",
     ("`NPROC_PER_NODE=2` before the command says on how many devices to train.",), "train"),
    ("resume", ("The same command resumes an interrupted run.",), "train"),
    ("gpu gpus device devices hardware cuda npu",
     ("The devices of this machine are looked at without it; `--machine 8xa100-80g` names others.",), "doctor"),
    ("fix install repair", ("`doctor` changes nothing; each of its lines ends with what to do.",), "doctor"),
    ("model m", ("`lmf-recipes list --model {M}` names the recipes for a model.",), "copy diff"),
    ("machine gpu gpus num-gpus n-gpus devices",
     ("`lmf-recipes list --machine {MACHINE}` names the recipes for a machine.",), "copy diff"),
    ("all a", ("`lmf-recipes list | cat` has all rows and columns.",), "list"),
    ("partition account qos queue p",
     ("`--site FILE` names a file that has it (docs/reference/site-file.md).",), "submit"),
    ("dry-run test", ("Nothing is changed or started without it.",), "plan list data check explain doctor diff"),
    ("output out o save", ("`> FILE` behind the command keeps its answer.",), "list data check explain doctor diff"),
    # A model and data are named when a recipe is made, not when it is used.
    ("model m base-model",
     ("`lmf-recipes plan --model {M} --machine MACHINE --write FILE.yaml` makes a recipe for a model, here "
      "`model_name_or_path={M}` takes another.",), "explain calibrate doctor train submit"),
    ("data", ("`lmf-recipes plan --model M --machine MACHINE --data {FILE} --write FILE.yaml` makes a recipe for your "
     "data, here `dataset=NAME` takes another data set.",), "explain calibrate doctor train submit"),
    ("config config-file config-path yaml file recipe path input c",
     ("A file is named without an option: `lmf-recipes {command} {FILE}`.",),
     "copy data check explain calibrate doctor train submit diff"),
    ("gpu gpus num-gpus n-gpus device devices hardware card cards node target", ("--machine {MACHINE}",)),
    ("nodes num-nodes nnodes", ("--machine {NODES}xCARDSxNAME",)),
    ("ctx context context-length context-len ctx-len max-length max-len max-seq-len max-seq-length seq-len "
     "sequence-length length cutoff cutoff-length cutoff-len model-max-length",
     ("--cutoff-len {N}", "cutoff_len={N}")),
    ("network net interconnect",
     ("--network {N}",
      "`# network: 8xroce-100g` in the header block (`# /// recipe` to `# ///`) names what joins the nodes.")),
    ("vram gpu-memory gpu-ram device-memory", ("--machine 1x{GIB}g",)),
    ("slurm sbatch", ("--to slurm",)),
    ("skypilot sky", ("--to skypilot",)),
    ("kubernetes k8s", ("--to kubernetes",)),
    ("ram memory cpu-ram host-memory main-memory", ("--host-ram {GIB}",)),
    ("m base-model model-name model-id model-path model-name-or-path", ("--model {M}", "model_name_or_path={M}")),
    ("template chat-template", ("A template is a model's, and `--model M` names the model.",), "data plan"),
    ("template chat-template", ("template={NAME}",)),
    ("dataset train-data train-file data-file data-path d", ("--data {FILE}", "dataset={NAME}")),
    ("output output-dir out save save-as o", ("--write FILE.yaml", "output_dir={FOLDER}")),
    ("html report", ("--html FILE", "--format json")),
    ("verbose v debug detail details", ("--full", "--pedantic", "--format json", "--version")),
    ("json output-format sort sort-by", ("--format json",)),
    ("time walltime time-limit t timeout max-time", ("--hours {HOURS}",)),
    ("budget cost usd", ("--price {P}",)),
    ("stage", ("--method {STAGE}", "stage={STAGE}")),
    ("type finetuning-type tuning peft", ("--method {METHOD}", "finetuning_type={METHOD}")),
    ("qlora quantization quant quantize quantization-bit bits 4bit 4-bit load-in-4bit load-in-4-bit bnb",
     ("--method qlora", "quantization_bit=4")),
    ("lora use-peft", ("--method lora", "finetuning_type=lora")),
    ("full", ("--method full", "finetuning_type=full")),
    ("lr learning-rate", ("learning_rate={RATE}",)),
    ("epochs epoch num-epochs num-train-epochs", ("num_train_epochs={N}",)),
    ("steps max-steps", ("max_steps={N}",)),
    ("batch-size batch bs micro-batch micro-batch-size train-batch-size per-device-train-batch-size",
     ("per_device_train_batch_size={N}",)),
    ("grad-accum accumulation gradient-accumulation gradient-accumulation-steps", ("gradient_accumulation_steps={N}",)),
    ("rank r lora-r lora-rank", ("lora_rank={N}",)),
    ("alpha lora-alpha", ("lora_alpha={N}",)),
    ("target-modules lora-target lora-target-modules", ("lora_target={NAMES}",)),
    ("max-samples", ("--samples {N}", "max_samples={N}")),
    ("warmup warmup-ratio", ("warmup_ratio={SHARE}",)),
    ("save-steps", ("save_steps={N}",)),
    ("seed", ("seed={N}",)),
    ("bf16 fp16 precision dtype torch-dtype", ("bf16=true",)),
    ("packing", ("packing=true",)),
    ("flash-attn flash-attention attn-implementation", ("flash_attn=fa2",)),
    ("wandb", ("report_to=wandb",)),
    ("liger", ("enable_liger_kernel=true",)),
    ("deepspeed", ("deepspeed={FILE}",)),
    ("quiet q silent s", ("`>/dev/null` behind the command hides its answer; the exit code says how it ended.",)),
    ("yes y force f overwrite", ("Nothing is asked, and what you changed is never overwritten; name another place.",)),
    ("fix", ("`lmf-recipes check --fix RECIPE` makes the fixes that cannot change what is trained.",)),
)  # fmt: skip
REGISTERING = ("add", "register", "import")
_PLAN_OPTIONS = ("--model", "--machine", "--data", "--method", "--samples")
_NUMBERS = ("NODES", "GIB", "HOURS")


class _TypedValue(dict[str, str]):
    """What the words in braces of a hint stand for: the value that the user typed, or the word itself, in capitals, if
    no value was typed or it cannot be meant."""

    def __missing__(self, placeholder: str) -> str:
        value = self.get("typed", "")
        number = re.fullmatch(r"(\d+)[^\d:]*", value)
        if _is_recipe(value) and placeholder != "FILE":
            return placeholder
        if placeholder == "MACHINE" and not is_machine(value):
            return f"{number[1] if number else 'CARDS'}xNAME"
        if placeholder in _NUMBERS:
            return number[1] if number else placeholder
        return shell_quote(value) if value else placeholder


def meant_command(words: Sequence[str]) -> str:
    """Return what to type in place of `words`, the first of which is no command, as the end of a message."""
    word = words[0]
    if file := next(filter(names_data, words), ""):
        return about_data(file, word.lower() in REGISTERING)
    if Path(word).suffix == ".json" or _is_recipe(word):
        return _about_recipe(word)
    if how := next((how for names, how in _OTHER_PROGRAMS.items() if word.lower() in names.split()), ""):
        recipe = next((each for each in words[1:] if each.endswith(RECIPE_SUFFIXES)), "RECIPE")
        return how.replace("RECIPE", shell_quote(recipe))
    meant = [name for name, names in _OTHER_WORDS.items() if word.lower() in names.split()]
    if meant == ["train"] and (named := _named_options(words if word.lower() in TUNING_METHODS else words[1:])):
        return f"did you mean `lmf-recipes plan {shell_join(named)}`?"
    if meant := meant or get_close_matches(word.lower(), _OTHER_WORDS, 1):
        return f"did you mean `lmf-recipes {meant[0]}`?"
    if file := next(filter(_is_recipe, words), ""):
        return _about_recipe(file)
    named = _named_options(" ".join(words).split())
    return f"did you mean `lmf-recipes plan {shell_join(named)}`?" if named else "`lmf-recipes --help` shows all"


def names_data(word: str) -> bool:
    """True if a word of the command line is probably a file of data."""
    suffix = Path(word).suffix
    return suffix in DATA_SUFFIXES or (suffix == ".json" and not kind_of_file(word).is_judged)


def about_data(file: str, register: bool = False) -> str:
    """Return the commands that take a file of data, as the end of a message."""
    written = shell_quote(file)
    if register:
        return f"`lmf-recipes data {written} --register NAME` writes its entry into dataset_info.json"
    return (
        f"`lmf-recipes data {written}` says what the file holds, `lmf-recipes plan --data {written}` how to train on it"
    )


def _about_recipe(file: str) -> str:
    """Return the commands that take a recipe, as the end of a message."""
    written = shell_quote(file)
    return f"`lmf-recipes check {written}` checks a file, `lmf-recipes train {written}` trains by it"


def _named_options(words: Sequence[str]) -> list[str]:
    """Return the words that name a model, a machine, a method or a stage, each behind its option."""
    named = []
    for word in words:
        if is_machine(word):
            named += ["--machine", word]
        elif word.lower() in TUNING_METHODS:
            named += ["--method", word.lower()]
        elif word.lower() in PLANNED_STAGES:
            named += ["--stage", word.lower()]
        elif near := near_models(word):
            named += ["--model", near.names[0] if near.has_size and not near.is_family else word]
    return named


def hint(err: click.ClickException, words: Sequence[str]) -> str:
    """Return what to type in place of what click refuses, to be added to its message; empty if click says it all.
    `words`: the command line."""
    if isinstance(err, click.MissingParameter) and err.param:
        return _MISSING_ARGUMENTS.get(err.param.name or "", "")
    if isinstance(err, click.BadParameter) and err.ctx and err.param:
        hours = " Write a number, such as 24." if err.param.name == "hours" and "is not a valid" in err.message else ""
        return _other_option_for_value(err.message, err.param, err.ctx.command) or hours
    if isinstance(err, click.NoSuchOption) and err.ctx:
        if meant := _meant_option(err.option_name, err.ctx.command, words):
            err.possibilities = None  # type: ignore[misc]  # click's guess by spelling
        return f" {meant}" if meant else ""
    if isinstance(err, click.UsageError) and err.ctx:
        extra = re.search(r"unexpected extra arguments? \((.+)\)", err.message)
        return _meant_arguments(extra[1].split(), err.ctx) if extra else ""
    return ""


def _meant_arguments(words: Sequence[str], context: click.Context) -> str:
    """Return what to type in place of words that a command does not take, as the end of a message."""
    command, typed = context.command, context.params
    if any(re.match(r"[\w.]+=", word) for word in words):
        options = [part for word in words for part in f"--{word}".split("=", 1)]
        if {*options[::2]} <= {each for parameter in command.params for each in parameter.opts}:
            return f"; write `{shell_join(options)}`"
        return f"; `{command.name}` takes no KEY=VALUE, `data`, `explain` and `train` do"
    if not any(each.name == "model" for each in command.params):
        return ""
    if names_data(words[0]):
        takes_data = any(each.name == "data" for each in command.params)
        return f"; write `--data {words[0]}`" if takes_data else f"; {about_data(words[0])}"
    if Path(words[0]).suffix in RECIPE_SUFFIXES or find_recipe_name(words[0]):
        return f"; `lmf-recipes explain {words[0]}` says what a recipe needs"
    whole = "-".join([str(typed.get("model")), *words]).lower()
    named = ["--model", whole] if whole in offered_models() else _named_options(words)
    lacking = [f"a {name} is named by `--{name}`" for name in ("model", "machine") if not typed.get(name)]
    return f"; write `{shell_join(named)}`" if named else f"; {', '.join(lacking)}" if lacking else ""


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


def _meant_option(option: str, command: click.Command, typed: Sequence[str]) -> str:
    """Return what to write in place of an option that `command` lacks, as a sentence; empty if that is not known.
    `typed`: the command line."""
    named = next((word for word in typed if word in _OTHER_WORDS), "plan" if option in _PLAN_OPTIONS else "")
    if isinstance(command, click.Group) and named:
        rest = shell_join([word for word in typed if word != named])
        return f"Options come behind the command: `lmf-recipes {named} {rest}`."
    word, name = option.lstrip("-").lower().replace("_", "-"), command.name or ""
    own_options = {each for parameter in command.params for each in parameter.opts}
    takes_settings = "overrides" in own_options
    made = (
        "" if not takes_settings or any(map(_is_recipe, typed)) else f" The recipe comes first; {NEW_RECIPE} makes one."
    )
    values = _TypedValue(command=name, typed=_value_of(option, typed))
    for words, answers, *commands in _OTHER_OPTIONS:
        if word not in words.split() or (commands and name not in commands[0].split()):
            continue
        for template in answers:
            answer = template.format_map(values)
            if answer.split()[0] in own_options:
                return f"Write `{answer}`."
            if re.match(r"\w+=", answer):
                return f"Write `{answer}`.{made}" if takes_settings else _in_recipe(answer)
            if not answer.startswith("--"):
                return answer
    if option.lstrip("-") not in json_table("arguments")["arguments"]:
        return ""
    setting = f"{option.lstrip('-')}={values['VALUE']}"
    return f"A setting of the recipe is written `{setting}`.{made}" if takes_settings else _in_recipe(setting)


def _is_recipe(word: str) -> bool:
    return word.endswith(RECIPE_SUFFIXES) or find_recipe_name(word) is not None


def _value_of(option: str, words: Sequence[str]) -> str:
    """Return the value of an option on the command line; empty if it has none."""
    for word, following in pairwise([*words, ""]):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option:
            return "" if following.startswith("-") else following
    return ""


def _in_recipe(setting: str) -> str:
    """Return where a setting is written if the command takes none, as a sentence."""
    return f"It is a setting of the recipe: `lmf-recipes train FILE.yaml {setting}`, or a line of the file."
