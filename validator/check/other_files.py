"""Findings of a file that is no recipe: a DeepSpeed file, an Accelerate file and a data set registry are judged by what
can be said of them without the recipe that uses them. Of any other kind a note says what the file is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from validator.check.locate import Locations
from validator.errors import RecipeError
from validator.finding import Diagnostic, FileReport, FindingOptions, Related, Severity
from validator.knowledge import file_kinds
from validator.knowledge.file_kinds import FileKind
from validator.recipe.known_folders import search_folders
from validator.recipe.recipe_file import Document
from validator.recipe.safe_read import read_text
from validator.rules import all_rules
from validator.rules.problems import run_rules
from validator.rules.rule import Rule
from validator.run import dataset_registry
from validator.run.dataset_registry import REGISTRY_FILE, Registry
from validator.run.fsdp import read_accelerate
from validator.run.settings import RunSettings, run_of_values
from validator.run.workspace import Workspace
from validator.wording import clip, plural, quoted_names

_MAX_MESSAGE = 2_000  # characters of a message
NOT_JUDGED, NOT_RECOGNISED = "LOA013", "LOA014"


def unreadable_report(path: str, why: str) -> FileReport:
    """Return the report of a file or folder that cannot be read, with the reason as its only finding."""
    return FileReport(path, [Diagnostic("LOA001", Severity.ERROR, why)], kind=file_kinds.UNKNOWN)


def unrecognised_report(path: str) -> FileReport:
    """Return the report of a file of no kind that is known, most of whose keys are not LLaMA-Factory's."""
    text = "is not recognised: most of its keys are of no recipe, DeepSpeed file, Accelerate file or data set registry"
    return FileReport(
        path, [Diagnostic(NOT_RECOGNISED, Severity.ERROR, f"{text}; name the right file")], kind=file_kinds.UNKNOWN
    )


def check_other_file(path: str, kind: FileKind, options: FindingOptions) -> FileReport:
    """Return the findings of a file that is no recipe, as far as they do not depend on the recipe that uses it. `path`
    is `-` for standard input, where only recipes are judged. Never raises for bad input."""
    if path == "-":
        return _unjudged_report(path, kind, f"is {kind.words}, and only a recipe is judged from there; give the file")
    if not kind.is_judged:
        return _unjudged_report(path, kind, kind.why_not_judged)
    try:
        text = read_text(path)
    except RecipeError as err:
        return unreadable_report(path, str(err))
    if kind.name == file_kinds.REGISTRY and Path(path).name != REGISTRY_FILE:
        remedy = f"LLaMA-Factory reads none but `{REGISTRY_FILE}` in `dataset_dir`; rename it"
        return _unjudged_report(path, kind, f"is {kind.words} by another name, which is not judged: {remedy}")
    locations = Locations(Document(path, text))
    findings = [*_findings(path, kind, locations, options)]
    return FileReport(path, sort_findings(findings), sources=locations.sources, kind=kind.name)


def _unjudged_report(path: str, kind: FileKind, why: str) -> FileReport:
    return FileReport(path, [Diagnostic(NOT_JUDGED, Severity.NOTE, clip(why, _MAX_MESSAGE))], kind=kind.name)


def _findings(path: str, kind: FileKind, locations: Locations, options: FindingOptions) -> Iterator[Diagnostic]:
    workspace = Workspace(path, tuple(search_folders(path)), untrusted=True, options=options)
    file = Path(path).absolute()
    if kind.name == file_kinds.REGISTRY:
        registry = dataset_registry.read_registry(Path(path))
        for values in _runs_of_entries(registry):
            run = run_of_values({**values, "dataset_dir": str(registry.folder)}, workspace=workspace)
            yield from located_findings(all_rules.ENTRY_RULES, run, locations)
        yield from _absent_files(registry, workspace)
    elif kind.name == file_kinds.ACCELERATE:
        run = run_of_values({}, {"accelerate": str(file)}, workspace=workspace)
        run = replace(run, accelerate=read_accelerate(str(file)))
        yield from located_findings(all_rules.ACCELERATE_RULES, run, locations)
    else:
        run = run_of_values({"deepspeed": str(file)}, workspace=workspace)
        yield from located_findings(all_rules.DEEPSPEED_RULES, run, locations)


def _runs_of_entries(registry: Registry) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of runs that together use all entries of a registry, each in a stage that takes such data."""
    names_by_stage: dict[str, list[str]] = {}
    for name, entry in registry.entries.items():
        if not (isinstance(entry, Mapping) or name[:1].isalnum()):
            continue  # a comment, such as "_comment": "…"
        columns = entry.get("columns") if isinstance(entry, Mapping) else None
        is_pairs = isinstance(entry, Mapping) and entry.get("ranking")
        is_rated = isinstance(columns, Mapping) and columns.get("kto_tag")
        names_by_stage.setdefault("dpo" if is_pairs else "kto" if is_rated else "sft", []).append(name)
    for stage, names in names_by_stage.items() or {"sft": ["-"]}.items():
        yield {"stage": stage, "dataset": names}


def _absent_files(registry: Registry, workspace: Workspace) -> Iterator[Diagnostic]:
    """Yield a note if files that a registry names are not there. They may be where the recipes run."""
    count = len(registry.entries)
    sets = [each for each in map(registry.get, registry.entries) if each and each.source == "file" and not each.present]
    absent = [each.name for each in sets if not workspace.is_taken_to_exist(each.path)]
    if absent:
        found = (
            f"the files of {len(absent)} of {count} data {plural(count, 'set')} are not here ({quoted_names(absent)})"
        )
        text = f"{found}, so only their entries are judged; a recipe that names one needs its file"
        yield Diagnostic(NOT_JUDGED, Severity.NOTE, text)


def located_findings(rules: Iterable[Rule], run: RunSettings, locations: Locations) -> Iterator[Diagnostic]:
    """Yield the findings of the rules, each with its file, line and column."""
    for rule, place, message, fix in run_rules(rules, run):
        remedy = all_rules.fix_paragraph(rule.manual)
        yield locations.diagnostic(rule.code, rule.severity, place, message, remedy, fix)


def sort_findings(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the findings by their position in the checked file, with messages of a limited length, because a message
    may quote a value that is as long as the file."""
    return sorted(map(_clip_message, findings), key=_report_order)


def _clip_message(diagnostic: Diagnostic) -> Diagnostic:
    long = len(diagnostic.message) > _MAX_MESSAGE
    return diagnostic._replace(message=clip(diagnostic.message, _MAX_MESSAGE)) if long else diagnostic


def _report_order(diagnostic: Diagnostic) -> tuple[int, int, str, int, int, str]:
    """Return a key for sorting findings by their position in the checked file. A finding in another file gets the
    position where the checked file names that file."""
    line, column = diagnostic.line, diagnostic.column
    if diagnostic.path is None:
        return line, column, "", line, column, diagnostic.code
    first_related = diagnostic.related[0] if diagnostic.related else Related("", 1, 1, "")
    return first_related.line, first_related.column, diagnostic.path, line, column, diagnostic.code
