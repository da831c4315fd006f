"""Order and environment of the tests: the fast ones first, real training last."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase
from support.real_parser import Parser

pytest_plugins = ["support.sampling", "pytester"]

ROOT = Path(__file__).parents[1]

# Commits are judged with the same examples everywhere, by what they break and not by luck. `make nightly` draws new
# ones; what fails there is kept in .cache/hypothesis, tried first from then on, and printed as an @example to add.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile(
    "nightly",
    derandomize=False,
    deadline=None,
    print_blob=True,
    database=DirectoryBasedExampleDatabase(ROOT / ".cache" / "hypothesis"),
)
settings.load_profile("repeatable")

# The simulator asks for silence where nothing is set; real runs are read by what LLaMA-Factory logs.
os.environ.setdefault("LLAMAFACTORY_VERBOSITY", "INFO")
os.environ.pop("COLUMNS", None)  # lines would be broken at it

# A shell that starts the tests in the background has SIGINT ignored in all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Operators that DeepSpeed compiles once for all tests, as in the Makefile.
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(ROOT / ".cache" / "torch_extensions"))
os.environ.setdefault("CXX", str(ROOT / "tests" / "support" / "c++"))

# What a developer has measured on their own machine corrects no prediction of a test.
_OWN = tempfile.TemporaryDirectory()
os.environ["XDG_DATA_HOME"] = _OWN.name
# Programs that tests start leave files behind, such as torchrun its folder of logs.
os.environ["TMPDIR"] = _OWN.name

# Before release 8.2 click's runner mixes what a command writes to its two streams, unless it is told not to.
if "mix_stderr" in inspect.signature(CliRunner).parameters:
    CliRunner.__init__.__defaults__ = ("utf-8", None, False, False)
    cast("Any", Result).output = property(lambda result: result.stdout + result.stderr)


@pytest.fixture
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder is the repository, to which the paths of its recipes are relative."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="session")
def parser() -> Iterator[Parser]:
    """LLaMA-Factory's own parser."""
    pytest.importorskip("llamafactory")
    one = Parser()
    yield one
    one.close()


def pytest_collection_finish() -> None:
    """What has been collected stays: looking for cycles in it again and again takes a tenth of the time."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite what tests/fixtures/golden/ expects")
    parser.addoption("--complete", action="store_true", help="fail where a test is skipped: every package is expected")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Rewrite expectations in one process: some files hold those of many tests."""
    if config.getoption("--golden"):
        config.option.numprocesses = 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by cost, so that a broken rule shows in seconds and not after the trainings."""
    items.sort(key=lambda item: sum(1 for name in ("slow", "training") if item.get_closest_marker(name)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests that did not run, by reason. With --complete, a test that was skipped for want of a Python
    package is as bad as one that failed; a machine may lack what no package brings, such as a browser or SLURM."""
    skipped = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    lines = [f"not run: {count}, {reason}" for reason, count in skipped.most_common()]
    for line in lines:
        terminalreporter.write_line(line)
    if lines and (kept := os.environ.get("NOT_RUN")):  # the Makefile's, which runs pytest several times
        with Path(kept).open("a", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in lines)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter and session.config.getoption("--complete") else []
    if any(not str(each.longrepr[2]).endswith("on this machine") for each in skipped):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
