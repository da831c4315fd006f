"""The package's own source, parsed once for all tests that look into it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "validator"


@cache
def modules() -> tuple[str, ...]:
    """Every module as a path without .py, sorted; a package is its `__init__`."""
    return tuple(sorted(path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py")))


@cache
def text(module: str) -> str:
    """The source of a module."""
    return (PACKAGE / f"{module}.py").read_text("utf-8")


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of a module, the module itself first."""
    return tuple(ast.walk(ast.parse(text(module))))
