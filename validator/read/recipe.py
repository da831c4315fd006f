"""Read a recipe exactly as LLaMA-Factory does, with its header block, keeping the nodes that know every position."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from validator.diagnostic import Diagnostic, RecipeError, Severity
from validator.read import dialect, header, limits, refusals
from validator.read.dialect import MalformedError, Node, Position
from validator.read.place import Route, Tree
from validator.read.text import clip, read_text

# How a recipe must be called to be read (llamafactory/hparams/parser.py, read_args), apart from JSON.
SUFFIXES = (".yaml", ".yml")
_KEYLESS, _MOST_KEYLESS = "LOA012", 20
_LONGEST_KEY = 1024  # characters in which libyaml looks for the colon
_NO_MAPPING = {"sequence": "a list", "scalar": "a single value"}


@dataclass(eq=False)
class Document:
    """A recipe as written. `values` is what LLaMA-Factory receives; `overridden` are keys that the command line set."""

    path: str
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    overridden: frozenset[str] = frozenset()
    body_tree: Tree | None = None
    header_tree: Tree | None = None

    @property
    def readable(self) -> bool:
        """False where LLaMA-Factory cannot read it."""
        return not self._errors

    @property
    def judgeable(self) -> bool:
        """False where nothing beyond the loading errors can be judged. Of a key that is written twice the last value
        is; a line that is no `key: value` counts as none."""
        return self._errors <= {refusals.TWICE, _KEYLESS}

    @property
    def _errors(self) -> set[str]:
        return {each.code for each in self.problems if each.severity is Severity.ERROR}

    def position(self, route: Route, at_key: bool = False) -> Position:
        """Where a route leads, in the body or else in the header block; the top of the file where it leads nowhere."""
        for tree in (self.body_tree, self.header_tree) if route and route[0] not in self.overridden else ():
            if tree and tree.holds(route[0]):
                return tree.position(route, at_key)
        return (1, 1)


def load(path: str) -> Document:
    """Read one recipe file. Never raises: whatever is wrong is in `problems`."""
    try:
        return parse(path, read_text(path))
    except RecipeError as err:
        return Document(path, problems=[Diagnostic("LOA001", Severity.ERROR, str(err))])


def readable(path: str) -> Document:
    """The file without errors of loading. Raises RecipeError with the first one."""
    document = load(path)
    for problem in document.problems:
        if problem.severity is Severity.ERROR:
            raise RecipeError(f"{path}:{problem.line}:{problem.column}: {problem.message} [{problem.code}]")
    return document


def parse(path: str, text: str) -> Document:
    """Read recipe text. Never raises: whatever is wrong is in `problems`."""
    document = _parse(path, text)
    block = header.find(text)
    if isinstance(block, Diagnostic):
        document.problems.append(block)
    elif block:
        _add_header(document, block)
    return document


def _parse(path: str, text: str) -> Document:
    document = Document(path, text)
    _read(document, text)
    return document


def _read(document: Document, text: str) -> None:
    """Make the values of the text. A line that is no `key: value` is reported, and the others are read."""
    try:
        limits.extent(text)
        root, values = dialect.compose(text, lambda root: _judge(root, document.problems))
    except MalformedError as err:
        without = _without(text, err, document.problems) if err.keyless else ""
        if without:
            _read(document, without)
        else:
            document.problems.append(Diagnostic("LOA002", Severity.ERROR, str(err), *err.position))
    except ValueError as err:
        document.problems.append(Diagnostic("LOA002", Severity.ERROR, f"not readable as YAML: {err}"))
    else:
        document.values = values or {}
        document.body_tree = Tree(root, text) if root else None


def _without(text: str, err: MalformedError, problems: list[Diagnostic]) -> str:
    """The text with a comment of the same length in place of the line that is no `key: value`, which is reported; empty
    where too many are, or it is one, of a longer key than a reader looks for."""
    lines, (line, column) = text.splitlines(keepends=True), err.position
    wrong = lines[line - 1].rstrip()[column - 1 :] if line <= len(lines) else ""
    if not wrong or len(wrong) > _LONGEST_KEY or len(problems) >= _MOST_KEYLESS:
        return ""
    space = "; a space belongs behind the colon" if re.match(r"\w+:\S", wrong) else ""
    problems.append(Diagnostic(_KEYLESS, Severity.ERROR, f"`{clip(wrong)}` is no `key: value`{space}", line, column))
    before, behind = lines[line - 1][: column - 1], lines[line - 1][column - 1 + len(wrong) :]
    lines[line - 1] = before + "#".ljust(len(wrong)) + behind
    return "".join(lines)


def _judge(root: Node, problems: list[Diagnostic]) -> bool:
    """Whether values can be made of the nodes, which they are for a mapping that OmegaConf takes."""
    if root.tag == dialect.NULL:
        return False
    if root.id != "mapping":
        text = f"is {_NO_MAPPING[root.id]}, not a mapping; write `key: value` lines"
        problems.append(refusals.at("LOA003", text, root))
        return False
    limits.expansion(root)
    refused = list(refusals.refusals(root))
    problems.extend(refused or refusals.surprises(root))
    return all(each.code == refusals.TWICE for each in refused)


def _add_header(document: Document, block: header.Block) -> None:
    inner = _parse(document.path, block.text)
    document.header = inner.values
    if inner.body_tree:
        document.header_tree = inner.body_tree._replace(lines=block.first, columns=2)
    document.problems.extend(
        Diagnostic("LOA005", p.severity, f"header block: {p.message}", p.line + block.first, p.column + 2)
        for p in inner.problems
    )
