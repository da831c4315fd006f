"""Is it seen when what `check` says changes? Each change by itself, against the failing cases of tests/rules/.

    python tests/support/mutate.py

A message: each text in the rooms that make findings becomes another, where it stands in the source. A position: the
findings of a code stand one column further. A severity: those of a code get another one. A change is caught where a
case then prints something else than it expects. What is not caught is listed; exit code 1 where that is over 5 %.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

ROOMS = ("validator.rules.", "validator.read.", "validator.judge.")
BAR = 0.95
OTHER = "§"  # which no text holds, nor the name of a temporary folder, in which some texts are looked for


@dataclass
class Texts:
    """The texts of the source, by number. Each is handed to `say`, which gives OTHER for the one replaced."""

    places: list[str] = field(default_factory=list)
    said: set[int] = field(default_factory=set)
    replaced: int | None = None

    def add(self, place: str) -> int:
        self.places.append(place)
        return len(self.places) - 1

    def say(self, number: int, text: str) -> str:
        self.said.add(number)
        return OTHER if number == self.replaced else text


TEXTS = Texts()


class Handing(ast.NodeTransformer):
    """Puts `_say(number, text)` in the place of each text of a function that reads as a sentence: three words."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        start = 1 if ast.get_docstring(node) else 0
        self.depth += 1
        node.body[start:] = [self.visit(each) for each in node.body[start:]]
        self.depth -= 1
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self._handed(node, node.value) if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return self._handed(node, "".join(str(each.value) for each in node.values if isinstance(each, ast.Constant)))

    def _handed(self, node: ast.expr, words: str) -> ast.expr:
        if not self.depth or len(words.split()) < 3:
            return node
        number = TEXTS.add(f"{self.path.parent.name}/{self.path.name}:{node.lineno}: {ast.unparse(node)}")
        return ast.Call(ast.Name("_say", ast.Load()), [ast.Constant(number), node], [])


class Loader(SourceFileLoader):
    """Loads a module from its source with its texts handed over."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        tree = Handing(self.path).visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_say"] = TEXTS.say
        super().exec_module(module)


class Finder(MetaPathFinder):
    """Finds the modules of ROOMS where they are, for Loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(ROOMS):
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec and spec.origin:
            spec.loader = Loader(fullname, spec.origin)
        return spec


sys.meta_path.insert(0, Finder())

from support import cases  # noqa: E402
from validator.diagnostic import Diagnostic, Report, Severity  # noqa: E402
from validator.rules import manual  # noqa: E402

Change = Callable[[Diagnostic], Diagnostic]
Outcomes = Iterator[tuple[str, bool]]
SEVERITIES = {Severity.ERROR: Severity.WARNING, Severity.WARNING: Severity.NOTE, Severity.NOTE: Severity.ERROR}


class Judged(NamedTuple):
    """A case, its report, and the numbers of the texts that were said for it."""

    case: cases.Case
    report: Report
    texts: frozenset[int]


def judge(case: cases.Case) -> Judged:
    """A case on the source as it is."""
    TEXTS.said.clear()
    return Judged(case, cases.judge(case), frozenset(TEXTS.said))


def messages(judged: list[Judged]) -> Outcomes:
    """Each text, and whether a case prints something else where it is replaced."""
    for number, place in enumerate(TEXTS.places):
        TEXTS.replaced = number
        shown = (each.case for each in judged if number in each.texts)
        yield place, any(cases.printed(cases.judge(case)) != case.expected for case in shown)
    TEXTS.replaced = None


def findings(judged: list[Judged], change: Change) -> Outcomes:
    """Each code, and whether a case prints something else where its findings are changed."""
    for code in manual.codes():
        shown = (each for each in judged if f"[{code}]" in each.case.expected)
        yield code, any(_printed(each.report, code, change) != each.case.expected for each in shown)


def _printed(report: Report, code: str, change: Change) -> str:
    changed = [[change(d) if d.code == code else d for d in file.diagnostics] for file in report.files]
    files = [replace(file, diagnostics=each) for file, each in zip(report.files, changed, strict=True)]
    return cases.printed(replace(report, files=files))


def main() -> int:
    """Print what is not caught and the three figures."""
    judged = [judge(case) for case in cases.read() if case.kind == "fail"]
    changes = {
        "messages": messages(judged),
        "positions": findings(judged, lambda d: d._replace(column=d.column + 1)),
        "severities": findings(judged, lambda d: d._replace(severity=SEVERITIES[d.severity])),
    }
    shares = [share(name, dict(outcomes)) for name, outcomes in changes.items()]
    return 0 if min(shares) >= BAR else 1


def share(name: str, caught: dict[str, bool]) -> float:
    """Print the changes of one kind, and give the share that is caught."""
    for place in (place for place, seen in caught.items() if not seen):
        print(f"  not caught: {place}")
    part = sum(caught.values()) / len(caught)
    print(f"{name}: {sum(caught.values())} of {len(caught)} changes caught, {part:.1%}")
    return part


if __name__ == "__main__":
    sys.exit(main())
