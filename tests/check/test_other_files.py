"""Accelerate files, registries and recipes in JSON, checked by their names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from validator import api
from validator.check import checking, find_files
from validator.check.autofix import CheckOptions, FixRequest, fix_subject
from validator.finding import Severity

RUN = {
    "model_name_or_path": "Qwen/Qwen3-0.6B", "stage": "sft", "do_train": True, "finetuning_type": "lora",
    "dataset_dir": "ONLINE", "dataset": "x/y", "template": "qwen3", "output_dir": "out", "warmup_ratio": 0.03,
    "val_size": 0.1, "eval_strategy": "steps", "bf16": True, "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 1, "gradient_accumulation_steps": 8,
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(name: str, text: str, *options: object) -> list[str]:
    """Code, severity, line and column of each finding."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, "utf-8")
    report = checking.check_file(name, *options)  # type: ignore[arg-type]
    return [f"{each.code} {each.severity.value} {each.line}:{each.column}" for each in report.diagnostics]


ENTRIES: dict[str, tuple[dict[str, object], list[str]]] = {
    "hub": ({"hf_hub_url": "x/a"}, []),
    "pairs": ({"hf_hub_url": "x/a", "ranking": True, "columns": {"prompt": "p", "chosen": "c", "rejected": "r"}}, []),
    "rated": ({"ms_hub_url": "x/a", "columns": {"prompt": "p", "response": "r", "kto_tag": "t"}}, []),
    "text": ({"file_name": "text.jsonl", "columns": {"prompt": "text"}}, []),
    "no source": ({"formatting": "sharegpt", "columns": {"messages": "m"}, "tags": {}}, ["PTH104", "PTH111"]),
    "misspelt": ({"hf_hub_url": "x/a", "colums": {"prompt": "p"}}, ["PTH115"]),
    "tags": ({"hf_hub_url": "x/a", "formatting": "sharegpt", "tags": {"role_tag": "role"}}, ["PTH111"]),
    "formatting": ({"hf_hub_url": "x/a", "formatting": "ShareGPT"}, ["PTH108"]),
    "columns": ({"file_name": "text.jsonl"}, ["PTH110"]),
    "type": ({"file_name": "text.jsonl", "columns": ["text"]}, ["PTH110", "PTH118"]),
    "absent": ({"file_name": "absent.json"}, ["LOA013"]),
    "split": ({"file_name": "text.jsonl", "columns": {"prompt": "text"}, "split": "test"}, ["PTH112"]),
    "empty": ({"file_name": "empty.jsonl"}, ["PTH113"]),
    "suffix": ({"file_name": "rows.xlsx"}, ["PTH106"]),
}


@pytest.mark.parametrize(("entry", "codes"), ENTRIES.values(), ids=ENTRIES)
def test_entries_of_a_registry_alone(entry: dict[str, object], codes: list[str]) -> None:
    Path("data").mkdir()
    Path("data/text.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    Path("data/empty.jsonl").touch()
    Path("data/rows.xlsx").write_bytes(b"PK\x03\x04")
    text = json.dumps({"usual": {"hf_hub_url": "x/z"}, "mine": entry}, indent=2)
    assert sorted(each[:6] for each in found("data/dataset_info.json", text)) == codes


def test_findings_of_an_entry_are_at_its_place() -> None:
    text = '{\n  "a": {"hf_hub_url": "x/a"},\n  "b": {"hf_hub_url": "x/b", "formating": "sharegpt"}\n}\n'
    assert found("dataset_info.json", text) == ["PTH115 warning 3:30"]


def test_a_comment_in_a_registry_is_no_entry() -> None:
    assert found("dataset_info.json", '{"_comment": "mine", "a": {"hf_hub_url": "x/a"}}') == []
    assert found("dataset_info.json", '{"b": "b.json", "a": {"hf_hub_url": "x/a"}}') == ["PTH104 error 1:7"]


def test_a_broken_registry_and_one_by_another_name() -> None:
    assert found("dataset_info.json", '{"a": {"file_name": "a.json"},}') == ["PTH102 error 1:31"]
    assert found("sets.json", '{"a": {"file_name": "a.json"}}') == ["LOA013 note 1:1"]


REGISTRIES = {
    "formatting": ('{"a": {"file_name": "a.json", "formatting": "sharegptt"}}', ["LOA013", "PTH108"]),
    "comma": ('{\n  "a": {\n    "file_name": "a.json",\n  }\n}\n', ["PTH102"]),
    "comment": ('{"a": {"file_name": "a.json"}} // mine', ["PTH102"]),
    "half": ('{"a": {"file_name": "a.json"', ["PTH102"]),
    "mark": ('\ufeff{"a": {"file_name": "a.json"}}', ["PTH102"]),
    "no braces": ('  "a": {"file_name": "a.json"}\n', ["PTH102"]),
    "yaml": ("a: {file_name: a.json}\n", ["PTH102"]),
    "list": ('[{"a": {"file_name": "a.json"}}]', ["PTH102"]),
    "nothing": ("", ["PTH102"]),
    "other key": ('{"a": {"file": "a.json", "formatting": "alpaca"}}', ["PTH104"]),
    "no source": ('{"a": {"formatting": "sharegpt"}}', ["PTH104"]),
    "many comments": ('{"_1": "", "_2": "", "_3": "", "a": {"formatting": "sharegpt"}}', ["PTH104"]),
    "saved by datasets": ('{"builder_name": "json", "features": {"columns": {}}, "splits": {}}', []),
    "of another program": ('{"name": "x", "licences": []}', []),
}


@pytest.mark.parametrize(("text", "codes"), REGISTRIES.values(), ids=REGISTRIES)
def test_a_commit_has_its_registry_judged_though_no_recipe_names_it(text: str, codes: list[str]) -> None:
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text(text, "utf-8")
    judged = find_files.files_to_check(["data/dataset_info.json"])
    assert sorted({each.code for path in judged for each in checking.check_file(path).diagnostics}) == codes


ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: {}\nnum_processes: 8\n{}"


@pytest.mark.parametrize(
    ("kind", "more", "wanted"),
    [
        ("FSDP", "fsdp_config:\n  fsdp_version: 2\n", []),
        ("DEEPSPEED", "deepspeed_config:\n  zero_stage: 3\n", []),
        ("MULTI_GPU", "mixed_precision: bf16\n", []),
        ("'NO'", "use_cpu: false\n", []),
        ("FSDP", "fsdp_config:\n  fsdp_verson: 2\n", ["PAR303 warning 5:3"]),
        ("FSDP", "fsdp_conf: {}\n", ["PAR301 error 4:1"]),
        ("FSPD", "", ["PAR301 error 2:19"]),
        ("FSDP", "mixed_precision: bfloat\n", ["PAR302 error 4:18"]),
    ],
)
def test_an_accelerate_file_alone(kind: str, more: str, wanted: list[str]) -> None:
    assert found("fsdp.yaml", ACCELERATE.format(kind, more)) == wanted


def test_an_accelerate_file_in_json() -> None:
    content = {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"fsdp_version": 3}}
    assert found("fsdp.json", json.dumps(content)) == ["PAR302 error 1:82"]


def test_a_recipe_in_json_is_judged_in_full() -> None:
    wrong = {**RUN, "learning_rat": 1e-4, "cutoff_len": "2048"}
    text = json.dumps(wrong, indent=1)
    codes = found("run.json", text, "1xa100-80g")
    assert codes == ["LOA007 error 1:1", "SCH001 error 17:2", "SCH002 error 18:16"]
    assert found("run.yaml", text, "1xa100-80g") == codes[1:]
    report = checking.check_file("run.json", "1xa100-80g")
    assert report.verdict == "fits"
    assert "rename the file to `run.yaml`" in report.diagnostics[0].message


def test_an_earlier_release_reads_a_recipe_in_json() -> None:
    block = '# /// recipe\n# llamafactory: "<0.9.5"\n# ///\n'  # which OmegaConf reads as a comment
    assert "LOA007 error 1:1" not in found("run.json", block + json.dumps(RUN, indent=1), "1xa100-80g")


def test_a_broken_range_of_releases_in_a_recipe_in_json() -> None:
    block = "# /// recipe\n# llamafactory: none\n# ///\n"
    assert "LOA007 error 1:1" in found("run.json", block + json.dumps(RUN, indent=1), "1xa100-80g")


@pytest.mark.slow
@pytest.mark.real
def test_llamafactory_reads_the_renamed_file_and_not_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    from llamafactory.hparams.parser import read_args

    for name in ("run.json", "run.yaml"):
        Path(name).write_text(json.dumps(RUN, indent="\t"))
    monkeypatch.setattr(sys, "argv", ["llamafactory-cli", "run.yaml"])
    assert read_args() == RUN
    monkeypatch.setattr(sys, "argv", ["llamafactory-cli", "run.json"])
    with pytest.raises(AttributeError, match="'PosixPath' object has no attribute 'read'"):
        read_args()


def test_fixes_of_a_recipe_in_json_write_json() -> None:
    wrong = {"learning_rat": 1e-4, **RUN, "cutoff_len": "2048", "ddp_timeout": 180000000, "lora_target": "all"}
    wrong["finetuning_type"] = "LORA"
    Path("run.json").write_text(json.dumps(wrong, indent=1))
    request = FixRequest(CheckOptions("1xa100-80g", None, None), unsafe=True, diff=False)
    (fixed,) = fix_subject("run.json", request, set())
    after = json.loads(fixed.after)
    assert (after["learning_rate"], after["cutoff_len"], after["finetuning_type"]) == (1e-4, 2048, "lora")
    assert [each.code for each in fixed.report.diagnostics if each.severity is Severity.ERROR] == ["LOA007"]


def test_other_files_stay_when_fixes_are_asked_for() -> None:
    Path("fsdp.yaml").write_text(ACCELERATE.format("FSDP", ""))
    request = FixRequest(CheckOptions(None, None, None), unsafe=True, diff=False)
    (fixed,) = fix_subject("fsdp.yaml", request, set())
    assert (fixed.changed, fixed.report.kind) == (False, "accelerate")


def test_the_python_interface_judges_a_file_as_what_it_holds() -> None:
    Path("fsdp.yaml").write_text(ACCELERATE.format("FSDP", ""))
    Path("run.json").write_text(json.dumps(RUN))
    assert api.check("fsdp.yaml").kind == "accelerate"
    assert api.check("run.json", machine="1xa100-80g").verdict == "fits"
    assert api.explain("run.json", machine="1xa100-80g").verdict == "fits"
    with pytest.raises(api.RecipeError, match="is an Accelerate file, not a recipe"):
        api.explain("fsdp.yaml", machine="1xa100-80g")
