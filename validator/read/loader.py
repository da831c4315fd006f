"""Read a recipe exactly as LLaMA-Factory does (OmegaConf's dialect of YAML 1.1), keeping every position.

OmegaConf 2.4 differs from plain PyYAML in these ways, all reproduced here: `1e-4` is a number, dates stay text, a key
written twice is an error, aliases may not expand a document far, `${` must begin a well-formed interpolation (which
LLaMA-Factory then leaves unresolved), and sets, dates by tag and null keys are refused.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from validator.diagnostic import Diagnostic, RecipeError, Severity

Position = tuple[int, int]
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_BYTES = 1 << 20
_MAX_NODES = 10_000
# OmegaConf also refuses aliases that make a document of more than 1,000 nodes a hundred times larger.
_MAX_RATIO, _RATIO_NODES = 100, 1_000
_MAX_DEPTH = 100
_DEEP_BYTES = 1 << 14
_STRING = "tag:yaml.org,2002:str"
_NULL = "tag:yaml.org,2002:null"
_INTEGER = "tag:yaml.org,2002:int"
_REFUSED = {"tag:yaml.org,2002:set", "tag:yaml.org,2002:timestamp"}
_OPEN, _CLOSE = "# /// recipe", "# ///"
# What OmegaConf's grammar takes between `${` and `}`: a path of keys, or a resolver with arguments.
_KEY = r"""[^\\{}()\[\]:.\s'"]+"""
_NODE = rf"\.*(?:{_KEY}|\[{_KEY}\])(?:\.{_KEY}|\[{_KEY}\])*"
_ARGUMENT = r"""(?:[\w/\-+.$%*@?|:,\\ \t\[\]]|'[^']*'|"[^"]*"|\{[^{}]*\})*"""
_WORD = r"[\w/\-+.$%*@?|]+"
_NAMELESS = rf":\s*(?:{_WORD}(?:\s*,\s*{_WORD})*)?"
_RESOLVER = rf"[A-Za-z_][\w\-]*(?:\.[A-Za-z_][\w\-]*)*\s*:{_ARGUMENT}"
# Compiled when first needed, which few runs do.
_INTERPOLATION = rf"\$\{{\s*(?:{_NODE}|{_NAMELESS}|{_RESOLVER})\s*\}}"
_ESCAPED = r"(?<!\\)(?:\\\\)*\\\$\{"
_OVERRIDE = r"(?s)([^\W\d][\w-]*(?:\.[\w-]+)*)=(.*)"


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader with OmegaConf's resolvers (omegaconf/_yaml.py, 2.4.0)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"""^(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
        |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
        re.X,
    ),
    list("-+0123456789."),
)
_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in _Loader.yaml_implicit_resolvers.items()
}


@dataclass
class Document:
    """A recipe as written. `values` is what LLaMA-Factory receives; positions are 1-based (line, column)."""

    path: str
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Position] = field(default_factory=dict)
    marks: dict[str, Position] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    header_marks: dict[str, Position] = field(default_factory=dict)
    header_lines: tuple[int, int] | None = None
    problems: list[Diagnostic] = field(default_factory=list)
    overridden: bool = False

    @property
    def readable(self) -> bool:
        """False where nothing beyond the loading errors can be judged."""
        return not any(d.severity is Severity.ERROR for d in self.problems)

    def mark(self, key: str | None) -> Position:
        """Where a diagnostic about this key points: its value, its header line, or the top of the file."""
        if key is None:
            return (1, 1)
        return self.marks.get(key) or self.header_marks.get(key) or (1, 1)


def read_text(path: str) -> str:
    """The file as text, standard input for `-`. Raises RecipeError with one clear sentence where it cannot be read."""
    if path == "-":
        return decode(sys.stdin.buffer.read(_MAX_BYTES + 1))
    try:
        if Path(path).is_dir():
            raise RecipeError("is a folder, not a file")
        with Path(path).open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as err:
        raise RecipeError(f"cannot be read: {(err.strerror or str(err)).lower()}; check the path") from None
    return decode(data)


def decode(data: bytes) -> str:
    """Bytes of a recipe as text. Raises RecipeError for binary content or a file over 1 MiB."""
    if len(data) > _MAX_BYTES:
        raise RecipeError("is larger than 1 MiB, which no recipe is; check that this is the right file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise RecipeError(f"is not UTF-8 text (byte {err.start}); save it as UTF-8") from None
    if "\0" in text:
        raise RecipeError("contains NUL bytes, so it is not a text file")
    return text


def load(path: str) -> Document:
    """Read one recipe file. Never raises: whatever is wrong is in `problems`."""
    try:
        return parse(path, read_text(path))
    except RecipeError as err:
        return Document(path, problems=[Diagnostic("LOA001", Severity.ERROR, str(err))])


def parse(path: str, text: str) -> Document:
    """Read recipe text. Never raises: whatever is wrong is in `problems`."""
    doc = Document(path, text)
    try:
        _read_body(doc)
    except yaml.YAMLError as err:
        doc.problems.append(_yaml_problem(err))
    except ValueError as err:
        doc.problems.append(Diagnostic("LOA002", Severity.ERROR, f"not readable as YAML: {err}"))
    if _OPEN in text:
        _read_header(doc)
    return doc


def with_overrides(doc: Document, overrides: Sequence[str]) -> Document:
    """The document after LLaMA-Factory's own `KEY=VALUE` overrides. Raises RecipeError on a malformed one."""
    if not overrides:
        return doc
    values = dict(doc.values)
    for text in overrides:
        match = re.fullmatch(_OVERRIDE, text)
        if not match:
            raise RecipeError(f"override `{_clip(text)}` is not of the form KEY=VALUE, such as learning_rate=1e-4")
        try:
            _assign(values, match[1].split("."), _value(match[2]))
        except (yaml.YAMLError, ValueError):
            raise RecipeError(f"override `{_clip(text)}`: the value is not valid YAML; quote it") from None
    changed = {text.partition("=")[0].split(".")[0] for text in overrides}
    marks = {key: mark for key, mark in doc.marks.items() if key not in changed}
    keys = {key: mark for key, mark in doc.keys.items() if key not in changed}
    return replace(doc, values=values, marks=marks, keys=keys, overridden=True)


def read_yaml(path: str) -> Any:
    """A data file in YAML, by its own types (plain PyYAML). Raises RecipeError where it is unreadable."""
    try:
        return yaml.load(read_text(path), Loader=_Base)
    except yaml.YAMLError as err:
        raise RecipeError(f"{path} is not valid YAML: {_yaml_problem(err).message}") from None


def parse_data(text: str) -> Any:
    """Trusted YAML text of our own data files."""
    return yaml.load(text, Loader=_Base)


def read_json(path: str) -> Any:
    """A JSON file. Raises RecipeError naming the line where it is broken."""
    try:
        return json.loads(read_text(path))
    except RecipeError as err:
        raise RecipeError(f"`{path}` {err}") from None
    except json.JSONDecodeError as err:
        where = f"line {err.lineno} column {err.colno}"
        raise RecipeError(f"`{path}` is not valid JSON: {err.msg.lower()} at {where}") from None
    except (RecursionError, ValueError) as err:
        what = "is nested too deeply" if isinstance(err, RecursionError) else "holds a number of too many digits"
        raise RecipeError(f"`{path}` {what} to be read") from None


def _assign(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = values.get(name)
        if isinstance(inner, list):
            raise RecipeError(f"override of `{'.'.join(path)}`: `{name}` is a list; give it whole, as {name}=[…]")
        values[name] = dict(inner) if isinstance(inner, dict) else {}
        values = values[name]
    values[path[-1]] = _merged(values.get(path[-1]), value)


def _merged(old: Any, new: Any) -> Any:
    """Mappings are merged key by key, everything else is replaced; a list and a mapping do not go together."""
    if {type(old), type(new)} == {list, dict}:
        raise RecipeError("an override gives a list for a mapping, or a mapping for a list; give what the recipe has")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _read_body(doc: Document) -> None:
    _limit_depth(doc.text)
    loader = _Loader(doc.text)
    try:
        node = loader.get_single_node()
        if node is None or node.tag == _NULL:
            return
        if not isinstance(node, yaml.MappingNode):
            kind = {"sequence": "a list", "scalar": "a single value"}[node.id]
            doc.problems.append(_at("LOA003", f"is {kind}, not a mapping; write `key: value` lines", node))
            return
        _limit(node)
        _note_positions(doc, node)
        faults = list(_faults(node))
        doc.problems.extend(faults or _surprises(node))
        if not faults:
            doc.values = loader.construct_document(node)
    finally:
        loader.dispose()


def _value(text: str) -> Any:
    """The value of an override. Raises YAMLError or ValueError where OmegaConf would refuse it."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _limit(node)
        for fault in _faults(node):
            raise ValueError(fault.message)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _note_positions(doc: Document, node: yaml.MappingNode) -> None:
    for key, value in node.value:
        if key.id == "scalar":
            doc.keys.setdefault(key.value, _position(key))
            doc.marks.setdefault(key.value, _position(value))


def _limit_depth(text: str) -> None:
    """Refuse nesting that would overflow the C parser's stack; only a large file can hold that much."""
    if len(text) < _DEEP_BYTES:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            where = f"line {event.start_mark.line + 1}" if event.start_mark else "the file"
            raise ValueError(f"{where} is nested more than {_MAX_DEPTH} levels deep")


def _limit(root: yaml.Node) -> None:
    """Refuse recursive aliases, deep nesting, and documents that aliases expand beyond OmegaConf's limits."""
    sizes: dict[int, int] = {}

    def refuse(what: str, node: yaml.Node) -> None:
        raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)

    def size(node: yaml.Node, above: frozenset[int]) -> int:
        if id(node) in above:
            refuse("an alias contains itself", node)
        if len(above) > _MAX_DEPTH:
            refuse(f"nested more than {_MAX_DEPTH} levels deep", node)
        if id(node) not in sizes:
            inner = above | {id(node)}
            sizes[id(node)] = 1 + sum(size(child, inner) for child in _children(node))
        if sizes[id(node)] > _MAX_NODES:
            refuse(f"more than {_MAX_NODES:,} values, aliases expanded", node)
        return sizes[id(node)]

    total = size(root, frozenset())
    if total > _RATIO_NODES and total > _MAX_RATIO * len(sizes):
        refuse(f"aliases make {total:,} values of {len(sizes)}", root)


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _inner_values(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        yield from (value for _, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _faults(node: yaml.Node) -> Iterator[Diagnostic]:
    """What OmegaConf refuses although YAML allows it."""
    if isinstance(node, yaml.MappingNode):
        yield from _duplicates(node)
        for key, _ in node.value:
            if key.tag == _NULL:
                yield _at("LOA002", "a key is empty or null; write its name", key)
    if node.tag in _REFUSED:
        yield _at("LOA002", f"`!!{node.tag.rpartition(':')[2]}` is not a type that LLaMA-Factory's reader takes", node)
    elif node.tag == _STRING and "${" in node.value and not _interpolates(node.value):
        yield _at("LOA002", "`${` begins an interpolation that is not well formed; write `\\${` for the text", node)
    for child in _inner_values(node):
        yield from _faults(child)


def _duplicates(node: yaml.MappingNode) -> Iterator[Diagnostic]:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if key.tag == _STRING and key.value in seen:
            text = f"`{_clip(key.value)}` is written twice (first on line {seen[key.value]}); remove one"
            yield _at("LOA004", text, key)._replace(key=key.value)
        elif key.tag == _STRING:
            seen[key.value] = key.start_mark.line + 1


def _surprises(node: yaml.MappingNode) -> Iterator[Diagnostic]:
    """Numbers that YAML 1.1 reads in base 8 or 60, which hardly anybody means."""
    for key, value in node.value:
        text = value.value.replace("_", "") if value.tag == _INTEGER else ""
        if ":" in text or (text.lstrip("+-")[:1] == "0" and text.lstrip("+-0").isdecimal()):
            number = yaml.constructor.SafeConstructor().construct_yaml_int(value)
            yield _at("LOA008", f"`{_clip(key.value)}: {value.value}` is read as {number}", value)._replace(
                severity=Severity.WARNING, key=key.value
            )


def _interpolates(text: str) -> bool:
    """Whether every `${` begins a well-formed interpolation; inner ones are reduced to a plain word first."""
    text, found = re.sub(_ESCAPED, r"\\", text), 1  # a backslash, which no key may hold
    while found:
        text, found = re.subn(_INTERPOLATION, "x", text)
    return "${" not in text


def _clip(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _read_header(doc: Document) -> None:
    lines = doc.text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.rstrip() == _OPEN]
    if len(starts) != 1:
        text = f"has {len(starts)} header blocks; keep one `{_OPEN}` … `{_CLOSE}`"
        doc.problems += [Diagnostic("LOA005", Severity.ERROR, text, starts[1] + 1)] if starts else []
        return
    start = starts[0]
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("#")), len(lines))
    close = next((i for i in range(start + 1, end) if lines[i].rstrip() == _CLOSE), None)
    if close is None:
        text = f"header block is not closed; end it with a `{_CLOSE}` line"
        doc.problems.append(Diagnostic("LOA005", Severity.ERROR, text, start + 1))
        return
    doc.header_lines = (start + 1, close + 1)
    _read_header_body(doc, lines[start + 1 : close], start + 1)


def _read_header_body(doc: Document, lines: list[str], offset: int) -> None:
    inner = parse(doc.path, "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    doc.header = inner.values
    doc.header_marks = {key: (line + offset, column + 2) for key, (line, column) in inner.marks.items()}
    doc.problems.extend(
        Diagnostic("LOA005", p.severity, f"header block: {p.message}", p.line + offset, p.column + 2)
        for p in inner.problems
    )


def _yaml_problem(err: yaml.YAMLError) -> Diagnostic:
    mark = getattr(err, "problem_mark", None) or getattr(err, "context_mark", None)
    what = getattr(err, "problem", None) or getattr(err, "reason", None) or "not readable"
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return Diagnostic("LOA002", Severity.ERROR, f"not valid YAML: {what}", line, column)


def _at(code: str, message: str, node: yaml.Node) -> Diagnostic:
    return Diagnostic(code, Severity.ERROR, message, *_position(node))


def _position(node: yaml.Node) -> Position:
    return (node.start_mark.line + 1, node.start_mark.column + 1)
