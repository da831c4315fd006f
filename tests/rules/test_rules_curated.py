"""CUR: file names and header blocks of the catalogue, and nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.every import every

from validator.check import checking
from validator.knowledge import devices
from validator.recipe.recipe_file import Document, load_recipe, parse_recipe, with_overrides
from validator.run import recipe_labels
from validator.run.settings import RunSettings, resolve

ROOT = Path(__file__).parents[2]
HEADER = {"summary": "x", "machine": "8xa100-80g", "host_ram_gib": 1024, "samples": 20000}


def resolved(machine: str, path: str = "recipes/x.yaml", **values: Any) -> RunSettings:
    body = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", **values}
    return resolve(Document(path, "", body, header={**HEADER, "machine": machine}))


@pytest.mark.parametrize(
    ("machine", "values", "name"),
    [
        ("8xascend-910b-64g", {}, "qwen7b-910b-lora"), ("8xa100-80g", {}, "qwen7b-a100-lora"),
        ("2xa100-40g", {}, "qwen7b-a100-40gx2-lora"),
        ("1xa100-80g", {}, "qwen7b-a100x1-lora"), ("2x8xa100-80g", {"finetuning_type": "full"}, "qwen7b-a100x16-full"),
        ("1xrtx-4090", {"quantization_bit": 4}, "qwen7b-4090x1-qlora"),
        ("8xa100-80g", {"stage": "dpo"}, "qwen7b-a100-lora-dpo"),
        ("8xa100-80g", {"model_name_or_path": "Qwen/Qwen3-8B"}, "qwen3-8b-a100-lora"),
        ("8xa100-80g", {"model_name_or_path": "x/y"}, None),
    ],
)  # fmt: skip
def test_name(machine: str, values: dict[str, Any], name: str | None) -> None:
    assert recipe_labels.catalogue_name(resolved(machine, **values)) == name


def codes(path: str, header: dict[str, Any], **values: Any) -> set[str]:
    body = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "bf16": True, **values}
    found = checking.check_document(Document(path, "", body, header=header)).diagnostics
    return {d.code for d in found if d.code.startswith(("CUR", "LOA"))}


def complete() -> dict[str, Any]:
    body = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "bf16": True}
    found = recipe_labels.predicted_memory(resolve(Document("recipes/x.yaml", "", body, header=HEADER)))
    assert found is not None
    return {**HEADER, "predicted": found}


def test_a_recipe_in_order_has_no_finding() -> None:
    assert codes("recipes/qwen7b-a100-lora.yaml", complete()) == set()
    assert codes("recipes/qwen7b-a100-lora-long.yaml", complete()) == set()


@pytest.mark.parametrize(
    ("name", "change", "values", "code"),
    [
        ("qwen7b-lora", {}, {}, "CUR001"), ("qwen7b-a100-loras", {}, {}, "CUR001"),
        ("qwen7b-a100-lora", {"summary": None}, {}, "CUR002"), ("qwen7b-a100-lora", {"predicted": {}}, {}, "CUR003"),
        ("qwen7b-a100-lora", {}, {"max_samples": 10}, "CUR004"),
        ("qwen7b-a100-lora", {"sample": 3}, {}, "LOA010"),
    ],
)  # fmt: skip
def test_each_finding(name: str, change: dict[str, Any], values: dict[str, Any], code: str) -> None:
    assert codes(f"recipes/{name}.yaml", {**complete(), **change}, **values) == set(code.split())


def test_other_folders_and_files_without_a_block_follow_no_convention() -> None:
    assert codes("elsewhere/x.yaml", {"machine": "8xa100-80g"}, max_samples=10) == set()
    assert codes("recipes/x.yaml", {}, max_samples=10) == set()


def test_other_repositories_follow_no_convention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "llamafactory-recipes"\n')
    path = str(tmp_path / "recipes" / "qwen7b-a100-lora.yaml")
    assert codes(path, complete(), max_samples=10) == set()
    monkeypatch.setattr("validator.rules.header_block.catalogue_root", lambda: tmp_path)
    assert codes(path, complete(), max_samples=10) == {"CUR004"}


def test_a_drifted_prediction_is_given_as_the_line_to_paste() -> None:
    body = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "bf16": True}
    one = Document("recipes/qwen7b-a100-lora.yaml", "", body, header={**HEADER, "predicted": {"device_gib": 1.0}})
    (found,) = [d for d in checking.check_document(one).diagnostics if d.code == "CUR003"]
    pasted = parse_recipe("x.yaml", found.message.split("`")[1]).values["predicted"]
    assert pasted == complete()["predicted"]


def test_hours_are_stated_and_judged_elsewhere() -> None:
    body = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "bf16": True, "do_train": True}
    stated = recipe_labels.stated_prediction(resolve(Document("recipes/x.yaml", "", body, header=HEADER)))
    assert stated
    low, high = stated["hours"]
    assert 0 < low < high
    one = codes(
        "recipes/qwen7b-a100-lora.yaml", {**HEADER, "predicted": {**stated, "hours": [1.0, 2.0]}}, do_train=True
    )
    assert one == set()
    drifted = {**HEADER, "predicted": {**stated, "device_gib": 1.0}}
    document = Document("recipes/qwen7b-a100-lora.yaml", "", body, header=drifted)
    (found,) = [d for d in checking.check_document(document).diagnostics if d.code == "CUR003"]
    assert parse_recipe("x.yaml", found.message.split("`")[1]).values["predicted"] == stated


@every(devices.device_ids())
def test_a_label_means_its_device_again_and_is_no_longer_than_its_id(device: str) -> None:
    assert devices.find_device(recipe_labels.device_label(device))[0].id == device
    assert len(recipe_labels.device_label(device)) <= len(device)


@pytest.mark.parametrize(("machine", "overrides"), [("4xa100-80g", ()), (None, ("max_samples=10", "lora_rank=64"))])
def test_a_run_that_the_command_line_changes_is_not_the_catalogues(
    machine: str | None, overrides: tuple[str, ...]
) -> None:
    document = load_recipe(str(ROOT / "recipes/qwen32b-910b-lora.yaml"))
    found = checking.check_document(with_overrides(document, overrides), machine=machine).diagnostics
    assert not [d for d in found if d.code.startswith(("CUR", "LOA"))]
