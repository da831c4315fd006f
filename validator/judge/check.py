"""Load, schema, job, rules, advice -> Report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from validator import __version__
from validator.diagnostic import Diagnostic, FileReport, RecipeError, Related, Report, Severity
from validator.job.job import Job, folders, resolve
from validator.judge import MARK, unjudged
from validator.judge.location import Locations
from validator.read import disk
from validator.read.recipe import SUFFIXES, Document, load
from validator.read.refusals import TWICE
from validator.read.text import clip, read_text
from validator.rules import engine, manual, schema
from validator.rules.rule import Rule
from validator.tables import repository

_MANY = 64  # files, for which several processes are quicker than one
_LONGEST = 2_000  # characters of a message
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

    def report(one: str | Document | FileReport) -> FileReport:
        if isinstance(one, FileReport):
            return one
        if isinstance(one, Document):
            return check_document(one, machine, host_ram_gib, trial)
        return check_file(one, machine, host_ram_gib, trial)

    asked = [one for subject in subjects for one in _stands_for(subject)]
    if len(asked) < _MANY or trial or "-" in subjects:
        return Report(__version__, [report(one) for one in asked])
    from validator.judge import several  # which takes as long to begin as a few files

    return Report(__version__, several.judged(report, asked))


def _stands_for(subject: str | Document) -> Sequence[str | Document | FileReport]:
    """What is to be judged for it, or what is said where that is nothing."""
    if isinstance(subject, Document):
        return [subject]
    return expand(subject)


def check_file(
    path: str, machine: str | None = None, host_ram_gib: float | None = None, trial: Trial | None = None
) -> FileReport:
    """All findings of one file: a recipe, or a DeepSpeed JSON file by its suffix. Never raises for bad input."""
    zero = path.endswith(".json")
    report = _check_zero(path) if zero else check_document(load(path), machine, host_ram_gib, trial)
    if not report.diagnostics or path == "-" or repository.holds(path, path):
        return report
    from validator.judge import outside  # which only a link that leads out of the repository needs

    return outside.bounded(report)


def empty(folder: str) -> FileReport:
    """The report of a folder that holds nothing of ours."""
    return unread(folder, "holds no recipe (.yaml) and no DeepSpeed file (.json)")


def unread(path: str, why: str) -> FileReport:
    """The report of what cannot be read."""
    return FileReport(path, [Diagnostic("LOA001", Severity.ERROR, why)])


def check_document(
    document: Document,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Trial | None = None,
    guarded: bool = True,
) -> FileReport:
    """All findings of a recipe that has been read. Unless whoever runs it trusts it, they are `guarded`: nothing is
    quoted of files outside of its repository."""
    if document.judgeable and document.values:
        return judge(document, machine, host_ram_gib, trial, guarded)[0]
    report = FileReport(document.path, list(map(_told, document.problems)), sources={document.path: document.text})
    if document.judgeable:
        report.diagnostics.append(Diagnostic("LOA006", Severity.ERROR, "holds no key; a recipe needs at least a model"))
    return report


def judge(
    document: Document,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Trial | None = None,
    guarded: bool = True,
) -> tuple[FileReport, Job]:
    """All findings of a recipe that holds keys, and the job that they are about: without the values they refuse."""
    locations = Locations(document, guarded)
    report = FileReport(document.path, list(document.problems))
    if document.path != "-" and not document.path.endswith(SUFFIXES):
        text = "is read by LLaMA-Factory only if its name ends with .yaml or .yml, in lower case; rename it"
        report.diagnostics.append(Diagnostic("LOA007", Severity.ERROR, text))
    report.diagnostics += [locations.diagnostic(*each[:4], fix=each.fix) for each in schema.check(document)]
    wrong = (d for d in report.diagnostics if d.severity is Severity.ERROR and d.code != TWICE)
    refused = frozenset(each.key for each in wrong if each.key)
    refused |= _misnamed(report.diagnostics)
    job = resolve(document, machine, host_ram_gib, refused)
    job.guarded = guarded
    job = trial(job) if trial else job
    findings = _apply(engine.RULES, job, locations, refused)
    misread = any(each.code in _MISREAD for each in report.diagnostics)
    report.diagnostics += map(_doubted, findings) if misread else findings
    report.diagnostics = sorted(map(_told, _kept(document, report.diagnostics, job.as_written)), key=_order)
    report.sources = _needed(locations.sources, report)
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


def _told(diagnostic: Diagnostic) -> Diagnostic:
    """The finding, with as much of its message as anybody reads: what a file holds may be as long as the file."""
    long = len(diagnostic.message) > _LONGEST
    return diagnostic._replace(message=clip(diagnostic.message, _LONGEST)) if long else diagnostic


def _needed(sources: dict[str, str], report: FileReport) -> dict[str, str]:
    """The texts that findings lie in: of many files without any, none is kept."""
    return {path: sources[path] for path in {each.path or report.path for each in report.diagnostics} & sources.keys()}


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
    diagnostics = sorted(map(_told, _apply(engine.FILE_RULES, job, locations)), key=_order)
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


def expand(path: str) -> list[str | FileReport]:
    """The files a path stands for, and a report of each folder in it that cannot be listed; what cannot be looked at is
    left to the loader to explain."""
    if path == "-" or disk.kind(path) != "folder":
        return [path]
    from validator.judge import recognition  # which a check of files does not need

    closed: list[str | FileReport] = []

    def told(folder: str, err: OSError) -> None:
        why = (err.strerror or str(err)).lower()
        closed.append(unread(folder, f"is a folder that cannot be listed: {why}; what is in it was not checked"))

    return [*recognition.inside(path, told), *closed] or [empty(path)]
