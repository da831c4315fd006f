"""Numbers outside of what LLaMA-Factory can work with: the ends of each range (TRA018), and for every key that takes a
number those that are no number to train with. What LLaMA-Factory does with each was seen in real runs
(validator/data/values.json)."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conformity import values as harness
from conformity.report import lay_out
from support.real_parser import Parser

from validator.check import checking
from validator.commands import check
from validator.knowledge import tables
from validator.recipe.recipe_file import Document, load_recipe, with_overrides
from validator.rules import training_arguments

VALUES: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "sft", "do_train": True, "do_eval": True,
    "finetuning_type": "lora", "template": "qwen", "output_dir": "saves/x", "bf16": True, "optim": "adamw_torch",
}  # fmt: skip
# What makes a run read the key. Generation is asked for by `predict_with_generate`.
READ: dict[str, dict[str, Any]] = {
    **{key: {"predict_with_generate": True, "do_sample": True} for key in ("temperature", "top_p", "top_k")},
    **{
        key: {"predict_with_generate": True}
        for key in (
            "eval_num_beams", "num_beams", "generation_num_beams", "generation_max_length", "repetition_penalty",
        )
    },
    **{
        key: {"enable_torch_profiler": True}
        for key in ("profiler_active_steps", "profiler_wait_steps", "profiler_warmup_steps", "profiler_repeat")
    },
    **{key: {"use_apollo": True, "finetuning_type": "full"} for key in ("apollo_rank", "apollo_scale")},
    "oft_block_size": {"finetuning_type": "oft"},
    "adam_epsilon": {"finetuning_type": "full"},
    "export_quantization_bit": {"export_quantization_dataset": "x"},
}  # fmt: skip
MACHINE = "8xa100-80g"
# As they are written, with their kinds in values.json. The conformity benchmark has numbers below zero and zero.
ODD = {
    ".nan": "nan", ".inf": "inf", "-.inf": "-inf", "1e308": "huge", "true": "true", "banana": "text", "-1": "", "0": ""
}  # fmt: skip
_ARGUMENTS = tables.json_table("arguments")["arguments"]
NUMERIC = [
    key
    for key, entry in _ARGUMENTS.items()
    if {"int", "float"} & {*entry["type"].split("|")} and harness.PAIR in entry.get("in", [harness.PAIR])
]


def refused(key: str, value: float) -> bool:
    document = Document("x.yaml", "", {**VALUES, **READ.get(key, {}), key: value})
    found = checking.check_document(document, MACHINE, None).diagnostics
    return any(each.code == "TRA018" and f"`{key}`" in each.message for each in found)


@pytest.mark.parametrize("key", training_arguments._RANGES)
def test_the_lowest_value_of_a_range_is_admitted_and_the_next_below_is_not(key: str) -> None:
    low, end = training_arguments._RANGES[key].low, training_arguments._RANGES[key].end
    below = low - 1 if isinstance(low, int) else math.nextafter(low, -1)
    assert (refused(key, low), refused(key, below)) == (False, True)
    if end < math.inf:
        assert refused(key, end)


def outcome(key: str, kind: str) -> str:
    """The letter of values.json: p, d, m, t, s, e, v, h and n fail, "." runs."""
    table = tables.json_table("values")
    return str(table["outcomes"][key][table["kinds"].index(kind)]) if kind else "?"


def written(key: str, **more: str) -> str:
    """A recipe of the conformity benchmark, which reads the key. JSON is YAML."""
    settings = {**harness.context(key), "model_name_or_path": "model"}
    lines = {name: json.dumps(value) for name, value in settings.items()} | more
    return "".join(f"{name}: {value}\n" for name, value in lines.items())


def answer(recipe: str) -> list[tuple[str, str]]:
    """Severity and message of what `check` finds, as its JSON has them."""
    result = CliRunner().invoke(check.command, [recipe, "--machine", "1xcpu", "--format", "json"])
    assert result.exit_code in (0, 1), result.output[-2000:]
    (file,) = json.loads(result.stdout)["files"]
    return [(each["severity"], each["message"]) for each in file["diagnostics"]]


@pytest.mark.sample(one_in=12, whole_for=["validator/rules/recipe_schema.py", "validator/data/values.json"])
@pytest.mark.parametrize("key", NUMERIC)
def test_what_no_run_can_train_with_is_refused_and_nothing_else(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the file and as an override alike; what LLaMA-Factory goes on with is told without an error."""
    lay_out(tmp_path, None)
    monkeypatch.chdir(tmp_path)
    Path("sound.yaml").write_text(written(key))
    sound = answer("sound.yaml")
    for text, kind in ODD.items():
        Path("recipe.yaml").write_text(written(key, **{key: text}))
        found, overridden = answer("recipe.yaml"), with_overrides(load_recipe("sound.yaml"), [f"{key}={text}"])
        same = checking.check_document(overridden, "1xcpu").diagnostics
        assert sorted((each.severity, each.message) for each in same) == sorted(found), text
        errors = [each for each in found if each[0] == "error" and each not in sound]
        if (letter := outcome(key, kind)) in "pdmtsevhn":
            assert errors, (text, letter)
        elif letter == ".":
            assert errors == [], text
            named = [each for each in found if f"`{key}" in each[1] and each not in sound]
            assert named or kind not in harness.NUMBERS, text


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.sample(one_in=20, whole_for=["release/constraints.txt"], together=True)
@pytest.mark.parametrize("key", NUMERIC)
def test_what_the_real_parser_refuses_is_known(key: str, parser: Parser, tmp_path: Path) -> None:
    lay_out(tmp_path, None)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(written(key))
    if "error" in parser(tmp_path, recipe)[0] or key.startswith("warmup_"):
        pytest.skip("refused anyway, or asked by the test itself for the steps of its warm-up")
    for text, kind in ODD.items():
        (answer,) = parser(tmp_path, shlex.join([str(recipe), f"{key}={text}"]))
        if kind and (letter := outcome(key, kind)) not in "-?":
            assert ("error" in answer) == (letter == "p"), (text, letter, answer.get("error"))
