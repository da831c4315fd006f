"""OmegaConf's dialect of YAML 1.1: text to nodes, which know their positions, and nodes to values. The only importer
of PyYAML.

OmegaConf differs from plain PyYAML in these ways, all reproduced here and in refusals.py: `1e-4` is a number, dates
stay text, a key written twice is an error, aliases may not expand a document far, `${` must begin a well-formed
interpolation (which LLaMA-Factory then leaves unresolved), and sets, dates by tag and null keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import yaml

from validator.read.text import clip

Position = tuple[int, int]  # line and column, both from 1
STRING = "tag:yaml.org,2002:str"
NULL = "tag:yaml.org,2002:null"
INTEGER = "tag:yaml.org,2002:int"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
# Greater whole numbers are no floats any more, and mean nothing. Python itself reads 4,300 digits, in base 16 any.
_MAX_BITS, _TOO_MANY = 1023, "Exceeds the limit"
_KEY = "while scanning a simple key"  # libyaml, which stops behind it
MAX_DEPTH = 100  # levels; OmegaConf recurses
_DEEPER = "exceeded maximum nesting depth"  # libyaml by itself, in newer releases from 1,000 levels on
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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


class _Exact(_Base):  # type: ignore[misc]
    """PyYAML's safe loader, which refuses what its constructors break off at, such as `!!bool x` and `!!int ""`."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except MalformedError:
            raise
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as err:
            many = str(err).startswith(_TOO_MANY)
            raise _unmade(node, "has too many digits" if many else f"is no {node.tag.rpartition(':')[2]}") from None
        if type(value) is int and value.bit_length() > _MAX_BITS:
            raise _unmade(node, "has too many digits")
        return value


class _Loader(_Exact):
    """PyYAML's safe loader with OmegaConf's resolvers (omegaconf/_yaml.py)."""


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
    first: [pair for pair in pairs if pair[0] != _TIMESTAMP] for first, pairs in _Loader.yaml_implicit_resolvers.items()
}


class MalformedError(ValueError):
    """Text that is not YAML. `position` is where the reader stopped; `keyless`: at a line that is no `key: value`."""

    def __init__(self, what: str, position: Position = (1, 1), keyless: bool = False) -> None:
        super().__init__(what)
        self.position = position
        self.keyless = keyless


def compose(text: str, judge: Callable[[Node], bool]) -> tuple[Node | None, Any]:
    """The root node of a document and its value, None where it is empty. `judge` looks at the nodes before values are
    made of them, and says whether to. Raises MalformedError, or ValueError where a value cannot be made."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        made = node is not None and judge(node)
        return node, loader.construct_document(node) if made else None
    except yaml.YAMLError as err:
        raise _malformed(err) from None
    finally:
        loader.dispose()


def plain(text: str) -> Any:
    """The value of text in YAML's own types, as PyYAML gives them. Raises MalformedError."""
    try:
        return yaml.load(text, Loader=_Exact)
    except yaml.YAMLError as err:
        raise _malformed(err) from None


def extents(text: str) -> Iterator[tuple[int, int, int]]:
    """(nodes begun, levels open, line) after each event of the text, found without recursion. Raises MalformedError."""
    nodes = depth = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            nodes += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            yield nodes, depth, event.start_mark.line + 1 if event.start_mark else 1
    except yaml.YAMLError as err:
        raise _malformed(err) from None


def integer(text: str) -> int:
    """What YAML 1.1 reads in a whole number, in base 8 and 60 too."""
    return int(yaml.constructor.SafeConstructor().construct_yaml_int(yaml.ScalarNode(INTEGER, text)))


def position(node: Node) -> Position:
    """Where a node begins."""
    return (node.start_mark.line + 1, node.start_mark.column + 1)


def end(node: Node) -> Position:
    """Where the text after a node begins."""
    return (node.end_mark.line + 1, node.end_mark.column + 1)


def span(node: Node) -> tuple[int, int]:
    """Offsets of the text of a node; of a block it reaches to what follows."""
    return node.start_mark.index, node.end_mark.index


def flows(node: Node) -> bool:
    """Whether it is a list or mapping in brackets."""
    return bool(getattr(node, "flow_style", False))


def single(node: Node, tag: str) -> bool:
    """Whether it is a single value of this tag, which a list may be given, too."""
    return node.tag == tag and node.id == "scalar"


def pairs(node: Node) -> list[tuple[Node, Node]]:
    """Keys and values of a mapping; nothing of any other node."""
    return list(node.value) if node.id == "mapping" else []


def inner(node: Node) -> list[Node]:
    """The values in a mapping or a list."""
    if node.id == "mapping":
        return [value for _, value in node.value]
    return list(node.value) if node.id == "sequence" else []


def _unmade(node: Node, why: str) -> MalformedError:
    text = node.value if isinstance(node.value, str) else node.id
    return MalformedError(f"not valid YAML: `{clip(text)}` {why}", position(node))


def _malformed(err: yaml.YAMLError) -> MalformedError:
    keyless = getattr(err, "context", None) == _KEY
    marks = [getattr(err, name, None) for name in ("problem_mark", "context_mark")]
    mark = marks[1] if keyless else marks[0] or marks[1]
    what = getattr(err, "problem", None) or getattr(err, "reason", None) or "not readable"
    what = "a line is no `key: value`" if keyless else what
    what = f"nested more than {MAX_DEPTH} levels deep" if what == _DEEPER else what
    return MalformedError(f"not valid YAML: {what}", (mark.line + 1, mark.column + 1) if mark else (1, 1), keyless)
