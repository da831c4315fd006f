"""The cases of tests/rules/: recipes, and all that `check` says to each.

tests/rules/CODE.yml holds the cases of one code: under `fail` those that report it, under `pass` those near them that
do not, and have no error either. A case is a name and

    recipe:       the file that is checked
    path:         its name; recipe.yaml where none is given, *.json for a DeepSpeed file by itself
    files:        what else lies there, by path; one that ends in / is an empty folder
    environment:  variables that are set, by name
    expected:     the text that `check` prints, in which $PWD is the working directory

`files` above `fail` and `pass` lie beside each of the cases. A text is written as UTF-8, !!binary as its bytes. Each
case has a folder of its own, the working directory, in which deepspeed/, data/ and accelerate/ are those of the
repository where the case brings none. For a CUR code that folder is the repository.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from textwrap import indent
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import yaml

from validator.diagnostic import Report
from validator.judge.check import check
from validator.show.report import text

ROOT = Path(__file__).parents[2]
RULES = ROOT / "tests" / "rules"
SHARED = ("accelerate", "data", "deepspeed")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Case(NamedTuple):
    """One recipe and what `check` says to it. `files` holds the recipe, too."""

    code: str
    kind: Literal["fail", "pass"]
    name: str
    path: str
    files: Mapping[str, bytes]
    environment: Mapping[str, str]
    expected: str

    def __str__(self) -> str:
        return f"{self.code}-{self.kind}-{self.name}"


def read(folder: Path = RULES) -> list[Case]:
    """Every case, in the order of the codes."""
    return [case for path in sorted(folder.glob("*.yml")) for case in read_file(path)]


def read_file(path: Path) -> Iterator[Case]:
    """The cases of one code."""
    page: dict[str, Any] = yaml.load(path.read_bytes(), _Loader)
    beside = page.pop("files", {})
    for kind, cases in page.items():
        for name, case in cases.items():
            place = case.get("path", "recipe.yaml")
            files = {**beside, **case.get("files", {}), place: case["recipe"]}
            contents = {at: each if isinstance(each, bytes) else each.encode() for at, each in files.items()}
            expected = case.get("expected") or ""
            yield Case(path.stem, kind, name, place, contents, case.get("environment", {}), expected)


@contextmanager
def laid_out(case: Case) -> Iterator[Path]:
    """The working directory of a case, with its files and environment."""
    with (
        tempfile.TemporaryDirectory() as name,
        chdir(name),
        patch.dict(os.environ, case.environment),
        patch("validator.rules.curated.home", Path.cwd if case.code.startswith("CUR") else lambda: ROOT),
    ):
        for path, content in case.files.items():
            Path(path if path.endswith("/") else Path(path).parent).mkdir(parents=True, exist_ok=True)
            if not path.endswith("/"):
                Path(path).write_bytes(content)
        for shared in SHARED:
            if not Path(shared).exists():
                Path(shared).symlink_to(ROOT / shared)
        yield Path.cwd()


def judge(case: Case) -> Report:
    """The findings of a case."""
    with laid_out(case) as folder:
        return _unplaced(check([case.path]), folder)


def printed(report: Report) -> str:
    """What `check` prints."""
    return text(report)


def _unplaced(report: Report, folder: Path) -> Report:
    """The report with $PWD in place of the working directory, whose name is another one each time."""
    for file in report.files:
        file.diagnostics = [d._replace(message=d.message.replace(str(folder), "$PWD")) for d in file.diagnostics]
    return report


def rewrite(case: Case, printed: str, folder: Path = RULES) -> None:
    """Put what `check` prints in the place of what a case expects; all else of its file stays as it is."""
    page = folder / f"{case.code}.yml"
    source = page.read_text(encoding="utf-8")
    node = yaml.compose(source, _Loader)
    for key in (case.kind, case.name, "expected"):
        node = next(value for name, value in node.value if name.value == key)
    start, end = node.start_mark.index, node.end_mark.index
    kept = source[start:end].rstrip()
    after = source[start + len(kept) :].lstrip(" ")
    page.write_text(f"{source[:start].rstrip(' ')} |\n{indent(printed, ' ' * 6).rstrip()}{after}", encoding="utf-8")
