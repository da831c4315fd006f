"""A recipe file as LLaMA-Factory reads it: its values, its problems, and the `KEY=VALUE` overrides of the command line.
Also its header block, the comment lines between `# /// recipe` and `# ///`, a form that PEP 723 uses in Python
scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.finding import USUAL_FINDINGS, Diagnostic, FindingOptions, Severity
from validator.recipe import omegaconf
from validator.recipe.omegaconf import MalformedError, Node, Position
from validator.recipe.places import NodeTree, Route
from validator.recipe.safe_read import read_text
from validator.recipe.yaml_writer import format_scalar
from validator.wording import clip

# Begins the first key of a route that leads to a field of the header block, if the recipe has a key of that name, too.
HEADER_FIELD_MARK = "# "
_HEADER_OPEN, _HEADER_CLOSE = "# /// recipe", "# ///"
_HEADER_BLOCK_NAMED = re.compile(r"\b(into|in) the header block(?! \(`# ///)")


class HeaderBlock(NamedTuple):
    """The header block of a recipe. `first` and `last`: line numbers, from 1, of the marks that open and close the
    block. `text`: the YAML between the marks."""

    first: int
    last: int
    text: str


def find_header_block(text: str) -> HeaderBlock | Diagnostic | None:
    """Return the header block of a recipe; a finding if it is malformed; None if there is no header block."""
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
    block_lines = (line[2:] if line.startswith("# ") else line[1:] for line in lines[start + 1 : close])
    return HeaderBlock(start + 1, close + 1, "\n".join(block_lines))


# Fields that nobody writes as a comment but for the header block: no key of LLaMA-Factory is called so.
_LINE_OF_HEADER = re.compile(r"# ?(machine|host_ram_gib|network|lengths|accelerate|llamafactory|transformers):\s+\S")


def _find_stray_header(text: str, block: HeaderBlock | None) -> Diagnostic | None:
    """Return a finding about the first line that looks like a field of the header block, stands above the first key
    and is in no header block; None if there is none. `block`: the header block of the text."""
    inside = range(block.first, block.last + 1) if block else range(0)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith(("#", "---")):
            return None
        if number not in inside and (field_line := _LINE_OF_HEADER.match(line)):
            found = f"`# {field_line[1]}:` stands outside a header block, so it is not read"
            remedy = f"write `{_HEADER_OPEN}` above such lines and `{_HEADER_CLOSE}` below them"
            if block:
                remedy = f"move it between `{_HEADER_OPEN}` and `{_HEADER_CLOSE}`"
            return Diagnostic("LOA016", Severity.NOTE, f"{found}; {remedy}", number)
    return None


def explain_header_block(findings: list[Diagnostic], text: str) -> list[Diagnostic]:
    """Return the findings of a recipe. If its text has no header block, the first finding that speaks of it also says
    how one is written."""
    what = f"a header block (`{_HEADER_OPEN}` above that line, `{_HEADER_CLOSE}` below it)"
    for place, each in enumerate(findings if _HEADER_OPEN not in text else ()):
        message = _HEADER_BLOCK_NAMED.sub(rf"\1 {what}", each.message, count=1)
        if message != each.message:
            return [*findings[:place], each._replace(message=message), *findings[place + 1 :]]
    return findings


# How a recipe must be called to be read (llamafactory/hparams/parser.py, read_args), apart from JSON, which few
# releases read.
RECIPE_SUFFIXES = (".yaml", ".yml")
_KEYLESS_LINE, _MAX_KEYLESS_LINES = "LOA012", 20
_LONGEST_KEY = 1024  # characters in which libyaml looks for the colon
_NODE_IN_WORDS = {"sequence": "a list", "scalar": "a single value"}


@dataclass(eq=False)
class Document:
    """A recipe as written. `values`: what LLaMA-Factory receives. `header`: the fields of the header block. `problems`:
    findings of reading the file. `overrides`: the words of the command line that set keys, by key. `body_tree`,
    `header_tree`: the YAML nodes of the recipe's own keys and of its header block; None if they cannot be read.
    `options`: which findings to show."""

    path: str
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    overrides: Mapping[str, str] = field(default_factory=dict)
    body_tree: NodeTree | None = None
    header_tree: NodeTree | None = None
    options: FindingOptions = USUAL_FINDINGS

    @property
    def readable(self) -> bool:
        """True if LLaMA-Factory can read the recipe."""
        return not self._errors

    @property
    def judgeable(self) -> bool:
        """True if the recipe's settings can be judged. A key that is written twice and a line that is not `key: value`
        do not prevent that: the last value counts, and the line is ignored."""
        return self._errors <= {omegaconf.WRITTEN_TWICE, _KEYLESS_LINE}

    @property
    def _errors(self) -> set[str]:
        return {each.code for each in self.problems if each.severity is Severity.ERROR}

    def position(self, route: Route, at_key: bool = False) -> Position:
        """Return the line and column of a value, or of its key if `at_key`. `route`: the keys and list indices that
        lead to the value, in the recipe's own keys or else in its header block. A first key that begins with `# ` is a
        field of the header block even if the recipe has such a key. (1, 1) if the recipe does not contain the key, or
        the command line set it."""
        if not route or route[0] in self.overrides:
            return (1, 1)
        trees = (self.body_tree, self.header_tree)
        if str(route[0]).startswith(HEADER_FIELD_MARK):
            route, trees = (str(route[0]).removeprefix(HEADER_FIELD_MARK), *route[1:]), (None, self.header_tree)
        holding = (tree for tree in trees if tree and tree.holds(route[0]))
        return next((tree.position(route, at_key) for tree in holding), (1, 1))


def load_recipe(path: str) -> Document:
    """Return the recipe in a file. Never raises: `problems` of the document says what is wrong."""
    try:
        return parse_recipe(path, read_text(path))
    except RecipeError as err:
        return Document(path, problems=[Diagnostic("LOA001", Severity.ERROR, str(err))])


def load_valid_recipe(path: str) -> Document:
    """Return the recipe in a file. Raises RecipeError with the first error if the recipe cannot be read without
    errors."""
    document = load_recipe(path)
    for problem in document.problems:
        if problem.severity is Severity.ERROR:
            raise RecipeError(f"{path}:{problem.line}:{problem.column}: {problem.message} [{problem.code}]")
    return document


def parse_recipe(path: str, text: str) -> Document:
    """Return the recipe in a text. Never raises: `problems` of the document says what is wrong. `path`: the path to
    show in messages."""
    document = _parse_yaml(path, text)
    block = find_header_block(text)
    if isinstance(block, Diagnostic):
        document.problems.append(block)
        return document
    if block:
        _add_header(document, block)
    if stray := _find_stray_header(text, block):
        document.problems.append(stray)
    return document


def _parse_yaml(path: str, text: str) -> Document:
    document = Document(path, text)
    _read_values(document, text)
    return document


def _read_values(document: Document, text: str) -> None:
    """Add the values of the text to the document. A line that is not `key: value` is reported, and the remaining lines
    are read."""
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
    """Return the recipe's text with the line that is not `key: value` replaced by a comment of the same length, and add
    a finding about the line to `problems`. `err`: the parser's error at that line. An empty string if there are too
    many such lines, or if the error is only that a key is longer than libyaml allows."""
    lines, (line, column) = text.splitlines(keepends=True), err.position
    keyless_text = lines[line - 1].rstrip()[column - 1 :] if line <= len(lines) else ""
    if not keyless_text or len(keyless_text) > _LONGEST_KEY or len(problems) >= _MAX_KEYLESS_LINES:
        return ""
    space = "; a space belongs behind the colon" if re.match(r"\w+:\S", keyless_text) else ""
    problems.append(
        Diagnostic(_KEYLESS_LINE, Severity.ERROR, f"`{clip(keyless_text)}` is no `key: value`{space}", line, column)
    )
    before, behind = lines[line - 1][: column - 1], lines[line - 1][column - 1 + len(keyless_text) :]
    lines[line - 1] = before + "#".ljust(len(keyless_text)) + behind
    return "".join(lines)


def _check_document(root: Node, problems: list[Diagnostic]) -> bool:
    """True if a document can be turned into values, because it is a mapping that OmegaConf accepts. `root`: the
    document's root node. Findings about the document are added to `problems`."""
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
    """Return the recipe in a file with the overrides applied. Raises RecipeError if the recipe cannot be read or has no
    keys, or if an override is malformed."""
    document = load_valid_recipe(path)
    if not document.values:
        raise RecipeError(f"{path}:1:1: holds no key; a recipe needs at least a model [LOA006]")
    return with_overrides(document, overrides)


def with_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """Return the document with the overrides applied. Raises RecipeError if an override is malformed."""
    if not overrides:
        return document
    values = dict(document.values)
    for text in overrides:
        match = re.fullmatch(_OVERRIDE_FORM, text)
        if not match:
            written = re.fullmatch(r"(\w+):\s*(\S+)", text) or re.fullmatch(r"--(\w+)", text)
            example = f"{written[1]}={'VALUE' if text[0] == '-' else written[2]}" if written else "learning_rate=1e-4"
            raise RecipeError(f"override `{clip(text)}` is not of the form KEY=VALUE, such as {example}")
        names = match[1].split(".")
        if len(names) > _MAX_NAMES:
            raise RecipeError(f"override `{clip(text)}` names {len(names):,} keys, {_MAX_NAMES} at most")
        try:
            omegaconf.refuse_oversized(match[2])
            _assign_value(values, names, omegaconf.compose_yaml(match[2], _check_value)[1])
        except ValueError:
            raise RecipeError(f"override `{clip(text)}`: the value is not valid YAML; quote it") from None
    words = {text.partition("=")[0].split(".")[0]: text for text in overrides}
    # A path of a bundled recipe is made absolute by this program, so its place stays that in the file.
    typed = {key: text for key, text in words.items() if not _is_made_absolute(document.values.get(key), values[key])}
    return replace(document, values=values, overrides={**document.overrides, **typed})


def _is_made_absolute(before: Any, after: Any) -> bool:
    """True if a value is the absolute form of a path that stood there before."""
    are_texts = isinstance(before, str) and isinstance(after, str)
    return are_texts and Path(after).is_absolute() and after.endswith(f"/{before}")


def with_header_fields(document: Document, **fields: Any) -> Document:
    """Return a copy of the document with these fields set in its header block. A field whose value is None keeps the
    value that the header block has."""
    set_fields = {name: value for name, value in fields.items() if value is not None}
    return replace(document, header={**document.header, **set_fields}) if set_fields else document


def with_missing_header_fields(document: Document, fields: Mapping[str, Any]) -> Document:
    """Return a copy of the document whose header block gets each of `fields` that it lacks."""
    return with_header_fields(document, **{name: fields[name] for name in fields if document.header.get(name) is None})


def path_override(key: str, path: str) -> str:
    """Return an override (`KEY=VALUE`) that sets a key to a path, quoted as YAML requires."""
    return f"{key}={format_scalar(path)}"


def _check_value(root: Node) -> bool:
    """Return True if OmegaConf accepts the value of an override, of which `root` is the root node; otherwise raise
    ValueError."""
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
    """Return the value of a key after an override. If both values are mappings, they are merged key by key; otherwise
    `new` replaces `old`. Raises RecipeError if one value is a list and the other a mapping."""
    if {type(old), type(new)} == {list, dict}:
        raise RecipeError("an override gives a list for a mapping, or a mapping for a list; give what the recipe has")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merge_values(old.get(key), value) for key, value in new.items()}}
