"""`rule WORDS`: the rules whose manual pages speak of something, best first."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from validator.commands.rule import command
from validator.errors import RecipeError
from validator.rules.rule_search import find_rules


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("nccl", "TRA927"), ("NaN", "PAR117"), ("out of memory", "FIT001"), ("oom", "FIT001"), ("padding", "TRA925"),
        ("CUDA out of memory", "FIT001"), ("flash attention", "TRA617"), ("hang", "TRA927"), ("is", None),
        ("learning_rat", "TRA4"), ("exit code -9", "FIT00"), ("loss is nan", "PAR117"), ("xyzzy", None),
        ("preempt", "TRA424"), ("requeue", "TRA424"), ("volta", "DEV001"),
    ],
)  # fmt: skip
def test_the_best_rule_comes_first(words: str, first: str | None) -> None:
    found = find_rules(words)
    if first is None:
        assert words == "is" or not found
    else:
        assert found[0].code.startswith(first), [one.code for one in found[:5]]


def test_every_name_of_a_rule_finds_it() -> None:
    for words, code in (("cutoff_len shorter samples", "FIT011"), ("save_total_limit", "FIT008")):
        assert code in [one.code for one in find_rules(words)]


def test_the_command_lists_what_it_found_and_what_to_type_next() -> None:
    shown = CliRunner().invoke(command, ["out", "of", "memory"]).output.splitlines()
    assert shown[0].startswith("FIT001  error ")
    assert shown[-1].startswith("next: `lmf-recipes rule FIT001` for the whole page")
    assert len(shown) <= 13
    assert CliRunner().invoke(command, ["fit001"]).output.startswith("FIT001 (error)\n")


@pytest.mark.parametrize(("words", "says"), [("xyzzy", "no rule speaks of `xyzzy`"), ("FIT999", "is not known")])
def test_nothing_found_is_said(words: str, says: str) -> None:
    done = CliRunner().invoke(command, [words])
    assert isinstance(done.exception, RecipeError)
    assert says in str(done.exception)
