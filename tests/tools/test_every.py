"""Tests of many cases: all that fail are named, and fixtures reach the body."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.every import every


@every([1, 2])
def test_a_fixture_reaches_the_body(number: int, tmp_path: Path) -> None:
    (tmp_path / str(number)).touch(exist_ok=False)


def test_each_case_that_fails_is_named() -> None:
    @every([(1, "a"), (2, "b"), (3, "c")])
    def only_two(number: int, letter: str) -> None:
        assert (number, letter) == (2, "b")

    with pytest.raises(ExceptionGroup, match="2 of 3 cases") as failed:
        only_two()
    assert [err.__notes__ for err in failed.value.exceptions] == [["case: (1, 'a')"], ["case: (3, 'c')"]]


def test_no_case_is_no_test() -> None:
    with pytest.raises(ValueError, match="no cases"):
        every([])
