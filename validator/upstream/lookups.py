"""Keys that code looks up in a dictionary it was given."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from validator.upstream.scope import Scope
from validator.upstream.source import name_of

_READERS = ("get_scalar_param", "get_dict_param", "get_list_param")

Bound = Mapping[str, list[Any]]


def keys(scope: Scope, module: str, function: ast.AST, variable: str, given: Bound = {}) -> Iterator[tuple[str, Any]]:  # noqa: B006
    """Keys looked up in `variable` inside a function, with their defaults, and in functions that get all of it.

    `given` holds the values of the function's other parameters, for keys that are passed in.
    """
    bound = {**_defaults(scope, module, function), **given, **_loops(scope, module, function)}
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
            yield from keys(scope, home, node, name, values)
