"""How many values a document may hold, how deep, and how far its aliases may expand it, before OmegaConf refuses it."""

from __future__ import annotations

from validator.read import dialect
from validator.read.dialect import MAX_DEPTH, MalformedError, Node

_MAX_NODES = 10_000
# OmegaConf also refuses aliases that make a document of more than 1,000 nodes a hundred times larger.
_MAX_RATIO, _RATIO_NODES = 100, 1_000
_MAX_HANDLES = 100
_LARGE = 1 << 14  # characters


def extent(text: str) -> None:
    """Refuse what would take long to compose, or overflow the C parser's stack; only a large file can hold that much.
    Raises ValueError."""
    if len(text) < _LARGE:
        return
    if text.count("\n%TAG") > _MAX_HANDLES:  # libyaml compares each with all before it
        raise ValueError(f"more than {_MAX_HANDLES} `%TAG` directives")
    for nodes, levels, line in dialect.extents(text):
        if levels > MAX_DEPTH:
            raise ValueError(f"line {line} is nested more than {MAX_DEPTH} levels deep")
        if nodes > _MAX_NODES:
            raise MalformedError(f"not valid YAML: more than {_MAX_NODES:,} values", (line, 1))


def expansion(root: Node) -> None:
    """Refuse recursive aliases, deep nesting, and documents that aliases expand beyond OmegaConf's limits. Raises
    MalformedError."""
    sizes: dict[int, int] = {}
    total = _size(root, frozenset(), sizes)
    if total > _RATIO_NODES and total > _MAX_RATIO * len(sizes):
        raise _refusal(f"aliases make {total:,} values of {len(sizes)}", root)


def _size(node: Node, above: frozenset[int], sizes: dict[int, int]) -> int:
    """Nodes from this one on, aliases expanded. `above` are those it stands in; `sizes` holds what is known by id."""
    if id(node) in above:
        raise _refusal("an alias contains itself", node)
    if len(above) > MAX_DEPTH:
        raise _refusal(f"nested more than {MAX_DEPTH} levels deep", node)
    if id(node) not in sizes:
        here = above | {id(node)}
        keys = [key for key, _ in dialect.pairs(node)]
        sizes[id(node)] = 1 + sum(_size(child, here, sizes) for child in [*keys, *dialect.inner(node)])
    if sizes[id(node)] > _MAX_NODES:
        raise _refusal(f"more than {_MAX_NODES:,} values, aliases expanded", node)
    return sizes[id(node)]


def _refusal(what: str, node: Node) -> MalformedError:
    return MalformedError(f"not valid YAML: {what}", dialect.position(node))
