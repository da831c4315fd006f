"""Which cases of sampled tests a commit runs."""

from __future__ import annotations

import ast
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import cast

import pytest
from support import sampling
from support.sampling import Change

ROOT = Path(__file__).parents[2]


class Item:
    """A test, as far as it is asked."""

    def __init__(self, name: str, **marked: object) -> None:
        self.nodeid = f"tests/plan/test_plan.py::{name}"
        self._marker = pytest.mark.sample(**marked).mark if marked else None

    def get_closest_marker(self, _name: str) -> pytest.Mark | None:
        return self._marker


def drawn(monkeypatch: pytest.MonkeyPatch, items: list[Item], change: Change | None) -> set[str]:
    """Names of those that run."""
    monkeypatch.setattr(sampling, "change", lambda: change)
    left_out = {item.nodeid for item in sampling.left_out(cast("list[pytest.Item]", items))}
    return {item.nodeid.partition("::")[2] for item in items if item.nodeid not in left_out}


def commit(number: int, *paths: str, names: tuple[str, ...] = ()) -> Change:
    return Change(number, frozenset(paths), frozenset(names))


CASES = [f"test_x[{number}]" for number in range(60)]


def test_each_case_has_its_turn_and_few_have_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item(name, one_in=4) for name in CASES]
    turns = [drawn(monkeypatch, items, commit(number, "README.md")) for number in range(4)]
    assert set.union(*turns) == set(CASES)
    assert sum(map(len, turns)) == len(CASES)
    assert max(map(len, turns)) < len(CASES) / 2


def test_cases_that_share_their_cost_have_their_turn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item(name, one_in=4, together=True) for name in CASES]
    turns = [drawn(monkeypatch, items, commit(number)) for number in range(4)]
    assert sorted(map(len, turns)) == [0, 0, 0, len(CASES)]


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        (None, CASES),  # without history nobody can tell
        (commit(1, "tests/plan/test_plan.py"), CASES),
        (commit(1, "validator/plan/search.py"), CASES),
        (commit(1, "validator/plan.py", names=("17",)), ["test_x[17]"]),
    ],
)
def test_what_was_touched_runs(monkeypatch: pytest.MonkeyPatch, change: Change | None, runs: list[str]) -> None:
    items = [Item(name, one_in=10**9, whole_for=["validator/plan/*"]) for name in CASES]
    assert drawn(monkeypatch, items, change) == set(runs)


def test_a_test_without_the_mark_always_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, [Item("test_x")], commit(1)) == {"test_x"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], pytest.ExitCode.OK),  # it is no test's turn
        (["--whole"], pytest.ExitCode.TESTS_FAILED),
        (["test_it.py"], pytest.ExitCode.TESTS_FAILED),
        (["-k", "misspelt"], pytest.ExitCode.NO_TESTS_COLLECTED),
    ],
)
def test_what_ends_a_run_without_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, words: list[str], code: pytest.ExitCode
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        @pytest.mark.sample(one_in=10**9)
        def test_x():
            assert False
        """
    )
    monkeypatch.setattr(sampling, "change", lambda: commit(1))
    ran = pytester.inline_run("-p", "support.sampling", *words)
    assert ran.ret == code


def test_what_marks_name_is_there() -> None:
    """Else a change of it would run a sample alone."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("there is no history on this machine")
    files = listed.stdout.splitlines()
    named = {pattern for path in (ROOT / "tests").rglob("test_*.py") for pattern in _named(path)}
    assert len(named) > 20
    assert [pattern for pattern in sorted(named) if not any(fnmatch(file, pattern) for file in files)] == []


def _named(path: Path) -> set[str]:
    """The patterns of `whole_for` in a file of tests, where they stand themselves or have a name there."""
    text = path.read_text("utf-8")
    if "whole_for" not in text:
        return set()
    tree = ast.parse(text)
    values = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given = [
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.sample"
        for keyword in node.keywords
        if keyword.arg == "whole_for"
    ]
    return {
        pattern
        for each in given
        for pattern in ast.literal_eval(values[each.id] if isinstance(each, ast.Name) else each)
    }
