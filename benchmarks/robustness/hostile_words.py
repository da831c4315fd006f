"""A folder in which every string that a stranger may choose is one that a terminal or a CI log would obey, and the
command lines that look at it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_PIECES = (
    *("\x1b[31m", "\x1b]0;title\x07", "\n::error::forged", "\r::stop-commands::x", "\r\n", "\x07", "\b\b", "\x9b2J"),
    *("\x7f", "\x85", "\u202e", "\u2066", "\u200f", "\u2028::add-mask::x", "\ufeff", "##[error]forged", "::error::x"),
    *(
        "  ::warning file=a::x",
        "##vso[task.complete]x",
        "\t",
        "'",
        '"',
        "`",
        "$(id)",
        "%0A",
        "<b>&",
        "微",
        "\u200d",
        "a",
    ),
)
# Keys that are shown where their values are wrong, and some whose values are paths.
_KEYS = ("model_name_or_path", "stage", "finetuning_type", "lora_target", "template", "output_dir", "learning_rate",
         "lr_scheduler_type", "deepspeed", "adapter_name_or_path", "optim", "report_to", "media_dir")  # fmt: skip
_HEADER = ("summary", "machine", "samples", "network", "price", "from", "transformers", "hours")
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]|##\w*\[")
# Behind what the runner trims, or passes over as it has no width; `--format github` writes three commands of its own.
_COMMAND = re.compile(r"(?m)^[^\w!-/:-@\[-`{-~\n]*::(?!(?:error|warning|notice) file=[^,:]*,line=)")


class Folder(NamedTuple):
    """Names within the folder, and the strings that were chosen for it."""

    recipe: str
    good: str
    data: str
    word: str


def word(chance: random.Random) -> str:
    """A few pieces."""
    return "".join(chance.choices(_PIECES, k=chance.randint(1, 4)))


def lay(folder: Path, seed: int) -> Folder:
    """Write the files. The same seed gives the same."""
    chance = random.Random(seed)
    name, data, zero = (word(chance).replace("/", "") for _ in range(3))
    registry = {
        word(chance): {"file_name": data + ".jsonl", "columns": {word(chance): word(chance)}},
        "good": {"file_name": data + ".jsonl"},
        "mine": {"file_name": data + ".jsonl", word(chance): word(chance), "formatting": word(chance)},
    }
    rows = [
        {word(chance): word(chance), "instruction": word(chance), "input": "", "output": word(chance)}
        for _ in range(40)
    ]
    (folder / "data").mkdir()
    (folder / "data" / "dataset_info.json").write_text(json.dumps(registry), "utf-8")
    (folder / "data" / f"{data}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    (folder / f"{zero}.json").write_text(json.dumps({"zero_optimization": {"stage": word(chance)}, word(chance): 1}))
    (folder / f"{name}.yaml").write_text(_recipe(chance, f"{zero}.json", list(registry)), "utf-8")
    (folder / f"good{name}.yaml").write_text(_GOOD, "utf-8")
    return Folder(f"{name}.yaml", f"good{name}.yaml", f"data/{data}.jsonl", word(chance))


_GOOD = """\
# /// recipe
# machine: 1xa100-80g
# host_ram_gib: 200
# ///
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
dataset: good
template: qwen
cutoff_len: 1024
output_dir: saves/x
bf16: true
num_train_epochs: 1.0
"""


def _recipe(chance: random.Random, zero: str, sets: Sequence[str]) -> str:
    """A recipe of a few wrong values, each a JSON text, which YAML reads, too."""
    head = [f"# {key}: {json.dumps(word(chance))}" for key in chance.sample(_HEADER, 3)]
    wrong = {key: word(chance) for key in chance.sample(_KEYS, 4)}
    plain = dict(line.split(": ") for line in _GOOD.splitlines() if not line.startswith("#"))
    values = {**plain, "dataset": ",".join(sets), "deepspeed": zero, **wrong, word(chance): word(chance)}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items() if key != "bf16"]
    return "\n".join(["# /// recipe", *head, "# ///", *lines]) + "\n"


def commands(folder: Folder) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(what is shown, the words after `lmf-recipes`)."""
    recipe, good, data, word = folder
    for form in ("text", "json", "github", "sarif"):
        yield "check", ("check", "--format", form, "--", recipe, good, word)
    yield "check", ("check", "--diff", "--unsafe-fixes", "--", recipe)
    for form in ("text", "json"):
        for each in (recipe, good):
            yield "explain", ("explain", "--format", form, "--", each)
            yield "data", ("data", "--format", form, "--", each)
            yield "diff", ("diff", "--format", form, "--", good, each)
            yield "doctor", ("doctor", "--format", form, "--", each)
    for place in ("slurm", "skypilot", "kubernetes"):
        yield "submit --dry-run", ("submit", "--to", place, "--dry-run", "--hours", "3", "--", good, f"run_name={word}")
    yield "train --dry-run", ("train", "--dry-run", "--machine", "1xa100-80g", "--", good, f"run_name={word}")
    yield "explain", ("explain", "--", good, f"{word}=x", f"learning_rate={word}")
    yield "data", ("data", data, f"--register={word}")
    yield "data", ("data", data, f"--html={word}/x.html")
    yield "copy", ("copy", "--", "qwen3-8b-a100-lora", f"out{word}".replace("/", "") + ".yaml")
    yield "copy", ("copy", "--", word, word)
    for option in ("--machine", "--model", "--network", "--price", "--samples", "--data", "--write"):
        yield "options", ("plan", "--machine=1xa100-80g", "--model=qwen7b", f"{option}={word}")
    yield "options", (f"--{word}",)
    yield "options", ("rule", "--", word)
    yield "options", ("list", f"--model={word}")
    yield "options", (word, word)


def obeyed(output: bytes) -> str:
    """What in an output a terminal or a CI log would obey; empty where nothing is."""
    text = output.decode()
    if there := _OBEYED.search(text) or _COMMAND.search(text):
        return repr(text[max(there.start() - 60, 0) : there.end() + 20])
    return ""
