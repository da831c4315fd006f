"""Comments that suppress findings, and options that select them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from validator.check import checking
from validator.check.suppression import is_selected
from validator.cli import group
from validator.configuration import parse_codes
from validator.finding import Diagnostic, FindingOptions, Severity
from validator.recipe.recipe_file import parse_recipe, with_overrides
from validator.rules.rule import MAX_FINDINGS

# `warmup_ratio` is deprecated only where no transformers 4 may run the recipe.
BODY = """# /// recipe
# transformers: ">=5"
# ///
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
dataset: alpaca_gpt4_en
warmup_ratio: 0.1
learing_rate: 1
"""


def reported(text: str, *overrides: str) -> set[str]:
    document = with_overrides(parse_recipe("x.yaml", text), overrides)
    return {d.code for d in checking.check_document(document).diagnostics} & {"SCH001", "SCH006", "LOA002", "LOA009"}


@pytest.mark.parametrize(
    ("old", "new", "codes"),
    [
        ("", "", {"SCH001", "SCH006"}),
        ("0.1", "0.1 # lmf-recipes: ignore SCH006", {"SCH001"}),
        ("0.1", "0.1 # a reason # lmf-recipes: ignore sch006", {"SCH001"}),
        ("0.1", "0.1 # lmf-recipes: ignore SCH006 as our 3 nodes have transformers 4", {"SCH001"}),
        ("0.1", "0.1 # lmf-recipes: ignore SCH006: a reason, with a comma", {"SCH001"}),
        ("0.1", "0.1 # lmf-recipes: ignore SCH006  # a reason", {"SCH001"}),
        ("0.1", "0.1 # lmf-recipes: ignore SCH006, SCHOO1 a misspelt code", {"SCH001", "LOA009"}),
        ("0.1", "0.1 # lmf-recipes: ignore SCH001", {"SCH001", "SCH006", "LOA009"}),
        ("rate: 1", "rate: 1 # lmf-recipes: ignore SCH001", {"SCH006"}),  # errors too
        ("model", "# lmf-recipes: ignore SCH006,SCH001\nmodel", set()),
        ("dataset", "# lmf-recipes: ignore SCH006\ndataset", {"SCH001", "SCH006", "LOA009"}),  # behind the first key
        ("0.1", "0.1 # lmf-recipes: ignore", {"SCH001", "SCH006", "LOA009"}),
        ("0.1", "0.1 # lmf-recipes: ignore LOA009", {"SCH001", "SCH006", "LOA009"}),
        ("0.1", "[1 # lmf-recipes: ignore LOA002", {"LOA002"}),
    ],
)
def test_a_comment_suppresses_what_it_names_where_it_stands(old: str, new: str, codes: set[str]) -> None:
    assert reported(BODY.replace(old, new, 1)) == codes


def test_an_override_may_leave_a_comment_without_use() -> None:
    text = BODY.replace("0.1", "0.1 # lmf-recipes: ignore SCH007")
    assert "LOA009" in reported(text)
    assert "LOA009" not in reported(text, "cutoff_len=512")


# What is found on a machine and a data set that are known, and what hides it
@pytest.mark.parametrize(
    ("old", "new", "is_useless"),
    [
        ("", "", True),
        ("# machine: 1xa100-80g\n", "", False),  # such as with --isolated, which reads no configuration
        ("alpaca_gpt4_en", "not_there", False),
        ("Qwen/Qwen3-8B", "our/own", False),
        ("bf16: true", "bf16: true\nfp16: true", False),
    ],
)
def test_a_comment_is_useless_only_where_its_rule_was_judged(old: str, new: str, is_useless: bool) -> None:
    text = """# /// recipe
# machine: 1xa100-80g
# ///
model_name_or_path: Qwen/Qwen3-8B
stage: sft
do_train: true
dataset: alpaca_gpt4_en
template: qwen3_nothink
output_dir: saves
bf16: true
save_steps: 100  # lmf-recipes: ignore TRA926: the disk is slow
"""
    assert ("LOA009" in reported(text.replace(old, new))) == is_useless


def test_of_many_comments_without_use_the_first_are_told() -> None:
    document = parse_recipe("x.yaml", BODY + "# lmf-recipes: ignore XYZ1\n" * 5_000)
    told = [each.message for each in checking.check_document(document).diagnostics if each.code == "LOA009"]
    assert len(told) == MAX_FINDINGS + 1
    assert told[-1] == f"more than {MAX_FINDINGS} comments suppress nothing"


@pytest.mark.parametrize(
    ("select", "ignore", "held"),
    [
        ((), (), ["LOA002", "PAR101", "TRA009", "TRA101"]),
        (("TRA",), (), ["LOA002", "TRA009", "TRA101"]),
        (("TRA", "PAR1"), ("TRA1",), ["LOA002", "PAR101", "TRA009"]),
        ((), ("LOA", "TRA009"), ["LOA002", "PAR101", "TRA101"]),
    ],
)
def test_selection(select: tuple[str, ...], ignore: tuple[str, ...], held: list[str]) -> None:
    """An error of reading is always told: without it a file would seem to be in order."""
    diagnostics = [Diagnostic(code, Severity.ERROR, "x") for code in ("LOA002", "PAR101", "TRA009", "TRA101")]
    assert [d.code for d in diagnostics if is_selected(FindingOptions(select, ignore), d)] == held


def test_codes_are_separated_by_commas_in_any_case() -> None:
    assert parse_codes(["tra, PAR1", "sch001"]) == ("TRA", "PAR1", "SCH001")
    assert parse_codes([]) == ()


def test_a_code_that_matches_nothing_is_wrong_usage() -> None:
    done = CliRunner().invoke(group, ["check", "-", "--select", "TRA00l"], input=BODY)
    assert done.exit_code == 2
    assert "no rule begins with `TRA00L`; did you mean `TRA0" in done.output


def test_only_what_is_selected_decides_the_exit_code() -> None:
    assert CliRunner().invoke(group, ["check", "-"], input=BODY).exit_code == 1
    done = CliRunner().invoke(group, ["check", "-", "--ignore", "SCH001,PTH,TRA,FIT"], input=BODY)
    assert done.exit_code == 0
    assert "SCH006" in done.output
    assert "SCH001" not in done.output
