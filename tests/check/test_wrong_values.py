"""One wrong value is one finding, at its key: what follows from it is not told again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from validator.check.checking import check_document
from validator.finding import Diagnostic
from validator.knowledge import tables
from validator.output.findings import finding_lines
from validator.recipe.recipe_file import parse_recipe, with_overrides

RECIPE = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
    "stage": "sft",
    "do_train": "true",
    "finetuning_type": "lora",
    "dataset": "alpaca_gpt4_en",
    "template": "qwen",
    "output_dir": "saves/case",
    "bf16": "true",
    "per_device_train_batch_size": "1",
    "gradient_accumulation_steps": "16",
    "learning_rate": "1.0e-4",
    "warmup_ratio": "0.03",
    "save_total_limit": "2",
    "val_size": "0.02",
    "eval_strategy": "steps",
    "eval_steps": "100",
}
FULL = {"finetuning_type": "full", "learning_rate": "1.0e-5"}
HEADER = "# /// recipe\n# machine: 8xa100-80g\n# ///\n"


def judged(lines: dict[str, str]) -> list[Diagnostic]:
    """What `check` finds in a recipe of these lines."""
    text = HEADER + "".join(f"{key}: {value}\n" for key, value in lines.items())
    return check_document(parse_recipe("x.yaml", text)).diagnostics


def found(lines: dict[str, str], sound: dict[str, str]) -> list[str]:
    """What `check` finds in a recipe, and not in a sound one."""
    known = {(each.code, each.key) for each in judged(sound)}
    new = (each for each in judged(lines) if (each.code, each.key) not in known)
    return [f"{each.code} {each.severity} {each.key}" for each in new]


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        ({"quantization_bit": "4bit"}, "SCH002 error quantization_bit"),
        ({"quantization_bit": '"4"'}, "SCH002 error quantization_bit"),
        ({"quantization_bit": "true"}, "SCH002 error quantization_bit"),
        ({"quantization_bit": "5"}, "TRA304 error quantization_bit"),
        ({"quantization_bit": "5", "quantization_type": "nf4"}, "TRA304 error quantization_bit"),
        ({"quantization_bit": "4", "double_quantization": '"yes"'}, "SCH002 error double_quantization"),
        ({"quantization_type": "banana"}, "TRA804 warning quantization_type"),
        ({"per_device_train_batch_size": "four"}, "SCH002 error per_device_train_batch_size"),
        ({"per_device_train_batch_size": "-1"}, "TRA016 error per_device_train_batch_size"),
        ({"max_steps": "1k"}, "SCH002 error max_steps"),
        ({"val_size": "a tenth"}, "SCH002 error val_size"),
        ({"val_size": "-1"}, "TRA101 error val_size"),
        ({"eval_strategy": "3"}, "SCH002 error eval_strategy"),
        ({"eval_strategy": "sometimes"}, "SCH004 error eval_strategy"),
        ({"warmup_ratio": "3%"}, "SCH002 error warmup_ratio"),
        ({"finetuning_type": "qlora", "lora_rank": "8"}, "SCH004 error finetuning_type"),
        ({"use_adam_mini": '"yes"'}, "TRA416 error use_adam_mini"),
        ({"do_predict": '"false"'}, "SCH003 error do_predict"),
        ({"use_cpu": '"false"'}, "SCH003 warning use_cpu"),
        ({"adam_beta1": "12"}, "TRA018 error adam_beta1"),
        ({"image_min_pixels": "1000000"}, "TRA012 error image_min_pixels"),
        ({"report_to": "3.5"}, "TRA008 error report_to"),
        ({"export_size": "big"}, "SCH007 note export_size"),
        ({"logging_dir": "3"}, "SCH003 warning logging_dir"),
        ({"temperature": '"hot"'}, "TRA803 note temperature"),
        ({"shift_attn": "1"}, "TRA709 warning shift_attn"),
        ({**FULL, "use_apollo": "true", "apollo_layerwise": '"false"'}, "SCH003 error apollo_layerwise"),
        ({**FULL, "use_apollo": "true", "optim": "adamw_torch", "apollo_rank": ".inf"}, "SCH002 error apollo_rank"),
        ({**FULL, "use_galore": "true", "galore_update_interval": "false"}, "SCH002 error galore_update_interval"),
    ],
)
def test_a_wrong_value_is_one_finding(lines: dict[str, str], finding: str) -> None:
    key = finding.split()[2]
    sound = {**RECIPE, **{name: value for name, value in lines.items() if name != key}}
    assert found({**RECIPE, **lines}, sound) == [finding]


def test_a_value_that_is_read_otherwise_than_meant_says_why_the_run_fails() -> None:
    (one,) = (each for each in judged({**RECIPE, "do_predict": '"false"'}) if each.key == "do_predict")
    assert 'is the text "false", which counts as true' in one.message
    assert "as it is, the run fails: `do_predict`" in one.message


def test_what_holds_for_any_right_value_is_told_beside_the_wrong_one() -> None:
    lines = {**RECIPE, "val_size": "a tenth", "fp16": "true", "per_device_train_batch_size": "four"}
    assert {each.code for each in judged(lines)} == {"SCH002", "TRA701"}


# A name of a file that is not there, in a key that nothing reads without `fsdp`: two faults
TWO_FAULTS = ("fsdp_config",)


@pytest.mark.parametrize("key", sorted({*tables.json_table("arguments")["arguments"]} - {*TWO_FAULTS}))
def test_a_value_of_the_wrong_type_is_at_most_one_finding_at_its_key(key: str) -> None:
    entry = tables.json_table("arguments")["arguments"][key]
    value = "3.5" if entry["type"] == "str" and not entry["choices"] else "banana"
    sound = {name: each for name, each in RECIPE.items() if name != key}
    new = found({**RECIPE, key: value}, sound)
    # what the recipe lacks without the key is no consequence of its value
    assert [each.split()[2] for each in new if not each.startswith("SCH001")] in ([], [key]), new


def test_a_wrong_override_is_named_as_one() -> None:
    text = "".join(f"{key}: {value}\n" for key, value in RECIPE.items())
    report = check_document(with_overrides(parse_recipe("x.yaml", text), ["quantization_bit=4bit"]))
    (one,) = (each for each in report.diagnostics if each.key == "quantization_bit")
    assert '"4bit"' in one.message
    (line,) = finding_lines(replace(report, diagnostics=[one]))
    assert line.startswith('override quantization_bit=4bit: error: `quantization_bit` is "4bit"')
    assert "write `quantization_bit: 4` [SCH002]" in line
