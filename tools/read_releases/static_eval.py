"""Static evaluation of Python source: the definition behind a name with imports followed, the value of a constant
expression, the keys that a function reads from a dictionary, the types of an annotation, the arguments of calls."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from .packages import ModuleTrees, name_of

Definition = tuple[str, ast.AST]
Bound = Mapping[str, list[Any]]
Enums = Mapping[str, Mapping[str, str]]

_READERS = ("get_scalar_param", "get_dict_param", "get_list_param")
# `object` stands for a class of which YAML has no value; such a key takes null only.
_ORDER = ("bool", "int", "float", "str", "list", "dict", "object")
_SCALARS = {"bool": "bool", "int": "int", "float": "float", "str": "str", "Path": "str"}


class Scope:
    """Names of one package."""

    def __init__(self, tree: ModuleTrees, package: str) -> None:
        self.tree = tree
        self.package = package
        self.find: Callable[[str, str], Definition | None] = cache(self._find)

    def _find(self, module: str, name: str) -> Definition | None:
        """Module and definition of a name: its own last assignment, function or class before what it imports."""
        try:
            body = self.tree(module).body
        except KeyError:
            return None
        for statement in reversed(body):
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and statement.name == name:
                return module, statement
            if isinstance(statement, ast.Assign) and name in [name_of(target) for target in statement.targets]:
                return module, statement.value
        imports = (statement for statement in body if isinstance(statement, ast.ImportFrom))
        return next(filter(None, (self._imported(module, statement, name) for statement in imports)), None)

    def _imported(self, module: str, statement: ast.ImportFrom, name: str) -> Definition | None:
        wanted = {alias.asname or alias.name: alias.name for alias in statement.names}
        if name not in wanted and "*" not in wanted:
            return None
        parents = module.split(".")[: -statement.level] if statement.level else []
        origin = ".".join([*parents, *([statement.module] if statement.module else [])])
        if not origin.startswith(f"{self.package}."):
            return None
        original = wanted.get(name, name)
        return self.find(origin, original) or self.find(f"{origin}.__init__", original)

    def value(self, module: str, node: ast.AST) -> Any:
        """Value of a constant expression; None where it cannot be known without running the package."""
        if isinstance(node, ast.Name) and (place := self.find(module, node.id)):
            return self.value(*place)
        if isinstance(node, ast.Call) and name_of(node.func) == "pp_int":
            value = self.value(module, node.args[0])
            return None if value is None else int(value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return self.value(module, node.left) * self.value(module, node.right)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(module, item) for item in node.elts]
        try:
            return ast.literal_eval(node)
        except ValueError:
            return None


def keys_read(
    scope: Scope, module: str, function: ast.AST, variable: str, argument_values: Bound = MappingProxyType({})
) -> Iterator[tuple[str, Any]]:
    """Keys looked up in `variable` inside a function, with their defaults, and in functions that get all of it.

    `argument_values` holds the values of the function's other parameters, for keys that are passed in.
    """
    bound = {**_defaults(scope, module, function), **argument_values, **_loops(scope, module, function)}
    for node in ast.walk(function):
        for key, default in _lookups(node, variable):
            values = bound.get(name_of(default)) or [scope.value(module, default)] if default else [None]
            for text in bound.get(name_of(key)) or [scope.value(module, key)]:
                if isinstance(text, str):
                    yield text, values[0]
        if isinstance(node, ast.Call):
            yield from _handed_on(scope, module, node, variable)


def _loops(scope: Scope, module: str, function: ast.AST) -> dict[str, list[Any]]:
    loops = (loop for node in ast.walk(function) for loop in getattr(node, "generators", []))
    values = {name_of(loop.target): scope.value(module, loop.iter) for loop in loops}
    return {name: value for name, value in values.items() if isinstance(value, list)}


def _defaults(scope: Scope, module: str, function: ast.AST) -> dict[str, list[Any]]:
    if not isinstance(function, ast.FunctionDef) or not function.args.defaults:
        return {}
    names = [argument.arg for argument in function.args.args[-len(function.args.defaults) :]]
    values = [[scope.value(module, default)] for default in function.args.defaults]
    return dict(zip(names, values, strict=True))


def _lookups(node: ast.AST, variable: str) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Key and default of one look-up: subscript, `in`, `.get` or one of the package's own readers."""
    if isinstance(node, ast.Subscript) and name_of(node.value) == variable:
        yield node.slice, None
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        if name_of(_receiver(node.comparators[0])) == variable:
            yield node.left, None
    elif isinstance(node, ast.Call) and name_of(node.func) in _READERS and name_of(node.args[0]) == variable:
        yield node.args[1], node.args[2]
    elif isinstance(node, ast.Call) and name_of(node.func) == "get" and name_of(_receiver(node)) == variable:
        yield node.args[0], node.args[1] if len(node.args) > 1 else None


def _receiver(node: ast.expr) -> ast.expr:
    """`x` of a method call `x.keys()`, or the expression itself."""
    return node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node


def _handed_on(scope: Scope, module: str, call: ast.Call, variable: str) -> Iterator[tuple[str, Any]]:
    target = scope.find(module, name_of(call.func))
    if target is None or name_of(call.func) in _READERS:
        return
    home, node = target
    if isinstance(node, ast.ClassDef):
        node = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), node)
    if isinstance(node, ast.FunctionDef):
        parameters = [argument.arg for argument in node.args.args if argument.arg != "self"]
        pairs = list(zip(parameters, call.args, strict=False))
        values = {name: [scope.value(module, argument)] for name, argument in pairs}
        for name in [name for name, argument in pairs if name_of(argument) == variable]:
            yield from keys_read(scope, home, node, name, values)


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


def parse_annotation(node: ast.expr, enums: Enums) -> Kind:
    """Read an annotation; a name that is neither a plain type nor a known enumeration becomes `object`."""
    if isinstance(node, ast.Constant):
        return (
            parse_annotation(ast.parse(node.value, mode="eval").body, enums) if isinstance(node.value, str) else _NONE
        )
    if isinstance(node, ast.BinOp):
        return _merge([parse_annotation(node.left, enums), parse_annotation(node.right, enums)])
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
        kinds = [parse_annotation(argument, enums) for argument in arguments]
        return _merge([*kinds, _NONE] if name == "Optional" else kinds)
    inner = parse_annotation(arguments[0], enums) if name in ("list", "List") else _NONE
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


def calls(tree: ast.Module, function: str) -> Iterator[dict[str, ast.expr]]:
    """Keyword arguments of each call of `function` at the top level of a module."""
    calls = (statement.value for statement in tree.body if isinstance(statement, ast.Expr))
    for call in calls:
        if isinstance(call, ast.Call) and name_of(call.func) == function:
            yield {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def _assigned(tree: ast.Module, name: str) -> ast.expr:
    return next(
        statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and name_of(statement.targets[0]) == name
    )


def constant(tree: ast.Module, name: str) -> Any:
    """Value of a literal assigned at the top level of a module."""
    return ast.literal_eval(_assigned(tree, name))


def dict_keys(tree: ast.Module, name: str) -> list[str]:
    """Keys of a dictionary that is written out at the top level of a module."""
    value = _assigned(tree, name)
    assert isinstance(value, ast.Dict)
    return [ast.literal_eval(key) for key in value.keys if key]
