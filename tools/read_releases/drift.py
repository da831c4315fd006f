"""Which rules another release makes stale: those whose source means something else in it.

A rule's manual page names its sources (validator/rules/all_rules.py). Each is looked up in both releases and compared
without docstrings, layout and annotations of functions. A function counts by itself: what it calls, where it matters,
is a source of its own.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from validator.rules import all_rules

from . import arguments, deepspeed_config, families, model_classes, templates
from .packages import Files, ModuleTrees, classes, module_trees, name_of

SAME = "same"
_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Drift(NamedTuple):
    """What became of a source of rules: `same`, `changed`, `gone`, `moved to FILE`, `new` (not in the older release) or
    `unknown` (in neither)."""

    source: str
    state: str
    codes: list[str]


def drift(package: str, old: Files, new: Files) -> list[Drift]:
    """Every source of this package that a rule names, those that did not stay the same first."""
    named: dict[str, list[str]] = {}
    for code in all_rules.all_codes():
        for source in all_rules.named_sources(all_rules.rule_page(code).text):
            if source.startswith(f"{package}/"):
                named.setdefault(source, []).append(code)
    rows = [Drift(source, _state(source, old, new), codes) for source, codes in sorted(named.items())]
    return sorted(rows, key=lambda row: row.state == SAME)


def _state(source: str, old: Files, new: Files) -> str:
    path, _, name = source.partition(":")
    before, after = _meaning(old, path, name), _meaning(new, path, name)
    if before is None:
        return "unknown" if after is None else "new"
    if after is None:
        return next((f"moved to {place}" for place in _places(new, name)), "gone")
    return SAME if before == after else "changed"


def _meaning(package: Files, path: str, name: str) -> str | None:
    node = definition(ast.parse(package[path]), name) if path in package else None
    return meaning(node) if node else None


def _places(package: Files, name: str) -> Iterator[str]:
    """The files that define a name."""
    last = name.rpartition(".")[2].encode()
    for path, text in package.items():
        if last in text and definition(ast.parse(text), name):
            yield path


def tables(package: str, old: Files, new: Files) -> list[str]:
    """The generated tables that would read something else in the newer release, or cannot be read from one of the two;
    `python -m tools.read_releases` writes them."""
    return [name for name, build in _TABLES.get(package, {}).items() if _built(build, old) != _built(build, new)]


def _built(build: Callable[[ModuleTrees], Any], package: Files) -> Any:
    try:
        return build(module_trees(package))
    except (LookupError, StopIteration, ValueError, AssertionError):  # what the table is read from has another form
        return None


def _fields(package: str, tree: ModuleTrees) -> list[str]:
    """The fields and members that arguments.json is read from."""
    nodes = (node for name in arguments.READ[package] for node in classes(tree(f"{package}.{name}")).values())
    return [meaning(field) for node in nodes for field in node.body if isinstance(field, ast.Assign | ast.AnnAssign)]


_TABLES: Mapping[str, Mapping[str, Callable[[ModuleTrees], Any]]] = {
    "llamafactory": {
        "arguments.json": partial(_fields, "llamafactory"),
        "templates.json": partial(templates.templates_table, ""),
        "formats.json": partial(templates.formats_table, ""),
        "families.json": families.columns,
        "model_classes.json": model_classes.loaders,
    },
    "transformers": {
        "arguments.json": partial(_fields, "transformers"),
        "families.json": lambda tree: families.rows(families.kinds(), {"any": tree}),
        "model_classes.json": model_classes.types,
    },
    "deepspeed": {"deepspeed.json": partial(deepspeed_config.table, "")},
}


def report(package: str, old: Files, new: Files) -> tuple[str, bool]:
    """The table in words, and whether there is anything to look at."""
    rows, stale = drift(package, old, new), tables(package, old, new)
    drifted = [row for row in rows if row.state != SAME]
    lines = [f"{row.state:<8} {row.source}\n         {' '.join(row.codes)}" for row in drifted]
    rules = {code for row in drifted for code in row.codes}
    lines.append(f"{len(drifted)} of {len(rows)} sources drifted; look at {len(rules)} rules")
    lines += [f"regenerate {name}" for name in stale]
    return "\n".join(lines), bool(drifted or stale)


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
