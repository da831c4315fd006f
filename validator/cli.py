"""The click group: which commands exist, in the order of the help."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click

from validator import __version__, escaping

# In the order of use.
COMMANDS = (
    "plan",
    "list",
    "copy",
    "data",
    "check",
    "explain",
    "calibrate",
    "doctor",
    "train",
    "submit",
    "diff",
    "rule",
)
# Words that people type for a command before they have read the help.
_OTHER_WORDS = {
    "plan": "fit fits init create generate make suggest recommend machines",
    "list": "ls search find recipes models catalogue",
    "copy": "cp get add new clone download",
    "data": "dataset datasets register",
    "check": "validate verify lint test",
    "explain": "show info memory vram estimate time cost",
    "doctor": "env diagnose debug",
    "train": "run start launch finetune fine-tune sft",
    "submit": "slurm sbatch skypilot kubernetes",
    "rule": "rules code",
}
_MISSING_ARGUMENTS = {
    "recipe": "Give a file such as `mine.yaml`, or a name that `lmf-recipes list` shows.",
    "name": "Give a name that `lmf-recipes list` shows.",
    "source": "Give a recipe such as `mine.yaml`, or a file of data such as `chats.jsonl`.",
    "file": "Give the file that was copied from the recipe.",
}
# Options that no command has, and what to write for them: the first that the command has. A setting of the recipe is
# written in the file or behind `train FILE.yaml` where the command takes none.
_OTHER_OPTIONS: Sequence[tuple[str, Sequence[str]]] = (
    ("gpu gpus num-gpus n-gpus device devices hardware card cards node target", ("--machine 2xrtx-4090",)),
    ("ctx context context-length context-len ctx-len max-length max-len max-seq-len max-seq-length seq-len "
     "sequence-length length cutoff cutoff-length cutoff-len model-max-length",
     ("--cutoff-len 8192", "cutoff_len=8192")),
    ("network net interconnect", ("--network N",)),
    ("vram gpu-memory gpu-ram device-memory", ("--machine 1x24g",)),
    ("slurm sbatch", ("--to slurm",)),
    ("skypilot sky", ("--to skypilot",)),
    ("kubernetes k8s", ("--to kubernetes",)),
    ("ram memory cpu-ram host-memory main-memory", ("--host-ram GIB",)),
    ("dataset train-data data-file data-path", ("--data FILE", "dataset=NAME")),
    ("output output-dir out save save-as", ("--write FILE", "output_dir=FOLDER")),
    ("json", ("--format json",)),
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
    ("template chat-template", ("template=NAME",)),
    ("max-samples", ("--samples N", "max_samples=1000")),
    ("warmup warmup-ratio", ("warmup_ratio=0.03",)),
    ("save-steps", ("save_steps=100",)),
    ("seed", ("seed=42",)),
    ("bf16 fp16 precision dtype torch-dtype", ("bf16=true",)),
    ("packing", ("packing=true",)),
    ("flash-attn flash-attention", ("flash_attn=fa2",)),
    ("liger", ("enable_liger_kernel=true",)),
    ("deepspeed", ("deepspeed=FILE",)),
)  # fmt: skip
# A model and data are named when a recipe is made, not when it is used.
_PLAN_OPTIONS = {
    "model": "`lmf-recipes plan --model M --machine 2xrtx-4090 --write FILE.yaml` makes a recipe for a model, "
    "here `model_name_or_path=M` "
    "takes another",
    "data": "`lmf-recipes plan --model M --machine 2xrtx-4090 --data FILE --write FILE.yaml` makes a recipe for your "
    "data, here "
    "`dataset=NAME` takes another data set",
}
_NETWORK_IN_HEADER = (
    "`# network: 8xroce-100g` in the header block (`# /// recipe` to `# ///`) names what joins the nodes"
)
# `train` runs on the devices that are there; its --machine only judges.
_TRAIN_OPTIONS = dict.fromkeys(
    ("gpu", "gpus", "num-gpus", "n-gpus", "devices", "nproc-per-node"),
    "`NPROC_PER_NODE=2` before the command says on how many devices to train",
) | {"resume": "The same command resumes an interrupted run"}
_LIST_OPTIONS = {"model": "`lmf-recipes list --model M` names the recipes for a model"}
_COPY_OPTIONS = _LIST_OPTIONS | dict.fromkeys(
    ("machine", "gpu", "gpus", "num-gpus", "n-gpus", "devices"),
    "`lmf-recipes list --machine 2xrtx-4090` names the recipes for a machine",
)
# A word such as 4090, 8xh100 or rtx-4090.
_MACHINE_WORD = r"(?i)(?:\d+x)*(?:rtx|gtx|gb|gh|mi|ascend|[abhltv])?-?\d{2,4}[a-z]{0,3}(?:-\d+g)?|(?:\d+x)+[a-z][\w\-]*"
_EPILOG = "Start with `lmf-recipes plan --machine 2xrtx-4090`, or `--machine auto` for this machine."


class Commands(click.Group):
    """The commands of validator.commands; each module is imported only when its command is used."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Return the command of that name; None if there is none."""
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"validator.commands.{name}").command
        return command

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the words name, with its arguments. Raises click.UsageError, whose message names the
        command that was probably meant."""
        if words[0] in COMMANDS or words[0].startswith("-"):
            return super().resolve_command(context, words)
        raise click.UsageError(f"`{words[0]}` is not a command; {_meant_command(words[0])}", context)


def _meant_command(word: str) -> str:
    """Return what to type in place of `word`, which is no command, as the end of a message."""
    if Path(word).suffix in (".yaml", ".yml", ".json"):
        return f"`lmf-recipes check {word}` checks a file, `lmf-recipes train {word}` trains by it"
    if re.fullmatch(_MACHINE_WORD, word):
        return f"did you mean `lmf-recipes plan --machine {word}`?"
    meant = [name for name, words in _OTHER_WORDS.items() if word.lower() in words.split()]
    meant = meant or get_close_matches(word.lower(), COMMANDS, 1)
    return f"did you mean `lmf-recipes {meant[0]}`?" if meant else "`lmf-recipes --help` shows all"


# click takes the sequences of colours out of what goes to a file; here none goes out, so that both see the same.
@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "color": True}, epilog=_EPILOG)
@click.version_option(__version__, prog_name="lmf-recipes")
def group() -> None:
    """Fine-tuning recipes for LLaMA-Factory, and whether one will run on a machine."""


def run_cli(words: Sequence[str]) -> NoReturn:
    """Run the program on the words of the command line, and exit with the code of the outcome."""
    words = list(words)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    try:
        sys.exit(group.main(words, standalone_mode=False))
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.exceptions.NoArgsIsHelpError as err:
        click.echo(err.format_message(), err=True)
        sys.exit(err.exit_code)
    except click.ClickException as err:
        err.message += _hint(err)  # type: ignore[misc]  # as below
        err.message = escaping.escape_line(err.message)  # type: ignore[misc]  # which words of the command line stand in
        err.show()
        sys.exit(err.exit_code)


def _hint(err: click.ClickException) -> str:
    """Return what to type in place of what click refuses, to be added to its message; empty if click says it all."""
    if isinstance(err, click.MissingParameter) and err.param:
        return _MISSING_ARGUMENTS.get(err.param.name or "", "")
    if isinstance(err, click.BadParameter) and err.ctx and err.param:
        return _other_option_for_value(err.message, err.param, err.ctx.command)
    if isinstance(err, click.NoSuchOption) and err.ctx:
        if meant := _meant_option(err.option_name, err.ctx.command):
            err.possibilities = None  # type: ignore[misc]  # click's guess by spelling
        return f" {meant}" if meant else ""
    if isinstance(err, click.UsageError) and err.ctx and "unexpected extra argument" in err.message:
        has_model = any(each.name == "model" for each in err.ctx.command.params)
        return "; a model is named by `--model`, a machine by `--machine`" if has_model else ""
    return ""


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
    word = option.lstrip("-").lower().replace("_", "-")
    own_options = {each for parameter in command.params for each in parameter.opts}
    takes_settings = "overrides" in own_options
    hints = {"train": _PLAN_OPTIONS | _TRAIN_OPTIONS, "copy": _COPY_OPTIONS}.get(
        str(command.name), _PLAN_OPTIONS if takes_settings else _LIST_OPTIONS
    )
    if word in hints:
        return f"{hints[word]}."
    if word in ("network", "net", "interconnect") and "--network" not in own_options >= {"--machine"}:
        return f"{_NETWORK_IN_HEADER}."
    for words, answers in _OTHER_OPTIONS:
        known = [each for each in answers if each.split()[0] in own_options or "=" in each]
        if word in words.split() and known:
            return f"Write `{known[0]}`." if takes_settings or "=" not in known[0] else _in_recipe(known[0])
    if "_" not in option:
        return ""
    setting = f"{option.lstrip('-')}=VALUE"  # as LLaMA-Factory spells its keys
    return f"A setting of the recipe is written `{setting}`." if takes_settings else _in_recipe(setting)


def _in_recipe(setting: str) -> str:
    """Return where a setting is written if the command takes none, as a sentence."""
    return f"It is a setting of the recipe: `lmf-recipes train FILE.yaml {setting}`, or a line of the file."
