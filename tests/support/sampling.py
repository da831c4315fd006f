"""Cases that a commit leaves to the nightly run.

    @pytest.mark.sample(one_in=10, whole_for=["validator/data/models.yaml"])

runs one in ten of the cases of a test: those whose turn it is at this commit, and those whose id names a file that the
commit touched. All run where the test's own file or one of `whole_for` was touched, with `pytest --whole`, and where
there is no history to tell. Cases of a file that share what takes the time, such as a process that imports torch, are
drawn `together`. What was touched is what differs from the commit before, or from $BASE.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = pytest.StashKey[bool]()  # whether tests were left to other commits


class Change(NamedTuple):
    """What this commit touched, and its place in the history, which decides whose turn it is."""

    number: int
    paths: frozenset[str]
    names: frozenset[str]  # of the touched recipes, cases, pages: what ids of tests are made of

    def touches(self, patterns: Sequence[str]) -> bool:
        return any(fnmatch(path, pattern) for path in self.paths for pattern in patterns)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run all cases of tests that draw a sample of them")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Who names a file or a test wants it, whosever turn it is."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        config.option.whole = True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw from what -m and -k have selected."""
    if config.getoption("--whole"):
        return
    others = set(left_out(items))
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = [item for item in items if item not in others]
    config.stash[LEFT_OUT] = bool(others)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where it is no test's turn, nothing went wrong."""
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash.get(LEFT_OUT, False):
        session.exitstatus = pytest.ExitCode.OK


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items of sampled tests whose turn it is not."""
    sampled = [(item, marker) for item in items if (marker := item.get_closest_marker("sample"))]
    changed = change() if sampled else None
    return [item for item, marker in sampled if changed and not _is_drawn(item, changed, **marker.kwargs)]


def _is_drawn(
    item: pytest.Item, changed: Change, one_in: int, whole_for: Sequence[str] = (), together: bool = False
) -> bool:
    path = item.nodeid.partition("::")[0]
    if changed.touches([path, *whole_for]):
        return True
    if crc32((path if together else item.nodeid).encode()) % one_in == changed.number % one_in:
        return True
    case = item.nodeid.partition("[")[2]
    return any(name in case for name in changed.names)


def chosen(session: pytest.Session, test: str, parameter: str) -> list[Any]:
    """Return the values of a parameter for which a test is run, so that a fixture prepares no others."""
    items = [item for item in session.items if isinstance(item, pytest.Function) and item.originalname == test]
    return [item.callspec.params[parameter] for item in items]


@cache
def change() -> Change | None:
    """What differs from $BASE, by default the commit before; None where git knows no such commit."""
    try:
        number = int(_git("rev-list", "--count", "HEAD"))
        paths = frozenset(_git("diff", "--name-only", os.environ.get("BASE") or "HEAD~1").splitlines())
    except (OSError, subprocess.CalledProcessError):
        return None
    folders = (
        "recipes/",
        "deepspeed/",
        "tests/fixtures/recipes/",
        "tests/rules/cases/",
        "tests/fixtures/refused/",
        "docs/",
    )
    return Change(number, paths, frozenset(Path(path).stem for path in paths if path.startswith(folders)))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
