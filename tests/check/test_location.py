"""A fault is shown in the file where it lies, whichever way that file is reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import cases

from validator.check import checking
from validator.check.locate import Locations
from validator.finding import Diagnostic, Place
from validator.recipe.recipe_file import Document, parse_recipe
from validator.rules import all_rules

RECIPE = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
learning_rate: 1.0e-4
dataset: {dataset}
template: qwen
output_dir: saves/x
{more}
"""
WRONG = {"zero_optimization": {"stage": 2, "overlap_com": True}, "train_batch_size": "auto"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def findings(code: str, more: str = "", dataset: str = "x", folder: str = "") -> list[Diagnostic]:
    Path("recipe.yaml").write_text(RECIPE.format(dataset=dataset, more=more))
    return [d for d in checking.check_file(f"{folder}recipe.yaml").diagnostics if d.code == code]


def where(diagnostic: Diagnostic) -> tuple[str | None, int, int]:
    return diagnostic.path, diagnostic.line, diagnostic.column


@pytest.mark.parametrize("code", [code for code in all_rules.all_codes() if code.startswith("PAR1")])
def test_a_deepspeed_file_says_the_same_by_itself_and_through_a_recipe(code: str) -> None:
    def said(path: str) -> set[tuple[str, int, int]]:
        diagnostics = checking.check_file(path).diagnostics
        return {(d.code, d.line, d.column) for d in diagnostics if d.code.startswith("PAR1") and d.code != "PAR106"}

    for case in cases.read():
        if case.code == code:
            with cases.laid_out(case):
                for name in case.files:
                    if name.endswith(".json") and name in case.files[case.path].decode():
                        assert said(name) == said(case.path), case.name


def test_in_a_mapping_of_the_recipe() -> None:
    (inline,) = findings("PAR102", f"deepspeed: {json.dumps(WRONG)}")
    (block,) = findings("PAR102", "deepspeed:\n  zero_optimization:\n    stage: 2\n    overlap_com: true")
    assert where(inline) == (None, 8, 47)
    assert where(block) == (None, 11, 5)
    assert inline.key == block.key == "deepspeed"
    assert inline.related == block.related == ()


def test_in_a_json_text_of_the_recipe() -> None:
    (text,) = findings("PAR102", f"deepspeed: '{json.dumps(WRONG)}'")
    assert where(text) == (None, 8, 12)


def test_in_a_file_that_the_recipe_names() -> None:
    Path("zero.json").write_text(json.dumps(WRONG, indent="\t"))
    (one,) = findings("PAR102", "deepspeed: zero.json")
    assert where(one) == ("zero.json", 4, 3)
    assert one.related == (("recipe.yaml", 8, 12, "named"),)
    assert one.key == "deepspeed"


def test_a_path_is_shown_from_the_working_directory_where_it_lies_in_that(tmp_path: Path) -> None:
    other = tmp_path.parent / "other.json"
    other.write_text(json.dumps(WRONG))
    Path("zero.json").write_text(json.dumps(WRONG))
    assert findings("PAR102", f"deepspeed: {tmp_path / 'zero.json'}")[0].path == "zero.json"
    assert findings("PAR102", f"deepspeed: {other}")[0].path == str(other)


def test_a_setting_of_the_command_line_has_no_place_in_the_recipe() -> None:
    from validator.recipe.recipe_file import with_overrides

    Path("zero.json").write_text(json.dumps({**WRONG, "gradient_clipping": 2.0}))
    document = with_overrides(parse_recipe("x.yaml", RECIPE.format(dataset="x", more="")), ["deepspeed=zero.json"])
    (one,) = [d for d in checking.check_document(document).diagnostics if d.code == "PAR001"]
    assert one.path == "zero.json"
    assert one.related == ()


def test_what_a_value_contradicts_is_related() -> None:
    Path("zero.json").write_text(json.dumps({"optimizer": {"type": "Adam", "params": {"lr": 1e-5}}}, indent=1))
    (one,) = [d for d in findings("PAR001", "deepspeed: zero.json") if "learning_rate" in d.message]
    assert where(one) == ("zero.json", 5, 10)
    assert one.related == (("recipe.yaml", 8, 12, "named"), ("recipe.yaml", 4, 16, "learning_rate set"))


def test_in_a_registry_in_the_recipe_and_a_name_in_a_list() -> None:
    (one,) = findings("PTH104", 'dataset_dir: {x: {"a": 1}}')
    assert where(one) == (None, 8, 18)
    (two,) = findings("PTH103", "dataset_dir: {x: {file_name: y}}", dataset="[x, z]")
    assert where(two) == (None, 5, 14)


@pytest.mark.parametrize("name", ["fsdp.json", "fsdp.yaml"])
def test_in_settings_of_other_kinds(name: str) -> None:
    Path("x.yaml").write_text("a:\n  b: [1, {c: 2}]\n")
    place = Place(("a", "b", 1, "c"), "x.yaml", "a")
    assert Locations(Document("recipe.yaml")).position(place) == (2, 14)
    Path(name).write_text('{"fsdp_min_num_params": 1,\n "transformer_layer_cls_to_wrap": "X"}')
    (one,) = findings("PAR015", f"fsdp: full_shard auto_wrap\nfsdp_config: {name}")
    assert where(one) == (name, 1, 25)


def test_an_unreadable_file_is_blamed_at_its_top() -> None:
    Path("zero.json").write_bytes(b"\xff\xfe")
    (one,) = findings("PTH003", "deepspeed: zero.json")
    assert where(one) == ("zero.json", 1, 1)
