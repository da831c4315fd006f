"""A file whose columns have unusual names, from the first refusal to a recipe; and data that cannot be trained on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from validator.cli import group

CSV = "frage,antwort,quelle\n" + "".join(f"Wie geht {at}?,So geht es {at} Mal.,buch\n" for at in range(30))
PLAN = ["plan", "--model", "qwen3-8b", "--machine", "1xa100-80g"]
COPY = ["copy", "qwen3-8b-a100x1-lora", "copied.yaml"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faq.csv").write_text(CSV, "utf-8")
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(group, list(words))


def said(*words: str) -> str:
    found = run(*words)
    assert found.exit_code
    return " ".join(f"{found.output} {found.exception}".split())


@pytest.mark.parametrize(
    "words", [["data", "faq.csv"], ["data", "faq.csv", "--register", "faq"], [*PLAN, "--data", "faq.csv"],
              [*COPY, "--data", "faq.csv"]],
)  # fmt: skip
def test_the_option_that_is_named_works(words: list[str]) -> None:
    option = re.search(r"`--columns (\S+)`", said(*words))
    assert option is not None
    assert option[1] == "prompt=frage,response=antwort"
    assert run(*words, "--columns", option[1]).exit_code == 0


@pytest.mark.parametrize("where", ["data", "."])
@pytest.mark.parametrize("name", ["faq", "mine"])
def test_an_entry_of_the_registry_is_used_from_then_on(where: str, name: str) -> None:
    columns = {"prompt": "frage", "response": "antwort"}
    Path(where).mkdir(exist_ok=True)
    entry = {name: {"file_name": "faq.csv" if where == "." else "../faq.csv", "columns": columns}}
    Path(where, "dataset_info.json").write_text(json.dumps({"other": {"hf_hub_url": "a/b"}, **entry}), "utf-8")
    assert f"{name}: 30 rows" in run("data", "faq.csv").output
    assert run(*PLAN, "--data", "faq.csv", "--write", "planned.yaml").exit_code == 0
    assert run(*COPY, "--data", "faq.csv").exit_code == 0
    for recipe in ("planned.yaml", "copied.yaml"):
        assert f"\ndataset: {name}\n" in Path(recipe).read_text("utf-8")
    assert json.loads(Path("data/dataset_info.json").read_text("utf-8"))[name]["columns"] == columns
    assert run("check", "planned.yaml").exit_code == 0


def test_an_entry_that_trains_nothing_is_not_used() -> None:
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text('{"faq": {"file_name": "../faq.csv"}}')
    assert "--columns" in said("data", "faq.csv")


def test_the_next_command_names_the_columns_too() -> None:
    found = run(*PLAN, "--data", "faq.csv", "--columns", "prompt=frage,response=antwort")
    assert found.exit_code == 0
    following = [line for line in found.output.splitlines() if "lmf-recipes copy" in line or "--write" in line]
    assert following
    assert all("--data faq.csv --columns prompt=frage,response=antwort" in line for line in following)


def test_check_names_the_columns_for_the_entry() -> None:
    assert run(*COPY, "--data", "faq.csv", "--columns", "prompt=frage,response=antwort").exit_code == 0
    Path("data/dataset_info.json").write_text('{"faq": {"file_name": "../faq.csv"}}')
    assert '"columns": {"prompt": "frage", "response": "antwort"}' in said("check", "copied.yaml")


HUB = ("`owner/rows` is not on this machine, and nothing is fetched from a hub; run `hf download owner/rows "
       "--repo-type dataset --local-dir rows`, and give the file of its rows; or write "
       '`{"rows": {"hf_hub_url": "owner/rows"}}` into dataset_info.json (with')  # fmt: skip


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([*PLAN, "--data", "gone.jsonl"], "`gone.jsonl` does not exist; give a data file"),
        ([*PLAN, "--data", "r.yaml/rows"], "`r.yaml/rows` does not exist; give a data file"),
        ([*PLAN, "--data", "owner/rows"], HUB),
        ([*COPY, "--data", "owner/rows"], HUB),
        (["data", "https://huggingface.co/datasets/owner/rows"], HUB),
        ([*PLAN, "--data", "r.yaml"], "`r.yaml` is a recipe; give the data file"),
        ([*PLAN, "--data", "semicolons.csv"], "separated by semicolons, and LLaMA-Factory reads commas"),
        (["data", "semicolons.csv"], "separated by semicolons, and LLaMA-Factory reads commas: save it with commas"),
        (["data", "ragged.csv"], "separated by semicolons"),
        (["data", "semicolons.csv", "--columns", "prompt=frage,response=antwort"], "reads commas: save it with commas"),
        (["data", "faq.csv", "cutoff_len=512"], "`faq.csv` is data, and cutoff_len=512 a setting of a recipe"),
        (["data", "faq.csv", "--columns", "prompt=x,response=antwort"], "no column `x`; there are frage, antwort"),
        (["data", "r.yaml", "--columns", "prompt=x"], "--columns is for a data file"),
        ([*PLAN, "--columns", "prompt=x"], "give --data FILE"),
    ],
)
def test_a_refusal_says_what_is_wrong(words: list[str], problem: str) -> None:
    Path("r.yaml").write_text("model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndo_train: true\ndataset: faq\n")
    Path("semicolons.csv").write_text("\ufeff" + CSV.replace(",", ";"), "utf-8")
    Path("ragged.csv").write_text("frage;antwort\nWie, bitte?;So.\nWie, und, warum?;So.\n" * 2, "utf-8")
    assert problem in said(*words)


@pytest.mark.parametrize("words", [[*PLAN, "--write", "new.yaml"], ["copy", "qwen3-8b-a100x1-lora", "new.yaml"]])
def test_a_recipe_whose_data_end_the_run_is_not_to_be_started(words: list[str]) -> None:
    row = {"instruction": "q", "input": "", "output": "a"}
    rows = [row] * 1100 + [{**row, "output": 7}]
    Path("mixed.json").write_text(json.dumps(rows))
    found = run(*words, "--data", "mixed.json")
    assert found.exit_code == 1
    assert "LLaMA-Factory stops" in found.output
    assert "run: " not in found.output
    assert "then: lmf-recipes data new.yaml" in found.output


def test_a_row_without_a_question_and_columns_that_are_not_read_are_named() -> None:
    Path("faq.csv").write_text(CSV.replace("Wie geht 7?", "").replace("Wie geht 9?", '" "'), "utf-8")
    found = " ".join(run("data", "faq.csv", "--columns", "prompt=frage,response=antwort").output.split())
    assert "empty prompts: 2 (6.67%) rows without a question" in found
    assert "note: faq: column quelle is not trained on" in found
