"""Recipes in a repository that holds a LLaMA-Factory are judged by that one: its release, keys, templates, formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.check.checking import check_file
from validator.run.checkout import find_checkout

PACKAGE = {
    "src/llamafactory/hparams/data_args.py": "class DataArguments:\n    use_span_masking: bool = field(\n",
    "src/llamafactory/hparams/model_args.py": 'class A:\n    flash_attn: Literal["auto", "fa4"] = field(\n',
    "src/llamafactory/extras/constants.py": 'class EngineName(StrEnum):\n    KT = "ktransformers"\n',
    "src/llamafactory/data/template.py": 'register_template(\n    name="ours",\n',
    "src/llamafactory/data/converter.py": 'DATASET_CONVERTERS = {\n    "custom_context": X,\n',
    "requirements.txt": "torch\ntransformers>=4.49.0,<=4.52.4,!=4.52.0\n",
}
RECIPE = """model_name_or_path: Qwen/Qwen3-0.6B
stage: {stage}
do_train: true
finetuning_type: lora
dataset: mine
template: {template}
output_dir: out
cutoff_len: 512
bf16: true
{more}
"""


@pytest.fixture(autouse=True)
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def checkout(version: str, folder: str = ".") -> None:
    files = {**PACKAGE, "src/llamafactory/extras/env.py": f'VERSION = "{version}"\n'}
    files["data/dataset_info.json"] = '{"mine": {"hf_hub_url": "x/y", "formatting": "custom_context"}}'
    for name, text in files.items():
        (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(text)


def errors(path: str, stage: str = "sft", template: str = "qwen3", more: str = "") -> set[str]:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(RECIPE.format(stage=stage, template=template, more=more))
    found = check_file(path, "1xa100-80g", 512.0).diagnostics
    return {each.code for each in found if each.severity.value == "error" and not each.code.startswith("PTH0")}


def test_without_one_its_keys_are_errors() -> None:
    assert errors("a.yaml", more="use_span_masking: true") >= {"SCH001"}


def test_a_fork_adds_keys_templates_and_formats() -> None:
    checkout("0.9.4")
    assert errors("examples/b.yaml", template="ours", more="use_span_masking: true") == set()
    assert errors("examples/c.yaml", template="hours", more="use_pan_masking: true") == {"SCH001", "TRA601"}


@pytest.mark.parametrize("line", ["flash_attn: fa4", "infer_backend: ktransformers", "flash_attn: x"])
def test_a_fork_adds_choices(line: str) -> None:
    checkout("0.9.5")
    assert ("SCH004" in errors("examples/a.yaml", more=line)) == line.endswith(" x")


@pytest.mark.parametrize("folder", [".", "LLaMA-Factory", "LlamaFactory"])
@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("0.9.5", {"llamafactory": "0.9.5"}),
        ("0.9.4.dev0", {"llamafactory": "0.9.4", "transformers": "4.52.4"}),
        ("0.9.3", {"llamafactory": "0.9.3", "transformers": "4.52.4"}),
        ("0.8.2", {"llamafactory": "0.9.3", "transformers": "4.52.4"}),
        ("1.4.0", {}),
    ],
)
def test_its_release_counts(version: str, fields: dict[str, str], folder: str) -> None:
    checkout(version, folder)
    found = find_checkout("configs/train.yaml")
    assert found is not None
    assert found.header_fields() == fields
    old = errors("configs/train.yaml", more="kt_optimize_rule: x\nuse_kt: true")
    assert ("SCH001" in old) == (version not in ("0.9.4", "0.9.4.dev0"))


def test_ppo_runs_in_a_checkout_of_an_earlier_release_and_may_between_two() -> None:
    for version, dies in [("0.9.3", False), ("0.9.4.dev0", False), ("0.9.4", True)]:
        checkout(version, version)
        assert ("TRA501" in errors(f"{version}/examples/ppo.yaml", stage="ppo", more="reward_model: x/y")) == dies


def test_a_checkout_outside_of_the_repository_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout("0.9.3")
    (tmp_path / "inner/.git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inner")
    assert find_checkout("train.yaml") is None


def test_a_recipe_that_names_a_release_keeps_it() -> None:
    checkout("0.9.3")
    header = '# /// recipe\n# llamafactory: "0.9.5"\n# ///\n'
    assert "TRA501" in errors("a.yaml", stage="ppo", more=f"reward_model: x/y\n{header}")
