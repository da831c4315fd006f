"""The cases of tests/rules/cases/: recipes, and what `check` finds in each.

tests/rules/cases/CODE.yml holds the cases of one code: under `fail` those that report it, under `pass` those near them
that do not, and have no error either. The head of the file holds what the cases share:

    recipe: |
      model_name_or_path: Qwen/Qwen3-8B
      quantization_bit: 4
    files:
      data/rows.json: [{"text": "one"}, {"text": "two"}]
    fail:
      five-bits:
        set: |
          quantization_bit: 5
        drop: [bf16]
        finds: error recipe.yaml:2 quantization_bit

A case is a name and

    set:          lines that take the place of those of the same key, or go to the end; `# machine: 1xt4-16g` is one of
                  the header block
    drop:         keys whose lines go, `"# machine"` from the header block, `"# ///"` with the whole of it
    recipe:       a text of its own in place of all that
    path:         the name of the recipe; recipe.yaml where none is given, *.json for a DeepSpeed file by itself
    files:        what else lies there, by path; one that ends in / is an empty folder, {0..7} in a path makes eight
    machine:      the machine to judge for, instead of that of the header block
    environment:  variables that are set, by name
    also:         other files that are checked in the same call
    finds:        every error and warning, and each note of the code itself: code (where it is not that of the file),
                  severity, path:line, the recipe's key that is to blame, and what would fix it: --fix, --unsafe-fixes

A file is text, written as UTF-8; !!binary, written as its bytes; or a list or mapping, written as JSON with an
indentation of two, or as JSON lines. `!alpaca 30` are 30 rows in that format, as are `!sharegpt 30` and `!openai 30`;
`!joined [a, [b, 9], c]` is a text that holds b nine times.
A file `.lmf-recipes.yaml` holds settings, such as {pedantic: true}.
Each case has a folder of its own, the working directory, in which deepspeed/, data/ and accelerate/ are those of the
repository where the case brings none. For a CUR code that folder is the repository.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import yaml

from validator.check.checking import check_files
from validator.configuration import NOTHING_ASKED
from validator.finding import Diagnostic, FileReport, Report

ROOT = Path(__file__).parents[2]
RULES = ROOT / "tests" / "rules" / "cases"
SHARED = ("accelerate", "data", "deepspeed")
KEY = re.compile(r"""(?:# )?["']?[\w.-]+["']?(?=:(?:\s|$))""")
HEADER_START, HEADER_END = "# /// recipe", "# ///"


class Case(NamedTuple):
    """One recipe and what `check` finds in it. `files` holds the recipe, too."""

    code: str
    kind: Literal["fail", "pass"]
    name: str
    path: str
    files: Mapping[str, bytes]
    environment: Mapping[str, str]
    finds: tuple[str, ...]
    machine: str | None = None
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}-{self.kind}-{self.name}"


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's, with the tags of generated rows."""


# A row of each format, by its number.
ROWS: dict[str, Callable[[int], Any]] = {
    "!alpaca": lambda n: {"instruction": f"What is {n} + {n}?", "input": "", "output": f"It is {2 * n}."},
    # One answer in eight is twenty times as long.
    "!uneven": lambda n: {"instruction": f"What is {n}?", "input": "", "output": "It is. " * (1 if n % 8 else 20)},
    "!sharegpt": lambda n: {
        "conversations": [{"from": "human", "value": f"What is {n} + 1?"}, {"from": "gpt", "value": f"{n + 1}"}]
    },
    "!openai": lambda n: {
        "messages": [{"role": "user", "content": f"What is {n} + 1?"}, {"role": "assistant", "content": f"{n + 1}"}]
    },
}
for _tag, _row in ROWS.items():
    Loader.add_constructor(_tag, lambda _, node, row=_row: [row(number) for number in range(int(node.value))])


def _joined(loader: Any, node: yaml.SequenceNode) -> str:
    """The text of all parts, some of which come several times."""
    parts = loader.construct_sequence(node, deep=True)
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts)


Loader.add_constructor("!joined", _joined)


@cache
def read(folder: Path = RULES) -> tuple[Case, ...]:
    """Every case, in the order of the codes."""
    return tuple(case for path in sorted(folder.glob("*.yml")) for case in read_file(path))


def read_file(path: Path) -> Iterator[Case]:
    """The cases of one code."""
    page: dict[str, Any] = yaml.load(path.read_bytes(), Loader)
    for kind in ("fail", "pass"):
        for name, case in page[kind].items():
            assert isinstance(case, dict), (
                f"{path.name}: the case `{name}` under `{kind}` says nothing; write at least `finds: []`"
            )
            place = case.get("path", "recipe.yaml")
            own = "recipe" in case
            recipe = case["recipe"] if own else changed(page["recipe"], case.get("set", ""), case.get("drop", []))
            files = {**page.get("files", {}), **case.get("files", {}), place: recipe}
            contents = {at: _bytes(at, content) for each, content in files.items() for at in _numbered(each)}
            finds = case.get("finds", [])
            finds = (finds,) if isinstance(finds, str) else tuple(finds)
            also = tuple(case.get("also", ()))
            yield Case(
                path.stem, kind, name, place, contents, case.get("environment", {}), finds, case.get("machine"), also
            )


def changed(recipe: str, lines: str, drop: list[str]) -> str:
    """The recipe with these lines in place of those of the same keys, or at its end, and without the keys to drop."""
    header: dict[str, str] = {}
    body: dict[str, str] = {}
    for key, each in [*_entries(recipe).items(), *_entries(lines).items()]:
        (header if key.startswith("# ") else body)[key] = each
    end = header.pop(HEADER_END, "")
    for key in drop:
        if key == HEADER_END:
            header, end = {}, ""
        else:
            del (header if key.startswith("# ") else body)[key]
    return "".join([*header.values(), end, *body.values()])


def _entries(text: str) -> dict[str, str]:
    """The lines of each key of a recipe, those of its header block under the key behind a #."""
    entries: dict[str, str] = {}
    key = ""
    for line in text.splitlines(keepends=True):
        match = KEY.match(line)
        key = line.rstrip() if line.rstrip() in (HEADER_START, HEADER_END) else match[0] if match else key
        entries[key] = entries.get(key, "") + line
    return entries


def _numbered(path: str) -> list[str]:
    """The paths that one with {0..7} stands for."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}", path)
    return [path.replace(match[0], f"{n}") for n in range(int(match[1]), int(match[2]) + 1)] if match else [path]


def _bytes(path: str, content: Any) -> bytes:
    """A file as it is written."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    if path.endswith(".jsonl"):
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content).encode()
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


@contextmanager
def laid_out(case: Case) -> Iterator[Path]:
    """The working directory of a case, with its files and environment."""
    with (
        tempfile.TemporaryDirectory() as name,
        chdir(name),
        patch.dict(os.environ, case.environment),
        patch("validator.rules.header_block.catalogue_root", Path.cwd if case.code.startswith("CUR") else lambda: ROOT),
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
    """The findings of a case, with $PWD in place of the working directory, whose name is another one each time."""
    with laid_out(case) as folder:
        report = check_files([case.path, *case.also], case.machine, asked=NOTHING_ASKED)
    del report.files[1:]
    for file in report.files:
        file.diagnostics = [d._replace(message=d.message.replace(str(folder), "$PWD")) for d in file.diagnostics]
    return report


def found(case: Case, file: FileReport) -> tuple[str, ...]:
    """What a case finds, as the case says it."""
    return tuple(
        _line(case, file, each) for each in file.diagnostics if each.severity != "note" or each.code == case.code
    )


def _line(case: Case, file: FileReport, finding: Diagnostic) -> str:
    words = [
        "" if finding.code == case.code else finding.code,
        finding.severity.value,
        f"{finding.path or file.path}:{finding.line}",
        finding.key or "",
        "" if not finding.fix else "--fix" if finding.fix.safe else "--unsafe-fixes",
    ]
    return " ".join(word for word in words if word)
