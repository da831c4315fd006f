"""All rules in the order of their codes, and the manual page of each code.

A manual page is the violation in one line, then `Why:`, `Source:` and `Fix:`. `Source:` names the code that causes what
the rule predicts: `package/file.py:function` (class, method, field, constant) of the releases in data/seen.yaml, or
`own (reason)` if no package's code decides. `python -m tools.read_releases drift` lists the rules whose source another
release changed."""

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
    adapter_targets,
    adapters,
    data_processing,
    dataset_columns,
    dataset_files,
    dataset_media,
    dataset_size,
    deepspeed_and_recipe,
    deepspeed_file,
    deepspeed_releases,
    deepspeed_schema,
    deepspeed_unjudged,
    device_support,
    evaluating,
    file_paths,
    fsdp_and_accelerate,
    good_practice,
    header_block,
    launch_environment,
    loss_choice,
    memory_fit,
    missing_paths,
    model_releases,
    model_support,
    multimodal_models,
    no_effect,
    no_machine,
    number_formats,
    optimizer_choice,
    resume_rules,
    slow_settings,
    stage_inputs,
    template_choice,
    training_arguments,
    uneven_ranks,
)
from validator.rules.rule import DECLARED, Rule

RULES = tuple(sorted(DECLARED, key=lambda rule: rule.code))
# Notes on what is fine as it is.
PEDANTIC_CODES = frozenset(rule.code for rule in RULES if rule.pedantic)
# What a file can be judged by without the recipe that uses it: a DeepSpeed file, an Accelerate file, and the entries
# of a data set registry.
DEEPSPEED_RULES = tuple(rule for rule in RULES if rule.code.startswith("PAR1") or rule.code == "PTH003")
ACCELERATE_RULES = tuple(rule for rule in RULES if rule.code in ("PAR301", "PAR302", "PAR303"))
_ENTRY_CODES = {
    *("PTH102", "PTH104", "PTH106", "PTH108", "PTH110", "PTH111", "PTH112", "PTH113", "PTH114", "PTH115", "PTH118"),
    "PTH120",
}
ENTRY_RULES = tuple(rule for rule in RULES if rule.code in _ENTRY_CODES)


# A paragraph of a manual page: its title and its text
_PARAGRAPHS = r"(?ms)^ *(Why|Source|Fix):(.*?)(?=^ *(?:Why|Source|Fix):|\n\n|\Z)"


def rule_page(code: str) -> ManualPage:
    """Return the manual page of a rule code, with the package releases in which its sources were read. Raises
    RecipeError for an unknown code."""
    upper_code = code.upper()
    pages = tables.yaml_table("manual")
    if upper_code in pages:
        return _parse_page(
            pages[upper_code]["name"], Severity(pages[upper_code]["severity"]), pages[upper_code]["text"].strip()
        )
    for rule in RULES:
        if rule.code == upper_code:
            return _parse_page(rule.name, rule.severity, rule.manual or _docstring_in_source(rule))
    raise RecipeError(unknown_name("rule", code, all_codes()))


def _docstring_in_source(rule: Rule) -> str:
    """Return the docstring of a rule, read from the rule's source file. Python itself has no docstrings if it was
    started with `-OO`."""
    # Python 3.14 leaves them out of what it parses, too, unless it is told not to.
    tree = compile(inspect.getsource(rule.check), rule.code, "exec", ast.PyCF_ONLY_AST, optimize=0)
    assert isinstance(tree, ast.Module)
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    return (ast.get_docstring(function, clean=False) or "").strip()


def rule_pages(codes: Iterable[str]) -> dict[str, ManualPage]:
    """Return the manual pages of several codes, by code."""
    return {code: rule_page(code) for code in sorted(codes)}


def all_codes() -> list[str]:
    """Return all rule codes, sorted."""
    return sorted([*tables.yaml_table("manual"), *(rule.code for rule in RULES)])


def _with_releases_read(text: str) -> str:
    packages = {source.partition("/")[0] for source in named_sources(text) if "/" in source}
    read_releases = ", ".join(f"{package} {releases.verified_release(package)}" for package in sorted(packages))
    return f"{text}\n\nSeen with: {read_releases}" if read_releases else text


def named_sources(text: str) -> list[str]:
    """Return the entries in the `Source:` paragraph of a manual page, such as
    `llamafactory/hparams/parser.py:get_train_args`."""
    paragraph = text.partition("Source:")[2].partition("Fix:")[0]
    return [" ".join(source.split()) for source in paragraph.split(",") if source.strip()]


def fix_paragraph(text: str) -> str | None:
    """Return the `Fix:` paragraph of a manual page, as one line; None if the page has none."""
    return _paragraph(text, "Fix") or None


def _parse_page(name: str, severity: Severity, text: str) -> ManualPage:
    return ManualPage(
        name, severity, text.split("\n")[0], _paragraph(text, "Why"), _paragraph(text, "Fix"), _with_releases_read(text)
    )


def _paragraph(text: str, title: str) -> str:
    """Return the paragraph of a manual page that begins with `title` and a colon, such as Fix, as one line; an empty
    string if the page has no such paragraph."""
    return " ".join(dict(re.findall(_PARAGRAPHS, text)).get(title, "").split())
