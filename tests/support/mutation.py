"""pytest's side of the mutation run (tools/mutants.py): measures what each test executes, then runs tests on mutants.

The tests are collected once. Each mutant gets a fork of that process, in which the functions that differ are handed
their new code and all caches are emptied. A mutant that acts while modules are imported or tests are collected needs a
process of its own, which reads the mutated module in place of the file.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import _lru_cache_wrapper, cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest
from coverage import Coverage, CoverageData

Place = tuple[str, int, str, bytes]
# The ways to run a mutant: in a fork, or alone; that with the five test files nearest to it first, as collecting takes
# longer than most tests.
_FORK, _NEAR, _FAR = range(3)
_IS_FUNCTION = inspect.CO_OPTIMIZED  # which bodies of modules and of classes are not


class Mutant(NamedTuple):
    """A mutant to run: the module's path from the root, the lines of its statement, and the file with its source."""

    number: int
    path: str
    first: int
    line: int
    source: str


class Order(NamedTuple):
    """What tools/mutants.py asks for: `measure` the tests, `run` mutants in forks, or one mutant `alone`."""

    task: str
    folder: str
    modules: Sequence[str] = ()  # patterns of the files that are measured
    mutants: Sequence[Mutant] = ()
    jobs: int = 1  # processes at a time
    seconds: float = 0  # CPU time of the tests that a mutant is given, without it

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self._asdict()), encoding="utf-8")

    @classmethod
    def read(cls, path: str) -> Order:
        order = cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        return order._replace(mutants=[Mutant(*each) for each in order.mutants])


class Measure:
    """Measures the lines and the CPU time of every test that passes, in each process of pytest-xdist."""

    def __init__(self, order: Order) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.name = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.folder = Path(order.folder, "measure")
        data = str(self.folder / "coverage")
        self.coverage = Coverage(data_file=data, data_suffix=self.name, include=list(order.modules), config_file=False)
        self.coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = time.process_time()
        self.coverage.switch_context(item.nodeid)
        result = yield
        self.coverage.switch_context("")
        self.seconds[item.nodeid] = time.process_time() - start
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        passed = {test: seconds for test, seconds in self.seconds.items() if test not in self.failed}
        (self.folder / f"seconds.{self.name}.json").write_text(json.dumps(passed), encoding="utf-8")


class Measured:
    """The result of a measurement: which tests execute a line, and how long each test takes."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        for path in folder.glob("seconds.*.json"):
            self.seconds |= json.loads(path.read_text(encoding="utf-8"))
        self.data = [CoverageData(str(path)) for path in sorted(folder.glob("coverage.*"))]
        for each in self.data:
            each.read()
        self.lines = cache(self._lines)

    def _lines(self, path: str) -> dict[int, set[str]]:
        """Return the tests that execute each line of a module; "" stands for imports and for collection."""
        lines: dict[int, set[str]] = {}
        for each in self.data:
            for line, tests in each.contexts_by_lineno(str(Path(path).resolve())).items():
                lines.setdefault(line, set()).update(tests)
        return lines

    def at(self, mutant: Mutant) -> set[str]:
        """Return the tests that execute a mutant's line, or the nearest line above it in its statement."""
        lines = self.lines(mutant.path)
        return next((lines[line] for line in range(mutant.line, mutant.first - 1, -1) if line in lines), set())

    def tests(self, mutant: Mutant, seconds: float) -> list[str]:
        """Return the tests to run on a mutant: those that are named after the rule that it changes, then those of the
        other rules of the module, which share its functions and tables, then those that execute its line, then those
        that execute another line of the module (a cached value is computed by the first test only); of each, the
        quickest first. All take `seconds`."""
        covering = self.at(mutant)
        if not covering:
            return []
        module = set().union(*self.lines(mutant.path).values())
        rule, rules = _rules(mutant)
        order = sorted(
            module & self.seconds.keys(),
            key=lambda test: (
                rule not in test,
                not any(each in test for each in rules),
                test not in covering,
                self.seconds[test],
            ),
        )
        chosen: list[str] = []
        for test in order:
            seconds -= self.seconds[test]
            if chosen and seconds < 0:
                break
            chosen.append(test)
        return chosen


class Run:
    """Runs tests one after the other until one fails, in a process made for it, and writes the name of that one."""

    def __init__(self, config: pytest.Config, seconds: dict[str, float], result: Path) -> None:
        self.config, self.seconds, self.result = config, seconds, result
        self.failed = ""
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(self)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def run(self, items: Sequence[pytest.Item]) -> None:
        """Run the items. A test that needs ten times its CPU time ends the process with SIGPROF."""
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        for item, following in zip(items, [*items[1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, 10 + 10 * self.seconds[item.nodeid])
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                break
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.result.write_text(self.failed, encoding="utf-8")


class Mutants:
    """Runs the tests on the mutants of an order, and writes a line of JSON for each to `results.jsonl`."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.folder = Path(order.folder)
        self.measured = Measured(self.folder / "measure")
        self.unsteady: set[str] = set()  # tests that fail without a mutant, too

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.config = session.config
        self.items = {item.nodeid: item for item in session.items}
        self.functions: dict[Place, list[FunctionType]] = {}
        self.caches: list[Any] = []
        gc.unfreeze()
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                self.functions.setdefault(_place(each.__code__), []).append(each)
            elif isinstance(each, _lru_cache_wrapper):
                self.caches.append(each)
        gc.freeze()
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        with (self.folder / "results.jsonl").open("w", encoding="utf-8", buffering=1) as stream:
            for number, result, test in self._results():
                stream.write(json.dumps([number, result, test]) + "\n")
                reporter.write_line(f"mutant {number}: {result} {test}")
        return True

    def _results(self) -> Iterator[tuple[int, str, str]]:
        waiting = [(mutant, _FORK if _is_live(mutant) else _NEAR) for mutant in reversed(self.order.mutants)]
        running: dict[int, tuple[Mutant, int]] = {}
        while waiting or running:
            if waiting and len(running) < self.order.jobs:
                mutant, way = waiting.pop()
                if tests := self._tests(mutant, way):
                    running[self._start(mutant, tests, way)] = mutant, way
                else:
                    yield mutant.number, "survived", "(no test executes it)"
                continue
            process, status = os.wait()
            mutant, way = running.pop(process)
            result, test = self._result(mutant, status)
            if test in self.items and not self._passes(test):
                self.unsteady.add(test)
                waiting.append((mutant, way))
            elif result == "survived" and self._acts_elsewhere(mutant, way):
                waiting.append((mutant, way + 1))
            else:
                yield mutant.number, result, test

    def _tests(self, mutant: Mutant, way: int) -> list[str]:
        tests = self.measured.tests(mutant, self.order.seconds)
        tests = [test for test in tests if test in self.items and test not in self.unsteady]
        if way == _NEAR:
            shares = Counter(map(_file, tests))
            every = Counter(map(_file, self.items))
            nearest = sorted(shares, key=lambda file: -shares[file] / every[file])[:5]
            tests = [test for test in tests if _file(test) in nearest]
        return tests

    def _acts_elsewhere(self, mutant: Mutant, way: int) -> bool:
        """True if a mutant that survived this way may be killed in the next: tests of other files, or of a process
        that has run its line before any test."""
        if way == _FORK:
            return "" in self.measured.at(mutant)
        return way == _NEAR and self._tests(mutant, _NEAR) != self._tests(mutant, _FAR)

    def _start(self, mutant: Mutant, tests: list[str], way: int) -> int:
        folder = self._folder(mutant.number)
        if process := os.fork():
            return process
        try:
            os.environ |= {"PYTEST_DEBUG_TEMPROOT": str(folder), "XDG_DATA_HOME": str(folder)}
            nothing = os.open(os.devnull, os.O_WRONLY)
            for descriptor in (1, 2):
                os.dup2(nothing, descriptor)
            if way != _FORK:
                self._execute(mutant, tests, folder)
            for old, new in _changed(mutant):
                for function in self.functions.get(_place(old), []):
                    function.__code__ = new
            self._run(tests, folder)
        finally:
            os._exit(0)

    def _run(self, tests: list[str], folder: Path) -> None:
        for each in self.caches:
            each.cache_clear()
        Run(self.config, self.measured.seconds, folder / "result").run([self.items[test] for test in tests])

    def _execute(self, mutant: Mutant, tests: list[str], folder: Path) -> None:
        """Become a process of pytest that imports the mutant. It has two minutes of CPU time to collect the tests."""
        self.order._replace(task="alone", mutants=[mutant]).write(folder / "order.json")
        (folder / "tests.json").write_text(json.dumps(tests), encoding="utf-8")
        os.environ |= {"MUTANTS_ORDER": str(folder / "order.json"), "PYTHONPATH": str(Path(__file__).parents[1])}
        files = sorted(set(map(_file, tests)))
        program = str(Path(sys.executable).with_name("pytest"))
        signal.setitimer(signal.ITIMER_PROF, 120)
        os.execv(program, [program, "-n", "0", "-p", "support.mutation", "--whole", *files])

    def _folder(self, number: int) -> Path:
        folder = self.folder / "processes" / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _result(self, mutant: Mutant, status: int) -> tuple[str, str]:
        folder = self.folder / "processes" / str(mutant.number)
        result = folder / "result"
        test = result.read_text(encoding="utf-8") if result.exists() else "(the process died)"
        shutil.rmtree(folder, ignore_errors=True)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            return "timed out", ""
        return ("killed", test) if test else ("survived", "")

    def _passes(self, test: str) -> bool:
        """True if a test passes by itself without a mutant."""
        folder = self._folder(-1)
        if not (process := os.fork()):
            try:
                self._run([test], folder)
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        return (folder / "result").exists() and not (folder / "result").read_text(encoding="utf-8")


class Alone(MetaPathFinder):
    """Imports one mutated module in place of its file and runs the tests that it is told, in their order."""

    def __init__(self, order: Order) -> None:
        self.order, self.mutant = order, order.mutants[0]
        self.name = Path(self.mutant.path).with_suffix("").as_posix().replace("/", ".")
        self.folder = Path(order.folder, "processes", str(self.mutant.number))
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others))
        spec.loader = Loader(fullname, str(spec.origin))
        spec.loader.source = self.mutant.source
        return spec

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        tests = json.loads((self.folder / "tests.json").read_text(encoding="utf-8"))
        seconds = Measured(Path(self.order.folder, "measure")).seconds
        Run(session.config, seconds, self.folder / "result").run([items[test] for test in tests if test in items])
        return True


class Loader(SourceFileLoader):
    """Loads a module from the source of a mutant, and leaves no bytecode."""

    source = ""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return compile(Path(self.source).read_bytes(), self.path, "exec", dont_inherit=True)


def _rules(mutant: Mutant) -> tuple[str, list[str]]:
    """Return the code of the last rule that is declared above a mutant's line, "" where none is, and all codes."""
    lines = Path(mutant.path).read_text(encoding="utf-8").splitlines()
    declared = {number: line.split('"')[1] for number, line in enumerate(lines, 1) if line.startswith('@rule("')}
    above = [code for number, code in declared.items() if number <= mutant.line]
    return above[-1] if above else "", list(declared.values())


def _file(test: str) -> str:
    return test.partition("::")[0]


def _is_live(mutant: Mutant) -> bool:
    """True if a mutant changes functions only, so that a process that has imported them can be handed it."""
    return all(
        len(old.co_freevars) == len(new.co_freevars) if old.co_flags & _IS_FUNCTION else _same_body(old, new)
        for old, new in _changed(mutant)
    )


def _changed(mutant: Mutant) -> list[tuple[CodeType, CodeType]]:
    """Return the bodies of a module that a mutant changes, old and new."""
    sources = [Path(path).read_text(encoding="utf-8") for path in (mutant.path, mutant.source)]
    old, new = (compile(source, str(Path(mutant.path).resolve()), "exec", dont_inherit=True) for source in sources)
    return list(_pairs(old, new))


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    if old != new:
        yield old, new
        for one, other in zip(_bodies(old), _bodies(new), strict=False):
            yield from _pairs(one, other)


def _place(code: CodeType) -> Place:
    """Return what tells a body from all others: several lambdas of a line differ in the table of their columns."""
    return code.co_filename, code.co_firstlineno, code.co_qualname, code.co_linetable


def _bodies(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _same_body(old: CodeType, new: CodeType) -> bool:
    """True if two bodies differ in the functions that they define only."""
    # As text: 1, 1.0 and True are equal.
    one, other = (repr([each for each in code.co_consts if not isinstance(each, CodeType)]) for code in (old, new))
    return old.co_code == new.co_code and old.co_names == new.co_names and one == other


# Measurement and mutant have to be there before the first import of what is tested.
os.environ.pop("PYTHONPATH", None)  # set to find this file, and no business of the processes that tests start
ORDER = Order.read(os.environ["MUTANTS_ORDER"])
TASKS: dict[str, type[Measure | Mutants | Alone]] = {"measure": Measure, "run": Mutants, "alone": Alone}
_ONLY_STARTS_OTHERS = ORDER.task == "measure" and ORDER.jobs > 1 and "PYTEST_XDIST_WORKER" not in os.environ
TASK = None if _ONLY_STARTS_OTHERS else TASKS[ORDER.task](ORDER)


def pytest_configure(config: pytest.Config) -> None:
    if TASK:
        config.pluginmanager.register(TASK)
