"""Type annotations of dataclass fields, reduced to what a YAML value can be."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from validator.upstream.source import name_of

Enums = Mapping[str, Mapping[str, str]]

# `object` stands for a class of which YAML has no value; such a key takes null only.
_ORDER = ("bool", "int", "float", "str", "list", "dict", "object")
_SCALARS = {"bool": "bool", "int": "int", "float": "float", "str": "str", "Path": "str"}


@dataclass(frozen=True)
class Kind:
    """Union of type names, the texts it is limited to, and the texts its list members are limited to."""

    types: frozenset[str]
    choices: tuple[str, ...] = ()
    items: tuple[str, ...] = ()

    @property
    def union(self) -> str:
        """Type names in a fixed order; `object` only where nothing else is left."""
        plain = self.types - {"None", "object"} or {"object"}
        return "|".join(name for name in _ORDER if name in plain)


def parse(node: ast.expr, enums: Enums) -> Kind:
    """Read an annotation; a name that is neither a plain type nor a known enumeration becomes `object`."""
    if isinstance(node, ast.Constant):
        return parse(ast.parse(node.value, mode="eval").body, enums) if isinstance(node.value, str) else _NONE
    if isinstance(node, ast.BinOp):
        return _merge([parse(node.left, enums), parse(node.right, enums)])
    if isinstance(node, ast.Subscript):
        return _subscript(node, enums)
    name = name_of(node)
    if name in enums:
        return Kind(frozenset({"str"}), choices=tuple(enums[name].values()))
    return Kind(frozenset({_SCALARS.get(name) or _container(name)}))


def _subscript(node: ast.Subscript, enums: Enums) -> Kind:
    arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    name = name_of(node.value)
    if name == "Literal":
        return _literal([argument.value for argument in arguments if isinstance(argument, ast.Constant)])
    if name in ("Optional", "Union"):
        kinds = [parse(argument, enums) for argument in arguments]
        return _merge([*kinds, _NONE] if name == "Optional" else kinds)
    inner = parse(arguments[0], enums) if name in ("list", "List") else _NONE
    return Kind(frozenset({_container(name)}), items=inner.choices)


def _container(name: str) -> str:
    return name.lower() if name.lower() in ("list", "dict") else "object"


def _literal(values: Sequence[object]) -> Kind:
    texts = tuple(value for value in values if isinstance(value, str))
    return Kind(frozenset(type(value).__name__ for value in values), choices=texts)


def _merge(kinds: Sequence[Kind]) -> Kind:
    choices = tuple(dict.fromkeys(choice for kind in kinds for choice in kind.choices))
    items = tuple(dict.fromkeys(item for kind in kinds for item in kind.items))
    return Kind(frozenset().union(*(kind.types for kind in kinds)), choices, items)


_NONE = Kind(frozenset({"None"}))
