"""Every rule in the order of its code, and the manual page of each code.

A manual page is the violation in one line, then `Why:`, `Source:` and `Fix:`. `Source:` names what the rule foretells:
`package/file.py:function` (class, method, field, constant) of the releases in data/seen.yaml, or `own (what it rests
on)` if no package's code decides. `python -m tools.read_releases drift` lists the rules whose source another release
changed."""

# ruff: noqa: F401  The modules are imported for the rules that they declare.

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable

from validator.errors import RecipeError
from validator.finding import ManualPage, Severity
from validator.knowledge import releases, tables
from validator.recipe.suggestions import unknown_name
from validator.rules import (
    adapters,
    data_processing,
    dataset_columns,
    dataset_files,
    dataset_size,
    deepspeed_and_recipe,
    deepspeed_file,
    deepspeed_schema,
    device_support,
    evaluating,
    file_paths,
    fsdp_and_accelerate,
    good_practice,
    header_block,
    launch_environment,
    loss_choice,
    memory_fit,
    model_support,
    multimodal_models,
    no_effect,
    number_formats,
    optimizer_choice,
    resume_rules,
    slow_settings,
    template_choice,
    training_arguments,
)
from validator.rules.rule import DECLARED, Rule

RULES = tuple(sorted(DECLARED, key=lambda rule: rule.code))
# What a DeepSpeed file can be judged by without the recipe that uses it: whether it is one, and its contents.
FILE_RULES = tuple(rule for rule in RULES if rule.code.startswith("PAR1") or rule.code == "PTH003")


# A paragraph of a manual page: its title and its text
_PARAGRAPHS = r"(?ms)^ *(Why|Source|Fix):(.*?)(?=^ *(?:Why|Source|Fix):|\n\n|\Z)"


def rule_page(code: str) -> ManualPage:
    """Return the manual page of a code, with the releases that its sources were read in. Raises RecipeError for an
    unknown code."""
    wanted = code.upper()
    pages = tables.yaml_table("manual")
    if wanted in pages:
        return _parse_page(pages[wanted]["name"], Severity(pages[wanted]["severity"]), pages[wanted]["text"].strip())
    for rule in RULES:
        if rule.code == wanted:
            return _parse_page(rule.name, rule.severity, rule.manual or _docstring_in_source(rule))
    raise RecipeError(unknown_name("rule", code, all_codes()))


def _docstring_in_source(rule: Rule) -> str:
    """Return the docstring of a rule as it is written in the source; Python leaves docstrings out with `-OO`."""
    # Python 3.14 leaves them out of what it parses, too, unless it is told not to.
    tree = compile(inspect.getsource(rule.check), rule.code, "exec", ast.PyCF_ONLY_AST, optimize=0)
    assert isinstance(tree, ast.Module)
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    return (ast.get_docstring(function, clean=False) or "").strip()


def rule_pages(codes: Iterable[str]) -> dict[str, ManualPage]:
    """Return the manual pages of several codes."""
    return {code: rule_page(code) for code in sorted(codes)}


def all_codes() -> list[str]:
    """Return every code there is, sorted."""
    return sorted([*tables.yaml_table("manual"), *(rule.code for rule in RULES)])


def _with_releases_read(text: str) -> str:
    packages = {source.partition("/")[0] for source in named_sources(text) if "/" in source}
    seen = ", ".join(f"{package} {releases.verified_release(package)}" for package in sorted(packages))
    return f"{text}\n\nSeen with: {seen}" if seen else text


def named_sources(text: str) -> list[str]:
    """Return the sources that the `Source:` paragraph of a manual page names."""
    paragraph = text.partition("Source:")[2].partition("Fix:")[0]
    return [" ".join(source.split()) for source in paragraph.split(",") if source.strip()]


def fix_paragraph(text: str) -> str | None:
    """Return the `Fix:` paragraph of a manual page as one line; None if there is none."""
    return _paragraph(text, "Fix") or None


def _parse_page(name: str, severity: Severity, text: str) -> ManualPage:
    return ManualPage(
        name, severity, text.split("\n")[0], _paragraph(text, "Why"), _paragraph(text, "Fix"), _with_releases_read(text)
    )


def _paragraph(text: str, title: str) -> str:
    """Return the paragraph behind a title of a page, as one line; empty if there is none."""
    return " ".join(dict(re.findall(_PARAGRAPHS, text)).get(title, "").split())
