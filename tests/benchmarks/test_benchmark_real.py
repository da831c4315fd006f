"""benchmarks/public_files/recipes.py on made files: what it counts, and as what."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import pytest
import records
from public_files import recipes as real

RECIPE = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
dataset: of_a_stranger
template: qwen
cutoff_len: 1024
output_dir: saves/out
bf16: true
"""


def judged(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, machine: str = "") -> real.Row:
    monkeypatch.chdir(folder)
    Path("recipe.yaml").write_text(text)
    row = real.Row("1", "owner/name", "configs/sft.yaml", "0" * 40, machine, parser="ok")
    real.ours(row, Path("recipe.yaml"))
    return row


def test_what_is_not_there_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = judged(RECIPE + "deepspeed: /mnt/there/ds_z3_config.json\n", tmp_path, monkeypatch)
    assert (row.errors, row.verdict, row.reason) == ("", "fits", "")


@pytest.mark.parametrize(("name", "stage"), [("a/ds_stage3.json", 3), ("zero0.json", 0), ("ds_config.json", 2)])
def test_the_parser_gets_a_file_of_the_stage_that_the_name_tells(name: str, stage: int) -> None:
    assert json.loads(real.assumed_file(name))["zero_optimization"]["stage"] == stage


def test_the_machine_that_is_stated_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(RECIPE.replace(": lora", ": full"), tmp_path, monkeypatch, "1xrtx-4090").verdict == "exceeds"


def test_a_model_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = judged(RECIPE.replace("Qwen/Qwen2.5-7B-Instruct", "saves/mine"), tmp_path, monkeypatch)
    reason = "model not known, --base NAME names it"
    assert (row.verdict, row.judged, row.reason, row.names_model) == ("unknown", False, reason, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (RECIPE.replace("Qwen/Qwen2.5-7B-Instruct", "/path/to/your/model"), "a placeholder for a model"),
        (RECIPE.replace("Qwen/Qwen2.5-7B-Instruct", "YOUR_MODEL_PATH"), "a placeholder for a model"),
        (RECIPE.replace("Qwen/Qwen2.5-7B-Instruct", ""), "no model is written"),
        (RECIPE + "fsdp: [\n", "no YAML to LLaMA-Factory"),
    ],
)
def test_a_recipe_that_names_no_model(text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = judged(text, tmp_path, monkeypatch)
    assert (row.verdict, row.reason, row.names_model) == ("unknown", reason, False)


def test_an_error_is_false_where_the_parser_accepts_and_nothing_fails_later() -> None:
    rows = [
        real.Row("1", "a/b", "x", "", parser=parser, errors=errors)
        for parser, errors in (("ok", ""), ("ok", "TRA601"), ("ok", "CUR001"), ("ValueError: no", "SCH001"))
    ]
    assert "TRA601" in real.late()
    assert [row.errors for row in real.false_errors(rows)] == ["CUR001"]
    assert real.missed(rows) == []
    assert real.missed([real.Row("1", "a/b", "x", "", parser="ValueError: no")])


def test_bars_and_tables() -> None:
    good = real.Row("1", "a/b", "x", "", "1xa100-80g", "ran", "ok", "", "fits", "", 2, 1)
    assert all(met for _, _, met in real.scores([good]).values())
    bad = real.Row("1", "a/c", "y", "", parser="ok", errors="CUR001", verdict="unknown", reason="no model", fixed=9)
    barred = {name: met for name, (_, bar, met) in real.scores([bad]).items() if bar is not None}
    assert not any(met for name, met in barred.items() if "missed" not in name)
    text = "\n".join([real.scored([good, bad]), *real.lines([good, bad])])
    assert all(words in text for words in ("2 recipes of 2 repositories", "no model", "1xa100-80g", "MISSED"))


def test_collections_stand_side_by_side() -> None:
    now = [real.Row(name, "a/b", "x", "", parser="ok", verdict="fits") for name in ("1", "2")]
    before = [real.Row("2", "a/b", "x", "", parser="ok", verdict="unknown", reason="model not known")]
    *_, first, second = real.by_collection(now, before).strip().splitlines()
    assert first.split() == ["1", "1", "1", "100.0", "100.0", "0,", "0", "0.0"]
    assert second.split() == ["2", "1", "1", "100.0", "100.0", "0.0", "0.0", "0,", "0", "0.0"]


def test_each_folder_is_a_collection(tmp_path: Path) -> None:
    for name, owners in (("1", "aaaab"), ("2", "c")):
        (tmp_path / name).mkdir()
        rows = "".join(f"files/{each}.yaml,{owner}/x,{each}.yaml,0,train,,\n" for each, owner in enumerate(owners))
        (tmp_path / name / "index.csv").write_text(f"file,repository,path,commit,kind,machine,says\n{rows}")
    told = [
        (row.collection, row.repository, file.relative_to(tmp_path).as_posix()) for file, row in real.listed(tmp_path)
    ]
    assert told == [("1", "a/x", f"1/files/{each}.yaml") for each in range(real.MOST)] + [
        ("1", "b/x", "1/files/4.yaml"), ("2", "c/x", "2/files/0.yaml")]  # fmt: skip


def test_a_file_that_names_no_model_counts_against_us() -> None:
    good = real.Row("1", "a/b", "x", "", parser="ok", verdict="fits")
    rows = [good, good, good, real.Row("1", "a/c", "y", "", parser="no", errors="LOA002", verdict="unknown",
                                       reason="no YAML to LLaMA-Factory")]  # fmt: skip
    figures = [*real.scores(rows).values()][:2]
    assert figures == [(75.0, 90.0, False), (100.0, None, True)]


def test_no_collection_holds_what_another_has() -> None:
    rows = real.read()
    owners = [(name, {row.repository for row in real.of(name, rows)}) for name in real.collections(rows)]
    assert not [(one, other) for (one, its), (other, theirs) in combinations(owners, 2) if its & theirs]
    assert {row.collection for row in real.read(real.UNSEEN)} == set(real.collections(rows)[1:])


def test_rows_are_kept_as_they_are(tmp_path: Path) -> None:
    rows = [real.Row("1", "a/b", "x, y.yaml", "0", says='"quoted"', parser="ok", verdict="tight", findings=3, fixed=1)]
    records.write([asdict(row) for row in rows], tmp_path / "real.csv", ["click", "no-such-package"])
    assert (tmp_path / "real.csv").read_text().startswith("# click ")
    assert real.read(tmp_path / "real.csv") == rows
