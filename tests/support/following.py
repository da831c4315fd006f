"""Advice followed to the letter: a recipe in a fresh folder, the commands run, the settings written into its text."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
from click.testing import CliRunner

from validator.advise.changes import Change
from validator.check import checking
from validator.commands import copy
from validator.finding import FileReport, Severity
from validator.levers import options, search
from validator.physics.estimate import GIB
from validator.recipe.recipe_file import load_recipe
from validator.run.launch_command import Launch
from validator.run.prediction import predict
from validator.run.settings import RunSettings

BODY = """# /// recipe
# machine: none
# host_ram_gib: none
# ///
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: {method}
lora_target: all
template: qwen
cutoff_len: 2048
output_dir: saves/x
bf16: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
"""
Machine = tuple[str, float]
Problem = tuple[str, str | None]


def recipe(machine: str, method: str, ram: float = 1024, more: str = "") -> str:
    """A recipe for a machine with so much host memory, with more settings, one a line."""
    text = targeted(BODY.format(method=method), (machine, ram))
    for setting in more.splitlines():
        text = written(text, setting)
    return text


def targeted(text: str, machine: Machine) -> str:
    """The recipe for another machine."""
    text = re.sub(r"(?m)^# machine:.*", f"# machine: {machine[0]}", text)
    return re.sub(r"(?m)^# host_ram_gib:.*", f"# host_ram_gib: {machine[1]:g}", text)


def written(text: str, setting: str) -> str:
    """The recipe with a line of YAML in the place of that key, or at its end."""
    key = setting.partition(":")[0]
    text, number = re.subn(rf"(?m)^{key}:.*\n((?:[ \t]+.*\n)*)", lambda _: f"{setting}\n", text)
    return text if number else f"{text.rstrip()}\n{setting}\n"


def problems(report: FileReport, *severities: Severity) -> set[Problem]:
    """What stands against a run but memory, which is promised, this repository's conventions, and data sets, which no
    change touches: that they are not here is said with the DeepSpeed file where both are missing."""
    left = ("FIT", "CUR", "PTH1")
    return {(d.code, d.key) for d in report.diagnostics if d.severity in severities and not d.code.startswith(left)}


def promises(
    folder: Path, text: str, search: Callable[[RunSettings], list[Change]], *severities: Severity
) -> tuple[RunSettings, list[Change]]:
    """What is advised to a recipe that lies alone in a folder; each of it is followed, and true. `severities` are those
    of which it may bring no new problem."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(text, "utf-8")
    with chdir(folder):
        report, before = checking.check_recipe(load_recipe("recipe.yaml"))
        advised = search(before)
    for number, change in enumerate(advised):
        _follow(folder / str(number), text, change)
        with chdir(folder / str(number)):
            after, job = checking.check_recipe(load_recipe("recipe.yaml"))
            assert problems(after, *severities) <= problems(report, *severities), change
            is_as_promised(job, change)
            layerwise = change.set.get("use_galore") or change.set.get("use_apollo")
            assert layerwise or job.batch.effective_batch == before.batch.effective_batch
    return before, advised


def _follow(folder: Path, text: str, change: Change) -> None:
    folder.mkdir()
    for command in change.first:
        program, name, *words = shlex.split(command)
        assert (program, name) == ("lmf-recipes", "copy")
        with chdir(folder):
            assert CliRunner().invoke(copy.command, words).exit_code == 0
    for setting in change.settings():
        text = written(text, setting)
    (folder / "recipe.yaml").write_text(text, "utf-8")


def is_as_promised(after: RunSettings, change: Change) -> None:
    """The job after the change needs what was promised."""
    assert predict(after).verdict_at_longest == change.verdict, change
    memory = predict(after).device_memory
    assert memory, change
    host_memory = predict(after).host_memory
    assert host_memory, change
    assert change.device_gib == pytest.approx(memory.expected / GIB, abs=0.005), change
    assert change.host_gib == pytest.approx(host_memory.expected / GIB, abs=0.005), change
    variables = Launch(after).start_env
    assert (change.environment or {}).items() <= variables.items()


def sentences(for_free_memory: bool) -> set[str]:
    """Every text that an option can say: of those that use free memory, or of the others."""
    uses = {lever.__name__ for lever in search.USES_OF_MEMORY} | {options._sharding_gain.__name__}
    tree = ast.parse(Path(options.__file__).read_text("utf-8"))
    chosen = [
        node for node in tree.body if (isinstance(node, ast.FunctionDef) and node.name in uses) == for_free_memory
    ]
    nodes = [node for top in chosen for node in ast.walk(top)]
    documented = (ast.FunctionDef, ast.ClassDef)
    docs = {ast.get_docstring(node, clean=False) for node in [tree, *nodes]
            if isinstance(node, (ast.Module, *documented))}  # fmt: skip
    said = {str(node.value) for node in nodes if isinstance(node, ast.Constant) and " " in str(node.value)}
    return said - docs - {"; ", ", ", ": "}
