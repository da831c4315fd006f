"""Load, schema, job, rules, advice -> Report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from validator import __version__
from validator.diagnostic import Diagnostic, FileReport, RecipeError, Related, Report, Severity
from validator.job.job import Job, folders, resolve
from validator.judge import MARK, unjudged
from validator.judge.location import Locations
from validator.read.recipe import SUFFIXES, Document, load
from validator.read.text import read_text
from validator.rules import engine, manual, schema
from validator.rules.rule import Rule

# A job -> the same with simulations at hand
Trial = Callable[[Job], Job]
# Keys and values that LLaMA-Factory does not take
_MISREAD = ("SCH001", "SCH002", "SCH004")


def check(
    subjects: Sequence[str | Document],
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Trial | None = None,
) -> Report:
    """All findings of all files. Folders stand for the files in them; `-` is standard input; a document has been read
    already. `trial` gives a job what simulates it. Never raises."""
    report = Report(__version__)
    for subject in subjects:
        if isinstance(subject, Document):
            report.files.append(check_document(subject, machine, host_ram_gib, trial))
            continue
        files = [check_file(name, machine, host_ram_gib, trial) for name in expand(subject)]
        report.files += files or [empty(subject)]
    return report


def check_file(
    path: str, machine: str | None = None, host_ram_gib: float | None = None, trial: Trial | None = None
) -> FileReport:
    """All findings of one file: a recipe, or a DeepSpeed JSON file by its suffix. Never raises for bad input."""
    if path.endswith(".json"):
        return _check_zero(path)
    return check_document(load(path), machine, host_ram_gib, trial)


def empty(folder: str) -> FileReport:
    """The report of a folder that holds nothing of ours."""
    return unread(folder, "holds no recipe (.yaml) and no DeepSpeed file (.json)")


def unread(path: str, why: str) -> FileReport:
    """The report of what cannot be read."""
    return FileReport(path, [Diagnostic("LOA001", Severity.ERROR, why)])


def check_document(
    document: Document, machine: str | None = None, host_ram_gib: float | None = None, trial: Trial | None = None
) -> FileReport:
    """All findings of a recipe that has been read."""
    if document.readable and document.values:
        return judge(document, machine, host_ram_gib, trial)[0]
    report = FileReport(document.path, list(document.problems), sources={document.path: document.text})
    if document.readable:
        report.diagnostics.append(Diagnostic("LOA006", Severity.ERROR, "holds no key; a recipe needs at least a model"))
    return report


def judge(
    document: Document, machine: str | None = None, host_ram_gib: float | None = None, trial: Trial | None = None
) -> tuple[FileReport, Job]:
    """All findings of a recipe that holds keys, and the job that they are about: without the values they refuse."""
    locations = Locations(document)
    report = FileReport(document.path, list(document.problems), sources=locations.sources)
    if document.path != "-" and not document.path.endswith(SUFFIXES):
        text = "is read by LLaMA-Factory only if its name ends with .yaml or .yml, in lower case; rename it"
        report.diagnostics.append(Diagnostic("LOA007", Severity.ERROR, text))
    report.diagnostics += [locations.diagnostic(*each[:4], fix=each.fix) for each in schema.check(document)]
    refused = frozenset(d.key for d in report.diagnostics if d.severity is Severity.ERROR and d.key)
    refused |= _misnamed(report.diagnostics)
    job = resolve(document, machine, host_ram_gib, refused)
    job = trial(job) if trial else job
    findings = _apply(engine.RULES, job, locations, refused)
    misread = any(each.code in _MISREAD for each in report.diagnostics)
    report.diagnostics += map(_doubted, findings) if misread else findings
    report.diagnostics = sorted(_kept(document, report.diagnostics, job.as_written), key=_order)
    report.verdict, report.unjudged = job.verdict, tuple(unjudged.gaps(job, tried=trial is not None))
    return report, job


def _misnamed(diagnostics: Iterable[Diagnostic]) -> frozenset[str]:
    """Keys that are written under another name, so that the recipe seems to lack them."""
    fixes = [each.fix for each in diagnostics if each.fix and each.severity is Severity.ERROR]
    return frozenset(str(edit.to) for fix in fixes for edit in fix.edits if edit.do == "rename")


def _doubted(diagnostic: Diagnostic) -> Diagnostic:
    """The finding of a recipe that is misread: what seems to have no effect may hang on what is meant."""
    fix = diagnostic.fix
    if fix is None or all(edit.do != "remove" for edit in fix.edits):
        return diagnostic
    return diagnostic._replace(fix=fix._replace(safe=False))


def _kept(document: Document, diagnostics: list[Diagnostic], as_written: bool) -> list[Diagnostic]:
    """The findings that no comment of the recipe suppresses."""
    if MARK not in document.text:
        return diagnostics
    from validator.judge.suppression import suppressed  # which hardly any recipe asks for

    return suppressed(document, diagnostics, as_written)


def _order(diagnostic: Diagnostic) -> tuple[int, int, str, int, int, str]:
    """The order of the file that is checked; what lies in another stands where that is named."""
    line, column = diagnostic.line, diagnostic.column
    if diagnostic.path is None:
        return line, column, "", line, column, diagnostic.code
    named = diagnostic.related[0] if diagnostic.related else Related("", 1, 1, "")
    return named.line, named.column, diagnostic.path, line, column, diagnostic.code


def _check_zero(path: str) -> FileReport:
    """A DeepSpeed file by itself: what can be said without the recipe that uses it."""
    try:
        text = read_text(path)
    except RecipeError as err:
        return unread(path, str(err))
    locations = Locations(Document(path, text))
    job = Job({"deepspeed": str(Path(path).absolute())}, path=path, folders=tuple(folders(path)))
    diagnostics = sorted(_apply(engine.FILE_RULES, job, locations), key=_order)
    return FileReport(path, diagnostics, sources=locations.sources)


def _apply(
    rules: Iterable[Rule], job: Job, locations: Locations, refused: frozenset[str] = frozenset()
) -> Iterator[Diagnostic]:
    """What the rules say, but nothing more about a key whose value was refused already."""
    for rule, place, message, fix in engine.findings(rules, job):
        if place.key not in refused:
            advice = _advice(job) if rule.advised else ""
            remedy = manual.remedy(rule.manual)
            yield locations.diagnostic(rule.code, rule.severity, place, message + advice, remedy, fix)


def _advice(job: Job) -> str:
    from validator.advise import changes  # only where something does not fit: not on the path of a clean check

    return f"; {changes.advice(job)}"


def expand(path: str) -> list[str]:
    """The files a path stands for; what cannot be looked at is left to the loader to explain."""
    try:
        folder = path != "-" and Path(path).is_dir()
    except OSError:
        folder = False
    if not folder:
        return [path]
    from validator.judge import recognition  # which a check of files does not need

    return recognition.inside(path)
