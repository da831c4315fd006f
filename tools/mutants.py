"""Mutation run: changes the source in one place, and looks whether a test fails that executes it.

    python tools/mutants.py                                    150 mutants of physics, rules and reading
    python tools/mutants.py --module validator/memory --sample 40 --seed 7
    python tools/mutants.py --again RECORD.csv                 the mutants of an earlier run, found by their text

Operators are cosmic-ray's (github.com/sixty-north/cosmic-ray). Not drawn: decorators, annotations, blocks for type
checkers, words. The draw goes evenly over the lines of the modules. The first run on a tree measures which tests
execute which lines and takes as long as the tests; the result stays in build/mutants. A mutant is killed where a test
fails, "timed out" where one needs ten times its CPU time, and survives otherwise. Exit code 1 where, with --again, one
that was killed before survives now.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

TESTS = Path(__file__).resolve().parents[1] / "tests"
BUILD = Path("build/mutants")
MODULES = ("validator/memory", "validator/speed", "validator/rules", "validator/read")
KILLED = ("killed", "timed out")
FIELDS = ("module", "line", "text", "operator", "nth", "mutated", "result", "test")

# One mutant of each kind: `*` becomes `/`, not all eleven others, most of which raise TypeError.
OPERATORS = re.compile(
    r"ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_Mul|BitOr_BitAnd|BitAnd_BitOr)"
    r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Lt_GtE|Gt_LtE|LtE_Gt|GtE_Lt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is)"
    r"|ReplaceUnaryOperator_(Delete_Not|Delete_USub)"
    r"|AddNot|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr|ReplaceOrWithAnd"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|NumberReplacer|ZeroIterationForLoop"
)

_ALIAS = re.compile(r"[A-Z][a-z]\w* = ")  # of a type


class Candidate(NamedTuple):
    """A possible mutant: cosmic-ray's operator and the how manieth place of the module it changes.

    Its name (module, text of the line, operator, how manieth of those) stays the same where other lines change.
    """

    module: str
    text: str
    operator: str
    nth: int
    first: int  # line of its statement
    line: int
    occurrence: int

    @property
    def name(self) -> tuple[str, str, str, str]:
        return self.module, self.text, self.operator, str(self.nth)

    def source(self) -> str:
        """Return the module's source with this one change."""
        operator = OperatorProvider()[self.operator]()
        return str(mutate_code(_read(self.module), operator, self.occurrence))

    def is_python(self) -> bool:
        """True if the change compiles: cosmic-ray takes the | of a `case` for an operator."""
        try:
            compile(self.source(), self.module, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True

    def mutated(self) -> str:
        """Return the line after the change."""
        return self.source().splitlines()[self.line - 1].strip()

    def diff(self) -> str:
        old, new = _read(self.module).splitlines(), self.source().splitlines()
        return "\n".join(list(difflib.unified_diff(old, new, lineterm="", n=2))[2:])


@cache
def _read(module: str) -> str:
    return Path(module).read_text(encoding="utf-8")


def modules(paths: list[str]) -> list[str]:
    """Return the modules of files and folders."""
    found = [sorted(path.rglob("*.py")) if path.is_dir() else [path] for path in map(Path, paths)]
    return [path.as_posix() for each in found for path in each]


def candidates(module: str) -> list[Candidate]:
    """Return all mutants of a module, in the order of its source."""
    source = _read(module)
    lines = source.splitlines()
    nodes = list(ast_nodes(get_ast(source)))
    hidden = [(node.start_pos, node.end_pos) for each in nodes for node in _hidden(each)]
    names: Counter[tuple[str, str]] = Counter()
    found = []
    for name in filter(OPERATORS.fullmatch, OperatorProvider()):
        operator = OperatorProvider()[name]()
        places = [(node, start) for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (node, start) in enumerate(places):
            if any(first <= start < end for first, end in hidden):
                continue
            text = lines[start[0] - 1].strip()
            found.append(Candidate(module, text, name, names[text, name], _statement(node), start[0], occurrence))
            names[text, name] += 1
    return sorted(found, key=lambda each: (each.line, each.operator, each.nth))


def _hidden(node: Any) -> list[Any]:
    """Return what lies in a node that no test can see: types, decorators, blocks for type checkers."""
    if node.type == "expr_stmt" and _ALIAS.match(node.get_code(include_prefix=False)):
        return [node]
    if node.type == "operator" and node.parent.type in ("parameters", "lambdef"):  # the * before keywords
        return [node]
    if node.type == "decorator" or (node.type == "if_stmt" and node.children[1].get_code().strip() == "TYPE_CHECKING"):
        return [node]
    if node.type in ("annassign", "tfpdef"):
        return [node.children[1] if node.type == "annassign" else node.children[2]]
    if node.type == "funcdef" and node.annotation:
        return [node.annotation]
    return []


def _statement(node: Any) -> int:
    while node.parent and node.parent.type not in ("simple_stmt", "suite", "file_input"):
        node = node.parent
    return int(node.start_pos[0])


def draw(paths: list[str], sample: int, seed: int) -> list[Candidate]:
    """Draw mutants evenly over the lines that have any, at most one a line; all mutants where `sample` is 0."""
    every = [each for module in modules(paths) for each in candidates(module)]
    lines: dict[tuple[str, int], list[Candidate]] = defaultdict(list)
    for each in every:
        lines[each.module, each.line].append(each)
    if not sample or sample >= len(lines):
        return list(filter(Candidate.is_python, every))
    chance = random.Random(seed)
    start, step = chance.random(), len(lines) / sample
    places = list(lines.values())
    drawn = (places[int((start + turn) * step)] for turn in range(sample))
    return [chance.choice(good) for place in drawn if (good := list(filter(Candidate.is_python, place)))]


def again(rows: list[dict[str, str]], paths: list[str]) -> tuple[list[Candidate], list[dict[str, str]]]:
    """Find the mutants of a record's rows in today's source, and the rows of those that are gone. A line that has moved
    to another module is known by its text, where no other line reads the same."""
    every = [each for module in modules(paths) for each in candidates(module)]
    here = {each.name: each for each in every}
    elsewhere: dict[tuple[str, ...], list[Candidate]] = defaultdict(list)
    for each in every:
        elsewhere[each.name[1:]].append(each)
    found, gone = [], []
    for row in rows:
        name = row["module"], row["text"], row["operator"], row["nth"]
        others = elsewhere[name[1:]]
        if name in here or len(others) == 1:
            found.append(here.get(name) or others[0])
        else:
            gone.append(row | {"result": "gone", "test": ""})
    return found, gone


def read(record: Path) -> list[dict[str, str]]:
    with record.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def measure(options: argparse.Namespace) -> None:
    """Learn which tests execute which lines, unless that is known for this tree."""
    folder = BUILD / "measure"
    paths = sorted({*MODULES, *options.module})
    sampled = ["--whole"] if options.whole else []
    key = _key([*paths, *sampled])
    if (folder / "key").exists() and (folder / "key").read_text() == key:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print("measuring what each test executes", flush=True)
    processes = options.jobs if options.jobs > 1 else 0
    modules = [str(Path(path).resolve()) + ("/*" if Path(path).is_dir() else "") for path in paths]
    _pytest({"task": "measure", "modules": modules, "jobs": processes}, "-n", str(processes), *sampled)
    (folder / "key").write_text(key)


def _key(words: list[str]) -> str:
    """Return a hash of these words and of all files that git does not ignore."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, capture_output=True, text=True, check=False).stdout.split("\0")
    digest = hashlib.sha256(" ".join(words).encode())
    for path in sorted({path for path in map(Path, filter(None, names)) if path.is_file()}):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _pytest(order: dict[str, Any], *words: str) -> None:
    """Run pytest with its side of this program, tests/support/mutation.py, and an order for it."""
    path = BUILD / f"{order['task']}.json"
    path.write_text(json.dumps({"folder": str(BUILD.resolve())} | order), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(TESTS), "MUTANTS_ORDER": str(path.resolve())}
    program = str(Path(sys.executable).with_name("pytest"))
    subprocess.run([program, "-q", "-p", "support.mutation", *words], env=environment, check=False)


def run(mutants: list[Candidate], jobs: int, seconds: float) -> Iterator[tuple[Candidate, str, str]]:
    """Yield each mutant with its result and the test that killed it, after so many CPU seconds of tests at most."""
    folder = BUILD / "sources"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    orders = []
    for number, each in enumerate(mutants):
        source = folder / f"{number}.py"
        source.write_text(each.source(), encoding="utf-8")
        orders.append([number, each.module, each.first, each.line, str(source.resolve())])
    order = {"task": "run", "mutants": orders, "jobs": jobs, "seconds": seconds}
    # All tests that were measured, also if the sample is another one by now. Forks would share captured descriptors.
    _pytest(order, "-n", "0", "--whole", "--capture=sys")
    for line in (BUILD / "results.jsonl").read_text(encoding="utf-8").splitlines():
        number, result, test = json.loads(line)
        yield mutants[number], result, test


def row(each: Candidate, result: str, test: str) -> dict[str, str]:
    return {
        "module": each.module,
        "line": str(each.line),
        "text": each.text,
        "operator": each.operator,
        "nth": str(each.nth),
        "mutated": each.mutated(),
        "result": result,
        "test": test,
    }


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    BUILD.mkdir(parents=True, exist_ok=True)
    before = read(options.again) if options.again else []
    if before:
        mutants, rows = again(before, options.module)
    else:
        mutants, rows = draw(options.module, options.sample, options.seed), []
    measure(options)
    known = {(each["text"], each["operator"], each["nth"]): each["result"] for each in before}
    was = {each: known.get(each.name[1:], "") for each in mutants}
    results = {each: (result, test) for each, result, test in run(mutants, options.jobs, options.seconds)}
    # A busy machine runs fewer tests in the same CPU time, so a mutant that was killed before gets five times as much.
    survivors = [each for each, (result, _) in results.items() if result == "survived"]
    if lost := [each for each in survivors if was[each] in KILLED]:
        results |= {each: (result, test) for each, result, test in run(lost, options.jobs, 5 * options.seconds)}
    worse = 0
    for each, (result, test) in results.items():
        rows.append(row(each, result, test))
        if result == "survived":
            worse += was[each] in KILLED
            print(f"\n{each.module}:{each.line} survived" + (f", was {was[each]} before" if was[each] else ""))
            print(each.diff())
    if options.record:
        write(options.record, rows)
    report(rows, worse if before else None)
    return 1 if worse else 0


def report(rows: list[dict[str, str]], worse: int | None) -> None:
    """Print how many mutants were killed, by package, and the CPU time of all tests."""
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    for each in rows:
        packages[str(Path(each["module"]).parent)][each["result"]] += 1
    for name, counts in [*packages.items(), ("all", sum(packages.values(), Counter()))]:
        results = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
        print(f"{name}: {sum(counts[each] for each in KILLED)} of {counts.total()} killed ({results})")
    if worse is not None:
        print(f"survive now and were killed before: {worse}")
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"CPU time: {spent.ru_utime + spent.ru_stime:.0f} s")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=150, help="mutants to draw, 0 for all (150)")
    parser.add_argument("--seed", type=int, default=27, help="of the draw (27)")
    parser.add_argument("--module", action="append", help="file or folder, several times: " + ", ".join(MODULES))
    parser.add_argument("--again", type=Path, help="run the mutants of this record instead of drawing")
    parser.add_argument("--record", type=Path, help="write a CSV file with a row per mutant")
    parser.add_argument("--whole", action="store_true", help="all cases of tests that a commit draws a sample of")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--seconds", type=float, default=20, help="CPU seconds of tests for a mutant at most (20)")
    options = parser.parse_args(arguments)
    options.module = options.module or list(MODULES)
    return options


def write(record: Path, rows: list[dict[str, str]]) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda each: (each["module"], int(each["line"]), each["operator"])))


if __name__ == "__main__":
    sys.exit(main())
