"""Which files are judged, in which order, by which rules; nothing a file holds stops the check."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.count_calls import calls
from support.laws import examples

from validator.advise import explanation
from validator.check import checking
from validator.errors import RecipeError
from validator.finding import FileReport, Report, Severity
from validator.knowledge import tables
from validator.output import explain_text
from validator.output.findings import REPORT_FORMATS
from validator.recipe.recipe_file import Document, parse_recipe
from validator.rules import all_rules
from validator.rules.rule import MAX_FINDINGS
from validator.run.settings import resolve

pytestmark = pytest.mark.usefixtures("from_the_root")

ROOT = Path(__file__).parents[2]
USUAL = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "sft", "do_train": True, "finetuning_type": "lora",
    "deepspeed": "deepspeed/ds_z3.json", "dataset": "tiny_demo", "template": "qwen", "output_dir": "saves/x",
    "bf16": True,
}  # fmt: skip
HEAD = {"machine": "8xa100-80g", "host_ram_gib": 1024, "samples": 1000}
WEIRD = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(
        [10**300, float("inf"), float("nan"), "x" * 5000, "a\0b", "{", '{"zero_optimization": 1}', "~", "/", [[1]],
         {"a": 1}, {1: 2}, [1], "~nosuchuser/x", "/dev/zero", "x" * 300, "9" * 5000, "fifo", b"x",
         [None], -1, 0, 1e308, "\ud800", "1e400"])
)  # fmt: skip


def assert_every_format_shows(found: FileReport) -> None:
    """JSON of no format holds NaN or infinity, which standard parsers refuse."""
    shown = {name: write(Report("1", [found])) for name, write in REPORT_FORMATS.items()}
    for name in ("json", "sarif"):
        json.loads(shown[name], parse_constant=pytest.fail)
    assert found.path in shown["text"]


@examples(6, [HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(sorted(tables.json_table("arguments")["arguments"])), WEIRD, min_size=1, max_size=3)
)
def test_no_value_of_any_key_stops_check_or_explain(values: dict[str, object]) -> None:
    document = Document("recipes/x.yaml", "a: 1\n", {**USUAL, **values}, header=dict(HEAD))
    report = checking.check_document(document)
    assert_every_format_shows(report)
    with suppress(RecipeError):  # a model that is not known
        assert explain_text.format_explanation(explanation.explain(resolve(document)))


@examples(12, [HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*HEAD, "summary", "predicted", "x"]), WEIRD))
def test_no_header_stops_check(header: dict[str, object]) -> None:
    document = Document("recipes/x.yaml", "a: 1\n", dict(USUAL), header=header)
    assert_every_format_shows(checking.check_document(document))


def test_a_folder_stands_for_its_recipes_and_deepspeed_files_in_order(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "d.txt", "e.YAML"):
        shutil.copy("recipes/tiny-cpu-lora.yaml", tmp_path / name)
    (tmp_path / "c").mkdir()
    shutil.copy("deepspeed/ds_z2.json", tmp_path / "c")
    found = checking.check_files([str(tmp_path)]).files
    assert [Path(file.path).name for file in found] == ["a.yaml", "b.yml", "ds_z2.json"]


def test_a_folder_without_recipes_is_a_finding_about_it(tmp_path: Path) -> None:
    first, second = checking.check_files([str(tmp_path), "recipes/tiny-cpu-lora.yaml"]).files
    assert [d.code for d in first.diagnostics] == ["LOA001"]
    assert second.path == "recipes/tiny-cpu-lora.yaml"


def test_findings_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "stage: sfd\nlearing_rate: 1\nfinetuning_type: qlora\nmodel_name_or_path: none/such\nlearning_rate: x\n"
    )
    places = [(d.line, d.column) for d in checking.check_file(str(path)).diagnostics]
    assert places == sorted(places)
    assert len(places) > 3


def test_a_refused_value_is_reported_once_by_its_cause(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text('model_name_or_path: Qwen/Qwen3-8B\ncutoff_len: "long"\n')
    found = [d for d in checking.check_file(str(path)).diagnostics if d.key == "cutoff_len"]
    assert [d.code for d in found] == ["SCH002"]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("model_name_or_path: 7\ndataset: alpaca_en\ndo_train: true", ["SCH002"]),
        ("model_name_or_path: Qwen/Qwen3-8B\ndataset: 7\ndo_train: true", ["SCH002"]),
        (
            'model_name_or_path: Qwen/Qwen3-8B\nval_size: "0.1"\neval_strategy: steps\ndataset: a\ndo_train: true',
            ["SCH002"],
        ),
        ("model_name_or_path: Qwen/Qwen3-8B\nlora_rank: 0.0", ["SCH002"]),
    ],
)
def test_a_mistake_has_one_error(text: str, codes: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text + "\n")
    found = [d.code for d in checking.check_file(str(path)).diagnostics if d.severity is Severity.ERROR]
    assert [code for code in found if not code.startswith("PTH")] == codes


def test_the_machine_asked_for_wins_over_the_headers() -> None:
    document = Document("x.yaml", "", dict(USUAL), header={"machine": "1xt4-16g"})
    assert checking.check_document(document).verdict == "exceeds"
    assert checking.check_document(document, "8xa100-80g", 1024).verdict == "fits"


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "deepspeed").glob("*.json")))
def test_the_zero_files_pass_by_themselves(name: str) -> None:
    assert checking.check_file(f"deepspeed/{name}").diagnostics == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"zero_optimization": {', "not valid JSON"),
        ('{"zero_optimization": []}', "no `zero_optimization` object"),
        ('{"zero_optimization": {"stage": 7}}', "stage"),
    ],
)
def test_a_broken_zero_file_by_itself(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "z.json"
    path.write_text(text)
    found = checking.check_file(str(path)).diagnostics
    assert any(says in d.message for d in found), found
    # A file by itself is not blamed for what only a recipe can decide.
    assert not [d for d in found if d.code[:3] in {"FIT", "TRA", "DEV", "DAT", "CUR"}]


def test_no_code_is_declared_twice() -> None:
    codes = all_rules.all_codes()
    assert len(set(codes)) == len(codes)
    assert {code[:3] for code in codes} == {"LOA", "SCH", "PTH", "FIT", "DEV", "PAR", "TRA", "DAT", "CUR"}


def test_every_module_of_rules_is_imported() -> None:
    listed = {rule.check.__module__.rpartition(".")[2] for rule in all_rules.RULES}
    others = "__init__ all_rules problems read_conditions recipe_schema rule rule_search subjects"
    there = {path.stem for path in (ROOT / "validator" / "rules").glob("*.py")} - set(others.split())
    assert listed == there


def test_manual_by_any_case_and_an_unknown_code() -> None:
    page = all_rules.rule_page("fit001")
    assert (page.name, page.severity) == ("device_memory_exceeded", Severity.ERROR)
    assert page.fix.startswith("`lmf-recipes explain` lists")
    assert page.why.endswith("on every rank.")
    assert all_rules.rule_page("LOA004").name == "key_twice"
    with pytest.raises(RecipeError, match="rule `XYZ` is not known"):
        all_rules.rule_page("XYZ")


def test_remedy_is_the_fix_paragraph_on_one_line() -> None:
    assert all_rules.fix_paragraph("A.\n\nWhy: b.\nFix: c\n    d.\n\nmore") == "c d."
    assert all_rules.fix_paragraph("A.") is None


def test_a_check_is_little_work() -> None:
    checking.check_file("recipes/tiny-cpu-lora.yaml")  # the tables are read once
    assert calls(lambda: checking.check_file("recipes/tiny-cpu-lora.yaml")) < 51_000


def test_of_one_mistake_made_often_the_first_findings_are_shown() -> None:
    sets = ",".join(f"nobody-{number}" for number in range(60))
    document = Document("recipes/x.yaml", "a: 1\n", {**USUAL, "dataset": sets}, header=dict(HEAD))
    told = [each for each in checking.check_document(document).diagnostics if each.code == "PTH103"]
    assert len(told) == MAX_FINDINGS + 1
    assert (
        told[-1].message
        == f"more than {MAX_FINDINGS} findings of this rule; the others are shown once these are mended"
    )
    assert {each.severity for each in told} == {Severity.ERROR}


def test_a_message_is_no_longer_than_anybody_reads() -> None:
    document = Document("recipes/x.yaml", "a: 1\n", {**USUAL, "template": "x" * 30_000}, header=dict(HEAD))
    assert max(len(each.message) for each in checking.check_document(document).diagnostics) == 2_000


def _recipe_for(folder: str, more: str = "") -> str:
    return f"model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndo_train: true\noutput_dir: {folder}\n{more}"


@pytest.mark.parametrize(
    ("texts", "sharing"),
    [
        ({"a.yaml": _recipe_for("saves/x"), "b.yaml": _recipe_for("saves/x")}, {"a.yaml", "b.yaml"}),
        ({"a.yaml": _recipe_for("saves/x"), "sub/b.yaml": _recipe_for("./saves/y/../x/")}, {"a.yaml", "sub/b.yaml"}),
        ({name: _recipe_for("out") for name in ("a.yaml", "b.yaml", "c.yaml", "d.yaml")}, set("abcd")),
        ({"a.yaml": _recipe_for("saves/x"), "b.yaml": _recipe_for("saves/y")}, set()),
        ({"a.yaml": _recipe_for("saves/x")}, set()),
        (
            {"a.yaml": _recipe_for("x"), "b.yaml": _recipe_for("x").replace("do_train: true", "do_predict: true")},
            set(),
        ),
    ],
)
def test_recipes_that_share_an_output_folder_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str], sharing: set[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = checking.check_files(list(texts)).files
    found = {file.path: each for file in files for each in file.diagnostics if each.code == "LOA015"}
    assert set(found) == {name if "." in name else f"{name}.yaml" for name in sharing}
    for path, each in found.items():
        assert each.line == 4
        assert f"`{path}`" not in each.message


@pytest.mark.parametrize(
    ("above", "says"),
    [
        ("", "into a header block (`# /// recipe` above that line, `# ///` below it), such as `# machine:"),
        ("# /// recipe\n# samples: 9\n# ///\n", "into the header block, such as `# machine:"),
    ],
)
def test_the_first_message_says_what_a_header_block_is_where_there_is_none(above: str, says: str) -> None:
    text = f"{above}model_name_or_path: Qwen/Qwen2.5-72B-Instruct\ndo_train: true\ntemplate: baichuan2\n"
    found = [each.message for each in checking.check_document(parse_recipe("x.yaml", text)).diagnostics]
    assert any(says in each for each in found)
    assert sum("# /// recipe" in each for each in found) == (not above)
