"""Load, schema, job, rules, advice -> Report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from validator import __version__
from validator.diagnostic import Diagnostic, FileReport, RecipeError, Report, Severity
from validator.job import job
from validator.job.job import Job
from validator.read.recipe import Document, load
from validator.read.text import read_text
from validator.rules import engine, manual, schema
from validator.rules.rule import Rule

_SUFFIXES = (".yaml", ".yml")


def check(paths: Sequence[str], machine: str | None = None, host_ram_gib: float | None = None) -> Report:
    """All findings of all files. Folders stand for the files in them; `-` is standard input. Never raises."""
    report = Report(__version__)
    for path in paths:
        found = [check_file(name, machine, host_ram_gib) for name in _expand(path)]
        report.files += found or [_unread(path, "holds no recipe (.yaml) and no DeepSpeed file (.json)")]
    return report


def check_file(path: str, machine: str | None = None, host_ram_gib: float | None = None) -> FileReport:
    """All findings of one file: a recipe, or a DeepSpeed JSON file by its suffix. Never raises for bad input."""
    if path.endswith(".json"):
        return _check_zero(path)
    return check_document(load(path), machine, host_ram_gib)


def _unread(path: str, why: str) -> FileReport:
    return FileReport(path, [Diagnostic("LOA001", Severity.ERROR, why)])


def check_document(document: Document, machine: str | None = None, host_ram_gib: float | None = None) -> FileReport:
    """All findings of a recipe that has been read."""
    report = FileReport(document.path, list(document.problems), text=document.text)
    if not document.readable:
        return report
    if not document.values:
        report.diagnostics.append(Diagnostic("LOA006", Severity.ERROR, "holds no key; a recipe needs at least a model"))
        return report
    if document.path != "-" and not document.path.endswith(_SUFFIXES):
        text = "is read by LLaMA-Factory only if its name ends with .yaml or .yml, in lower case; rename it"
        report.diagnostics.append(Diagnostic("LOA007", Severity.ERROR, text))
    report.diagnostics += schema.check(document)
    refused = frozenset(d.key for d in report.diagnostics if d.severity is Severity.ERROR and d.key)
    found = job.resolve(document, machine, host_ram_gib, refused)
    report.diagnostics += _apply(engine.RULES, found, document, refused)
    report.diagnostics.sort(key=lambda d: (d.line, d.column, d.code))
    report.verdict = found.verdict
    return report


def _check_zero(path: str) -> FileReport:
    """A DeepSpeed file by itself: what can be said without the recipe that uses it."""
    try:
        text = read_text(path)
    except RecipeError as err:
        return _unread(path, str(err))
    document = Document(path, text, values={"deepspeed": str(Path(path).absolute())})
    found = Job(document.values, path=path, folders=tuple(job.folders(path)))
    return FileReport(path, list(_apply(engine.FILE_RULES, found, document)), text=text)


def _apply(
    chosen: Iterable[Rule], found: Job, document: Document, refused: frozenset[str] = frozenset()
) -> Iterator[Diagnostic]:
    """What the rules find, but nothing more about a key whose value was refused already."""
    for rule, key, message in engine.findings(chosen, found):
        if key not in refused:
            line, column = document.position((key,) if key else ())
            advice = f"; {_advice(found)}" if rule.advised else ""
            yield Diagnostic(rule.code, rule.severity, message + advice, line, column, key, manual.remedy(rule.manual))


def _advice(found: Job) -> str:
    """The nearest change with which both the devices and the host suffice."""
    from validator.advise import changes  # only where something does not fit: not on the path of a clean check

    change = changes.fitting(found)
    return f"set {change}" if change else "no single change fits, see `lmf-recipes explain`"


def _expand(path: str) -> list[str]:
    """The files a path stands for; what cannot be listed is left to the loader to explain."""
    try:
        inside = list(Path(path).iterdir()) if path != "-" and Path(path).is_dir() else None
    except OSError:
        inside = None
    if inside is None:
        return [path]
    return sorted(str(p) for p in inside if p.suffix in (*_SUFFIXES, ".json") and p.is_file())
