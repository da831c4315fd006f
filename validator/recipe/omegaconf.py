"""YAML 1.1 in OmegaConf's dialect: from text to nodes, which know their positions, and from nodes to values; the limits
on size, depth and aliases; and what OmegaConf refuses. No other module imports PyYAML.

OmegaConf differs from plain PyYAML in these ways, all of which are reproduced here: `1e-4` is a number, dates stay
text, a key written twice is an error, aliases may not expand a document far, `${` must begin a well-formed
interpolation (which LLaMA-Factory then leaves unresolved), and sets, dates by tag and null keys are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import yaml

from validator.finding import Diagnostic, Edit, Fix, Severity
from validator.wording import clip

Position = tuple[int, int]  # line and column, both from 1
STRING_TAG = "tag:yaml.org,2002:str"
NULL_TAG = "tag:yaml.org,2002:null"
INTEGER_TAG = "tag:yaml.org,2002:int"
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"
# Greater whole numbers are no floats any more, and mean nothing. Python itself reads 4,300 digits, in base 16 any.
_MAX_BITS, _TOO_MANY_DIGITS = 1023, "Exceeds the limit"
_KEY_CONTEXT = "while scanning a simple key"  # libyaml, which stops behind it
MAX_DEPTH = 100  # levels; OmegaConf recurses
_TOO_DEEP_MESSAGE = "exceeded maximum nesting depth"  # libyaml by itself, in newer releases from 1,000 levels on
_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


if TYPE_CHECKING:  # the class of a protocol takes as long to make as reading a recipe

    class _Mark(Protocol):
        index: int
        line: int
        column: int

    class Node(Protocol):
        """A node as PyYAML composes it: `id` is scalar, sequence or mapping."""

        id: str
        tag: str
        value: Any
        start_mark: _Mark
        end_mark: _Mark

else:
    Node = yaml.Node


class _ExactLoader(_BaseLoader):  # type: ignore[misc]
    """PyYAML's safe loader with clear errors: values at which PyYAML's constructors fail with a Python error, such as
    `!!bool x` and `!!int ""`, raise MalformedError."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except MalformedError:
            raise
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as err:
            has_too_many_digits = str(err).startswith(_TOO_MANY_DIGITS)
            raise _value_error(
                node, "has too many digits" if has_too_many_digits else f"is no {node.tag.rpartition(':')[2]}"
            ) from None
        if type(value) is int and value.bit_length() > _MAX_BITS:
            raise _value_error(node, "has too many digits")
        return value


class _OmegaConfLoader(_ExactLoader):
    """PyYAML's safe loader that gives plain scalars the types that OmegaConf gives them (the implicit resolvers of
    omegaconf/_yaml.py), so that `1e-4` is a number. Interpolations such as `${name}` are not resolved here."""


_OmegaConfLoader.add_implicit_resolver(
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
_OmegaConfLoader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != _TIMESTAMP_TAG]
    for first, pairs in _OmegaConfLoader.yaml_implicit_resolvers.items()
}


class MalformedError(ValueError):
    """Raised for text that is not valid YAML. `position`: line and column where the reader stopped. `keyless`: True if
    the reader stopped at a line that is not `key: value`."""

    def __init__(self, what: str, position: Position = (1, 1), keyless: bool = False) -> None:
        super().__init__(what)
        self.position = position
        self.keyless = keyless


def compose_yaml(text: str, judge: Callable[[Node], bool]) -> tuple[Node | None, Any]:
    """Return the root node of a YAML document and its value; None and None for an empty document. `judge` inspects the
    root node first and returns False if no value shall be made; the value is then None. Raises MalformedError for
    invalid YAML, or ValueError if a value cannot be made."""
    loader = _OmegaConfLoader(text)
    try:
        node = loader.get_single_node()
        is_accepted = node is not None and judge(node)
        return node, loader.construct_document(node) if is_accepted else None
    except yaml.YAMLError as err:
        raise _malformed_error(err) from None
    finally:
        loader.dispose()


def load_plain_yaml(text: str) -> Any:
    """Return the value of YAML text as PyYAML reads it, without OmegaConf's differences. Raises MalformedError for
    invalid YAML."""
    try:
        return yaml.load(text, Loader=_ExactLoader)
    except yaml.YAMLError as err:
        raise _malformed_error(err) from None


def count_nodes(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield three numbers after each event of the YAML parser: how many nodes have begun, how many lists and mappings
    are open, and the line. The text is parsed without recursion. Raises MalformedError for invalid YAML."""
    nodes = depth = 0
    try:
        for event in yaml.parse(text, Loader=_OmegaConfLoader):
            nodes += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            yield nodes, depth, event.start_mark.line + 1 if event.start_mark else 1
    except yaml.YAMLError as err:
        raise _malformed_error(err) from None


def yaml_integer(text: str) -> int:
    """Return the integer that YAML 1.1 reads in the text, including base 8 (`010`) and base 60 (`1:30`)."""
    return int(yaml.constructor.SafeConstructor().construct_yaml_int(yaml.ScalarNode(INTEGER_TAG, text)))


def node_position(node: Node) -> Position:
    """Return the line and column where a node begins."""
    return (node.start_mark.line + 1, node.start_mark.column + 1)


def node_end(node: Node) -> Position:
    """Return the line and column just after a node's text."""
    return (node.end_mark.line + 1, node.end_mark.column + 1)


def node_span(node: Node) -> tuple[int, int]:
    """Return the offsets in the document where a node's text begins and ends. The end of a node in block style includes
    the blank text up to the next node."""
    return node.start_mark.index, node.end_mark.index


def is_flow_style(node: Node) -> bool:
    """True for a list or mapping that is written in brackets."""
    return bool(getattr(node, "flow_style", False))


def is_scalar_of(node: Node, tag: str) -> bool:
    """True if the node is a single value with this tag; False for lists and mappings."""
    return node.tag == tag and node.id == "scalar"


def mapping_pairs(node: Node) -> list[tuple[Node, Node]]:
    """Return the key and value nodes of a mapping; an empty list for any other node."""
    return list(node.value) if node.id == "mapping" else []


def child_values(node: Node) -> list[Node]:
    """Return the value nodes of a mapping or a list; an empty list for a single value."""
    if node.id == "mapping":
        return [value for _, value in node.value]
    return list(node.value) if node.id == "sequence" else []


def _value_error(node: Node, why: str) -> MalformedError:
    text = node.value if isinstance(node.value, str) else node.id
    return MalformedError(f"not valid YAML: `{clip(text)}` {why}", node_position(node))


# By words of PyYAML's messages.
_YAML_REMEDIES = {
    "tab character": "; indent by spaces",
    "cannot start any token": "; quote the value, or, if it is a tab, indent by spaces",
}


def _malformed_error(err: yaml.YAMLError) -> MalformedError:
    keyless = getattr(err, "context", None) == _KEY_CONTEXT
    marks = [getattr(err, name, None) for name in ("problem_mark", "context_mark")]
    mark = marks[1] if keyless else marks[0] or marks[1]
    what = getattr(err, "problem", None) or getattr(err, "reason", None) or "not readable"
    what = "a line is no `key: value`" if keyless else what
    what += next((remedy for words, remedy in _YAML_REMEDIES.items() if words in what), "")
    what = f"nested more than {MAX_DEPTH} levels deep" if what == _TOO_DEEP_MESSAGE else what
    return MalformedError(f"not valid YAML: {what}", (mark.line + 1, mark.column + 1) if mark else (1, 1), keyless)


_MAX_NODES = 10_000
# OmegaConf also refuses aliases that make a document of more than 1,000 nodes a hundred times larger.
_MAX_RATIO, _RATIO_NODES = 100, 1_000
_MAX_HANDLES = 100
_LARGE_TEXT = 1 << 14  # characters


def refuse_oversized(text: str) -> None:
    """Raise ValueError for text that would take long to compose, or would overflow the C parser's stack. Short texts
    are not inspected, because only a long text can hold that much."""
    if len(text) < _LARGE_TEXT:
        return
    if text.count("\n%TAG") > _MAX_HANDLES:  # libyaml compares each with all before it
        raise ValueError(f"more than {_MAX_HANDLES} `%TAG` directives")
    for nodes, levels, line in count_nodes(text):
        if levels > MAX_DEPTH:
            raise ValueError(f"line {line} is nested more than {MAX_DEPTH} levels deep")
        if nodes > _MAX_NODES:
            raise MalformedError(f"not valid YAML: more than {_MAX_NODES:,} values", (line, 1))


def refuse_expansion(root: Node) -> None:
    """Raise MalformedError for recursive aliases, deep nesting, and documents that aliases expand beyond OmegaConf's
    limits."""
    sizes: dict[int, int] = {}
    total = _expanded_size(root, frozenset(), sizes)
    if total > _RATIO_NODES and total > _MAX_RATIO * len(sizes):
        raise _limit_error(f"aliases make {total:,} values of {len(sizes)}", root)


def _expanded_size(node: Node, above: frozenset[int], sizes: dict[int, int]) -> int:
    """Return the number of nodes in a subtree with its aliases expanded. `above`: ids of the nodes that contain this
    one; `sizes`: sizes already computed, by id. Raises MalformedError for a recursive alias, deep nesting, or too many
    nodes."""
    if id(node) in above:
        raise _limit_error("an alias contains itself", node)
    if len(above) > MAX_DEPTH:
        raise _limit_error(f"nested more than {MAX_DEPTH} levels deep", node)
    if id(node) not in sizes:
        inner_ids = above | {id(node)}
        keys = [key for key, _ in mapping_pairs(node)]
        sizes[id(node)] = 1 + sum(_expanded_size(child, inner_ids, sizes) for child in [*keys, *child_values(node)])
    if sizes[id(node)] > _MAX_NODES:
        raise _limit_error(f"more than {_MAX_NODES:,} values, aliases expanded", node)
    return sizes[id(node)]


def _limit_error(what: str, node: Node) -> MalformedError:
    return MalformedError(f"not valid YAML: {what}", node_position(node))


# What a value holds is looked at by many rules, each of which takes longer the longer it is.
_LONGEST_VALUE = 1 << 15  # characters
# But for lists of new tokens, of which there may be thousands: codes of pictures, sounds or actions.
_LONG_LISTS = ("add_tokens", "add_special_tokens")
WRITTEN_TWICE = "LOA004"
_REFUSED_TAGS = {"tag:yaml.org,2002:set", "tag:yaml.org,2002:timestamp"}
# What OmegaConf's grammar takes behind `${`, with the `}`: a path of keys, or a resolver with arguments.
# \0 stands for the text `${`; \x01 for an interpolation within another, which is a key by itself and no part of one;
# \x02 for one without a name, which no other may hold.
_GRAMMAR_KEY = r"""(?:(?:[^\\{}()\[\]:.\s'"\0\x01\x02]|\\[.:=\[\]\\])+|\x01)"""
_GRAMMAR_NODE = rf"\.*(?:{_GRAMMAR_KEY}|\[{_GRAMMAR_KEY}\])(?:\.{_GRAMMAR_KEY}|\[{_GRAMMAR_KEY}\])*"
_GRAMMAR_WORD = r"[\w/\-+.$%*@?|]+"
_GRAMMAR_NAMELESS = rf":\s*{_GRAMMAR_WORD}(?:\s*,\s*{_GRAMMAR_WORD})*"
_GRAMMAR_NAME = r"(?:[A-Za-z_][\w\-]*|\x01)"
_GRAMMAR_PATH = rf"\s*+(?:{_GRAMMAR_NODE}|(?P<nameless>{_GRAMMAR_NAMELESS}))\s*\}}"
_GRAMMAR_RESOLVER = rf"\s*{_GRAMMAR_NAME}(?:\.{_GRAMMAR_NAME})*\s*:"
_GRAMMAR_ESCAPE = r"\\[\\()\[\]{}:=, \t]"
_GRAMMAR_ARGUMENT = rf"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|(?:{_GRAMMAR_ESCAPE}|[\w/\-+.$%*@?|:\\ \t\x01])+"""
_GRAMMAR_MAPPED_KEY = rf"(?:{_GRAMMAR_ESCAPE}|[\w/\-+.$%*@?|\\ \t])+:"
# Brackets that may be open among the arguments of a resolver, with those that close them.
_CLOSING_BRACKET = {"resolver": "}", "list": "]", "mapping": "}"}
# The parts that may follow the last part inside such a bracket. A part is a comma, a colon (with the key before it), a
# value (quoted text or words) or a bracket.
_PARTS_THAT_FOLLOW = {
    "resolver": {"": ("value", "open", ",", "close"), ",": ("value", "open", ",", "close"), "value": (",", "close")},
    "mapping": {"": (":", "close"), ",": (":",), ":": ("value", "open"), "value": (",", "close")},
}
_PARTS_THAT_FOLLOW["list"] = _PARTS_THAT_FOLLOW["resolver"]
_FIRST_WIDTH = 16  # characters
_ESCAPED_INTERPOLATION = r"(?<!\\)(?:\\\\)*\\\$\{"


def find_refusals(node: Node, top: bool = True) -> Iterator[Diagnostic]:
    """Yield the findings about a node and the nodes inside: LOA001 (a value that is too long), LOA002 (what OmegaConf
    refuses) and LOA004 (a key written twice). `top`: True if the node is the whole document."""
    yield from _refused_keys(node, top)
    if node.tag in _REFUSED_TAGS:
        yield error_at_node(
            "LOA002", f"`!!{node.tag.rpartition(':')[2]}` is not a type that LLaMA-Factory's reader takes", node
        )
    elif is_scalar_of(node, STRING_TAG) and "${" in node.value and not _has_valid_interpolations(node.value):
        yield error_at_node(
            "LOA002", "`${` begins an interpolation that is not well formed; write `\\${` for the text", node
        )
    lists = [value for key, value in mapping_pairs(node) if key.value in _LONG_LISTS] if top else ()
    for child in child_values(node):
        if _is_too_long(child) and child not in lists:
            yield _too_long_error(child)
        else:
            yield from find_refusals(child, top=False)


def find_surprising_numbers(node: Node) -> Iterator[Diagnostic]:
    """Yield a finding LOA008 for each top-level number that YAML 1.1 reads in base 8 or 60."""
    for key, value in mapping_pairs(node):
        text = value.value.replace("_", "") if is_scalar_of(value, INTEGER_TAG) else ""
        if ":" in text or (text.lstrip("+-")[:1] == "0" and text.lstrip("+-0").isdecimal()):
            meant, number = f"`{clip(key.value)}: {value.value}`", yaml_integer(value.value)
            if ":" in text:
                what = f"{meant} is read in base 60, as {number}; write {number} if that is meant"
            else:
                what = f"{meant} is read in base 8, as {number}; write {int(text)}, or {number} if that is meant"
            yield error_at_node("LOA008", what, value)._replace(severity=Severity.WARNING, key=key.value)


def error_at_node(code: str, message: str, node: Node) -> Diagnostic:
    """Return a finding of severity error at the line and column where a node begins."""
    return Diagnostic(code, Severity.ERROR, message, *node_position(node))


def _refused_keys(node: Node, top: bool) -> Iterator[Diagnostic]:
    lines: dict[str, int] = {}
    first: dict[str, Node] = {}
    for key, value in mapping_pairs(node):
        if _is_too_long(key):
            yield _too_long_error(key)
        elif key.tag == NULL_TAG:
            yield error_at_node("LOA002", "a key is empty or null; write its name", key)
        elif is_scalar_of(key, STRING_TAG) and key.value in lines:
            text = f"`{clip(key.value)}` is written twice (first on line {lines[key.value]}); remove one"
            same = top and _is_same_scalar(first[key.value], value)
            fix = Fix((Edit("remove", key.value),)) if same else None
            yield error_at_node(WRITTEN_TWICE, text, key)._replace(key=key.value, fix=fix)
        elif is_scalar_of(key, STRING_TAG):
            lines[key.value], first[key.value] = key.start_mark.line + 1, value


def _is_too_long(node: Node) -> bool:
    return node.id == "scalar" and len(node.value) > _LONGEST_VALUE


def _too_long_error(node: Node) -> Diagnostic:
    what = (
        f"{len(node.value):,} characters are written as one value, "
        f"of which no recipe needs more than {_LONGEST_VALUE:,}"
    )
    return error_at_node("LOA001", f"{what}; check that this is the right file", node)


def _is_same_scalar(one: Node, second: Node) -> bool:
    """True if both nodes are single values with the same type and text."""
    return one.id == second.id == "scalar" and (one.tag, one.value) == (second.tag, second.value)


def _has_valid_interpolations(text: str) -> bool:
    """True if every `${` in the text begins a well-formed interpolation. The interpolations are checked from last to
    first, so that inner ones come before those that contain them."""
    _, *parts = re.sub(_ESCAPED_INTERPOLATION, r"\0", text).split("${")
    behind: list[str] = []  # characters, the nearest last
    for part in reversed(parts):
        behind += reversed(part)
        end, nameless = _first_interpolation(behind)
        if not end:
            return False
        behind[-end:] = "\2" if nameless else "\1"
    return True


def _first_interpolation(behind: list[str]) -> tuple[int, bool]:
    """Return the length of the interpolation that follows a `${`, and True if the interpolation has no name. The length
    is 0 if there is no valid interpolation. `behind`: the characters after the `${`, in reverse order. A short
    beginning of them is tried first, then longer ones, so that a text with many interpolations takes linear time."""
    width = _FIRST_WIDTH
    while True:
        text = "".join(behind[: -width - 1 : -1])
        if path := re.match(_GRAMMAR_PATH, text):
            return path.end(), bool(path["nameless"])
        resolver = re.match(_GRAMMAR_RESOLVER, text)
        end = _resolver_end(text, resolver.end()) if resolver else 0
        if end or width >= len(behind):
            return end, False
        width *= _FIRST_WIDTH


def _resolver_end(text: str, at: int) -> int:
    """Return the position after the `}` that closes a resolver, an interpolation with arguments such as `${name:1,2}`;
    0 if the arguments are not valid. `at`: the position where the arguments begin."""
    opened = ["resolver"]
    last = ""  # the last part inside the innermost bracket
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        follows = _PARTS_THAT_FOLLOW[opened[-1]][last]
        part, end = _resolver_part(text, at, _CLOSING_BRACKET[opened[-1]], ":" in follows)
        if part not in follows:
            return 0
        if part == "open":
            opened.append("list" if text[at] == "[" else "mapping")
            last = ""
        elif part == "close":
            opened.pop()
            if not opened:
                return end
            last = "value"
        else:
            last = part
        at = end
    return 0


def _resolver_part(text: str, at: int, closes: str, keyed: bool) -> tuple[str, int]:
    """Return the name and the end of the part that begins at `at` in the arguments of a resolver (`${name:1,2}`). The
    name is a key of _PARTS_THAT_FOLLOW, or empty if no valid part begins at `at`. `closes`: the character that closes
    the innermost open bracket. `keyed`: True if a key and a colon must come next."""
    if text[at] == closes:
        return "close", at + 1
    if text[at] in ",[{":
        return "," if text[at] == "," else "open", at + 1
    match = re.compile(_GRAMMAR_MAPPED_KEY if keyed else _GRAMMAR_ARGUMENT).match(text, at)
    return (":" if keyed else "value", match.end()) if match else ("", at)
