"""What a name means in a module of a package, imports followed, and the values of constant expressions."""

import ast
from collections.abc import Callable
from functools import cache
from typing import Any

from validator.upstream.source import Modules, name_of

Definition = tuple[str, ast.AST]


class Scope:
    """Names of one package."""

    def __init__(self, tree: Modules, package: str) -> None:
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
