"""What a file is, by what it holds: one kind each, for a name, a folder and a commit alike, and nothing false said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support.every import every

from validator.check import checking, find_files
from validator.errors import RecipeError
from validator.finding import Severity
from validator.knowledge import file_kinds, tables

KINDS = yaml.safe_load((Path(__file__).parents[1] / "fixtures" / "file_kinds.yml").read_text("utf-8"))
FILES = [(kind, number) for kind, texts in KINDS.items() for number in range(len(texts))]
JUDGED = ("recipe", "deepspeed", "accelerate", "registry")


@every(FILES)
def test_each_file_is_of_its_kind(kind: str, number: int) -> None:
    assert file_kinds.kind_of_text(KINDS[kind][number]).name == kind
    assert file_kinds.kind_of_text(KINDS[kind][number].replace("\n", "\r\n")).name == kind


@every(FILES)
def test_a_file_is_the_same_by_name_in_a_folder_and_in_a_commit(
    kind: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("file.yaml", "file.json"):
        Path(name).write_text(KINDS[kind][number], "utf-8")
        named = checking.check_file(name)
        assert find_files.find_in_folder(".") == find_files.files_to_check([name]) == [name] * (kind in JUDGED)
        if kind not in (*JUDGED, "unknown"):
            (said,) = named.diagnostics
            assert (said.code, said.severity, named.kind) == ("LOA013", Severity.NOTE, kind)
        elif kind in JUDGED:
            assert named.kind == kind
            assert named.diagnostics == checking.check_files(["."]).files[0].diagnostics
        Path(name).unlink()


def test_every_kind_of_the_table_has_a_file_here_or_says_what_to_do() -> None:
    table = tables.yaml_table("file_kinds")
    for name in table:
        if name not in (*JUDGED, "advice"):
            assert table["advice"][table[name]["advice"]]
    assert {*KINDS} - {*table} == {"unknown"}


SCRIPTS = {
    "llamafactory-cli train a.yaml": "trains `a.yaml`, which is not judged; check that: `lmf-recipes check a.yaml`",
    "llamafactory-cli train \\\n  conf/b.yml \\\n  learning_rate=1e-5": "trains `conf/b.yml`",
    "torchrun --nproc_per_node 8 src/train.py c.yaml": "trains `c.yaml`",
    "# llamafactory-cli train old.yaml\nlmf train new.yaml": "trains `new.yaml`",
    'llamafactory-cli train "$CONFIG"': "check the recipe (.yaml) that it trains with",
    "llamafactory-cli train --stage sft \\\n --do_train \\\n --lora_rank 8\necho --not --these": "with 3 options",
    "python src/train_bash.py --stage sft": "with one option",
    "llamafactory-cli train x --flag_of_no_recipe": "with one option",
    "echo done": "check the recipe",
}


@every(SCRIPTS)
def test_a_script_says_what_it_trains(command: str) -> None:
    kind = file_kinds.kind_of_text(f"#!/bin/bash\n{command}\n")
    assert kind.name == "shell"
    assert SCRIPTS[command] in kind.why_not_judged


def test_a_file_of_another_kind_is_no_recipe_for_any_command(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    for kind in ("axolotl", "board", "v1", "shell", "registry", "accelerate", "deepspeed"):
        path.write_text(KINDS[kind][0], "utf-8")
        with pytest.raises(RecipeError, match="not a recipe; "):
            file_kinds.require_recipe(str(path))


def test_a_file_with_many_rows_takes_no_time() -> None:
    rows = json.dumps({"rows": [{"a": "b" * 50}] * 20_000})
    assert file_kinds.kind_of_text(rows).name == "unknown"
    assert file_kinds.kind_of_text("a:\n" + "  - b\n" * 100_000).name == "unknown"
