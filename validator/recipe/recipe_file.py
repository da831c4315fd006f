"""A recipe file as LLaMA-Factory reads it: its values, its header block (the lines between `# /// recipe` and
`# ///`, as PEP 723 has them in Python scripts), its problems, and the `KEY=VALUE` overrides of the command
line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.finding import Diagnostic, Severity
from validator.recipe import omegaconf
from validator.recipe.omegaconf import MalformedError, Node, Position
from validator.recipe.places import NodeTree, Route
from validator.recipe.safe_read import read_text
from validator.recipe.yaml_writer import format_scalar
from validator.wording import clip

_HEADER_OPEN, _HEADER_CLOSE = "# /// recipe", "# ///"


class HeaderBlock(NamedTuple):
    """A header block. `first` and `last` are the lines of its marks, from 1; `text` is the YAML between them."""

    first: int
    last: int
    text: str


def find_header_block(text: str) -> HeaderBlock | Diagnostic | None:
    """Return the header block of a recipe, or what is wrong with it; None if there is none."""
    if _HEADER_OPEN not in text:
        return None
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.rstrip() == _HEADER_OPEN]
    if len(starts) != 1:
        what = f"has {len(starts)} header blocks; keep one `{_HEADER_OPEN}` … `{_HEADER_CLOSE}`"
        return Diagnostic("LOA005", Severity.ERROR, what, starts[1] + 1) if starts else None
    start = starts[0]
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("#")), len(lines))
    close = next((i for i in range(start + 1, end) if lines[i].rstrip() == _HEADER_CLOSE), None)
    if close is None:
        what = f"header block is not closed; end it with a `{_HEADER_CLOSE}` line"
        return Diagnostic("LOA005", Severity.ERROR, what, start + 1)
    inside = (line[2:] if line.startswith("# ") else line[1:] for line in lines[start + 1 : close])
    return HeaderBlock(start + 1, close + 1, "\n".join(inside))


# How a recipe must be called to be read (llamafactory/hparams/parser.py, read_args), apart from JSON.
RECIPE_SUFFIXES = (".yaml", ".yml")
_KEYLESS_LINE, _MAX_KEYLESS_LINES = "LOA012", 20
_LONGEST_KEY = 1024  # characters in which libyaml looks for the colon
_NODE_IN_WORDS = {"sequence": "a list", "scalar": "a single value"}


@dataclass(eq=False)
class Document:
    """A recipe as written. `values` is what LLaMA-Factory receives; `overridden` are keys that the command line set."""

    path: str
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    overridden: frozenset[str] = frozenset()
    body_tree: NodeTree | None = None
    header_tree: NodeTree | None = None

    @property
    def readable(self) -> bool:
        """False if LLaMA-Factory cannot read the recipe."""
        return not self._errors

    @property
    def judgeable(self) -> bool:
        """False if nothing beyond the loading errors can be judged. Of a key that is written twice the last value is
        judged; a line that is no `key: value` is left out."""
        return self._errors <= {omegaconf.WRITTEN_TWICE, _KEYLESS_LINE}

    @property
    def _errors(self) -> set[str]:
        return {each.code for each in self.problems if each.severity is Severity.ERROR}

    def position(self, route: Route, at_key: bool = False) -> Position:
        """Return where a route leads, in the body or else in the header block; else the top of the file."""
        for tree in (self.body_tree, self.header_tree) if route and route[0] not in self.overridden else ():
            if tree and tree.holds(route[0]):
                return tree.position(route, at_key)
        return (1, 1)


def load_recipe(path: str) -> Document:
    """Read one recipe file. Never raises: whatever is wrong is in `problems`."""
    try:
        return parse_recipe(path, read_text(path))
    except RecipeError as err:
        return Document(path, problems=[Diagnostic("LOA001", Severity.ERROR, str(err))])


def load_valid_recipe(path: str) -> Document:
    """Return the recipe in a file. Raises RecipeError with the first error of loading."""
    document = load_recipe(path)
    for problem in document.problems:
        if problem.severity is Severity.ERROR:
            raise RecipeError(f"{path}:{problem.line}:{problem.column}: {problem.message} [{problem.code}]")
    return document


def parse_recipe(path: str, text: str) -> Document:
    """Read recipe text. Never raises: whatever is wrong is in `problems`."""
    document = _parse_yaml(path, text)
    block = find_header_block(text)
    if isinstance(block, Diagnostic):
        document.problems.append(block)
    elif block:
        _add_header(document, block)
    return document


def _parse_yaml(path: str, text: str) -> Document:
    document = Document(path, text)
    _read_values(document, text)
    return document


def _read_values(document: Document, text: str) -> None:
    """Make the values of the text. A line that is no `key: value` is reported, and the others are read."""
    try:
        omegaconf.refuse_oversized(text)
        root, values = omegaconf.compose_yaml(text, lambda root: _check_document(root, document.problems))
    except MalformedError as err:
        without = _without_keyless_line(text, err, document.problems) if err.keyless else ""
        if without:
            _read_values(document, without)
        else:
            document.problems.append(Diagnostic("LOA002", Severity.ERROR, str(err), *err.position))
    except ValueError as err:
        document.problems.append(Diagnostic("LOA002", Severity.ERROR, f"not readable as YAML: {err}"))
    else:
        document.values = values or {}
        document.body_tree = NodeTree(root, text) if root else None


def _without_keyless_line(text: str, err: MalformedError, problems: list[Diagnostic]) -> str:
    """Return the text with a comment of the same length in place of the line that is no `key: value`, which is
    reported. Empty if there are too many of these lines, or if the line is a key that is longer than a reader looks
    for."""
    lines, (line, column) = text.splitlines(keepends=True), err.position
    wrong = lines[line - 1].rstrip()[column - 1 :] if line <= len(lines) else ""
    if not wrong or len(wrong) > _LONGEST_KEY or len(problems) >= _MAX_KEYLESS_LINES:
        return ""
    space = "; a space belongs behind the colon" if re.match(r"\w+:\S", wrong) else ""
    problems.append(
        Diagnostic(_KEYLESS_LINE, Severity.ERROR, f"`{clip(wrong)}` is no `key: value`{space}", line, column)
    )
    before, behind = lines[line - 1][: column - 1], lines[line - 1][column - 1 + len(wrong) :]
    lines[line - 1] = before + "#".ljust(len(wrong)) + behind
    return "".join(lines)


def _check_document(root: Node, problems: list[Diagnostic]) -> bool:
    """True if values can be made of the nodes: they are a mapping that OmegaConf accepts. Findings are added to
    `problems`."""
    if root.tag == omegaconf.NULL_TAG:
        return False
    if root.id != "mapping":
        text = f"is {_NODE_IN_WORDS[root.id]}, not a mapping; write `key: value` lines"
        problems.append(omegaconf.error_at_node("LOA003", text, root))
        return False
    omegaconf.refuse_expansion(root)
    refused = list(omegaconf.find_refusals(root))
    problems.extend(refused or omegaconf.find_surprising_numbers(root))
    return all(each.code == omegaconf.WRITTEN_TWICE for each in refused)


def _add_header(document: Document, block: HeaderBlock) -> None:
    inner = _parse_yaml(document.path, block.text)
    document.header = inner.values
    if inner.body_tree:
        document.header_tree = inner.body_tree._replace(lines=block.first, columns=2)
    document.problems.extend(
        Diagnostic("LOA005", p.severity, f"header block: {p.message}", p.line + block.first, p.column + 2)
        for p in inner.problems
    )


_OVERRIDE_FORM = r"(?s)([^\W\d][\w-]*(?:\.[\w-]+)*)=(.*)"
_MAX_NAMES = 20


def load_with_overrides(path: str, overrides: Sequence[str] = ()) -> Document:
    """Return the recipe in a file after the overrides. Raises RecipeError if it cannot be read, or holds no key."""
    if path.endswith(".json"):
        raise RecipeError(f"`{path}` is a JSON file; give the recipe (.yaml) that uses it")
    document = load_valid_recipe(path)
    if not document.values:
        raise RecipeError(f"{path}:1:1: holds no key; a recipe needs at least a model [LOA006]")
    return with_overrides(document, overrides)


def with_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """Return the document after the overrides. Raises RecipeError for a malformed override."""
    if not overrides:
        return document
    values = dict(document.values)
    for text in overrides:
        match = re.fullmatch(_OVERRIDE_FORM, text)
        if not match:
            raise RecipeError(f"override `{clip(text)}` is not of the form KEY=VALUE, such as learning_rate=1e-4")
        names = match[1].split(".")
        if len(names) > _MAX_NAMES:
            raise RecipeError(f"override `{clip(text)}` names {len(names):,} keys, {_MAX_NAMES} at most")
        try:
            omegaconf.refuse_oversized(match[2])
            _assign_value(values, names, omegaconf.compose_yaml(match[2], _check_value)[1])
        except ValueError:
            raise RecipeError(f"override `{clip(text)}`: the value is not valid YAML; quote it") from None
    keys = {text.partition("=")[0].split(".")[0] for text in overrides}
    return replace(document, values=values, overridden=document.overridden | keys)


def with_header_fields(document: Document, **fields: Any) -> Document:
    """Return the document with these fields in its header block; a field that is None stays as it is written."""
    given = {name: value for name, value in fields.items() if value is not None}
    return replace(document, header={**document.header, **given}) if given else document


def path_override(key: str, path: str) -> str:
    """Return the override that sets a key to a path, which is read as YAML."""
    return f"{key}={format_scalar(path)}"


def _check_value(root: Node) -> bool:
    """Always true. Raises ValueError where OmegaConf would refuse the value."""
    omegaconf.refuse_expansion(root)
    for refusal in omegaconf.find_refusals(root):
        raise ValueError(refusal.message)
    return True


def _assign_value(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = values.get(name)
        if isinstance(inner, list):
            raise RecipeError(f"override of `{'.'.join(path)}`: `{name}` is a list; give it whole, as {name}=[…]")
        values[name] = dict(inner) if isinstance(inner, dict) else {}
        values = values[name]
    values[path[-1]] = _merge_values(values.get(path[-1]), value)


def _merge_values(old: Any, new: Any) -> Any:
    """Return two values merged: mappings key by key, anything else is replaced. A list and a mapping do not go
    together."""
    if {type(old), type(new)} == {list, dict}:
        raise RecipeError("an override gives a list for a mapping, or a mapping for a list; give what the recipe has")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merge_values(old.get(key), value) for key, value in new.items()}}
