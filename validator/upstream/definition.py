"""What a dotted name stands for in a module, and what of it decides how a program runs."""

import ast
from collections.abc import Iterator, Sequence

from validator.upstream.source import name_of

_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definition(tree: ast.Module, name: str) -> ast.stmt | None:
    """The function, class, method, field or constant of a dotted name; None where the module defines none. The last of
    several counts, those in blocks of `if`, `try` and `with` included."""
    body: Sequence[ast.stmt] = tree.body
    last: ast.stmt | None = None
    for part in name.split("."):
        last = next((node for node in reversed(list(_statements(body))) if part in _names(node)), None)
        body = last.body if isinstance(last, _DOCUMENTED) else []
    return last


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, _DOCUMENTED):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def meaning(node: ast.AST) -> str:
    """The syntax tree in words without what does not count when it runs: docstrings, comments, layout, help texts of
    dataclass fields, annotations of a function's arguments and result. Those of fields count: they are read."""
    return ast.dump(_Bare().visit(ast.parse(ast.unparse(node))))


class _Bare(ast.NodeTransformer):
    """Takes away docstrings, the annotations of functions, and the metadata of dataclass fields: their help."""

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.Module, *_DOCUMENTED)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.Call) and name_of(node.func) == "field":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "metadata"]
        return self.generic_visit(node)
