"""Load, schema, job, rules -> Report. Holds the one list of rule families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from validator import __version__, catalog, job, loader, release, schema
from validator.diagnostic import Diagnostic, FileReport, RecipeError, Report, Severity
from validator.job import Job
from validator.loader import Document
from validator.rules import (
    curated,
    data,
    device,
    entries,
    environment,
    evaluation,
    fit,
    fsdp,
    ignored,
    inputs,
    methods,
    models,
    optimizers,
    parallel,
    paths,
    precision,
    preference,
    quantization,
    ranges,
    registry,
    training,
    zerofile,
)
from validator.rules.rule import Rule

# One module for each topic; the letters of a code name its family.
FAMILIES = (
    *(paths, registry, entries, fit, device, parallel, zerofile, fsdp, environment, data, curated),
    *(training, ranges, inputs, methods, quantization, precision, optimizers, preference, evaluation, ignored, models),
)
_SUFFIXES = (".yaml", ".yml")


def rules() -> list[Rule]:
    """Every rule, in the order of its code."""
    found = [value for family in FAMILIES for value in vars(family).values() if isinstance(value, Rule)]
    return sorted(found, key=lambda rule: rule.code)


_RULES = tuple(rules())
# What a DeepSpeed file can be judged by without the recipe that uses it: whether it is one, and its contents.
_FILE_RULES = {*parallel.FILE_RULES, "PTH003"}
_MANUAL = {rule.code: rule.manual for rule in _RULES}


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
    return check_document(loader.load(path), machine, host_ram_gib)


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
    report.diagnostics += _apply(_RULES, found, document, refused)
    report.diagnostics.sort(key=lambda d: (d.line, d.column, d.code))
    report.verdict = found.verdict
    return report


def errors(found: Job) -> set[tuple[str, str | None]]:
    """(code, key) of all that would stop the run, other than memory, which is the job's own verdict, and this
    repository's conventions."""
    judged = (rule for rule in _RULES if rule.severity is Severity.ERROR and rule.code[:3] not in ("FIT", "CUR"))
    return {(rule.code, key) for rule, key, _ in _findings(judged, found)}


def _check_zero(path: str) -> FileReport:
    """A DeepSpeed file by itself: what can be said without the recipe that uses it."""
    try:
        text = loader.read_text(path)
    except RecipeError as err:
        return _unread(path, str(err))
    document = Document(path, text, values={"deepspeed": str(Path(path).absolute())})
    found = Job(path, document.values, folders=tuple(job.folders(path)))
    alone = [rule for rule in _RULES if rule.code in _FILE_RULES]
    return FileReport(path, list(_apply(alone, found, document)), text=text)


def _apply(
    chosen: Iterable[Rule], found: Job, document: Document, refused: frozenset[str] = frozenset()
) -> Iterator[Diagnostic]:
    """What the rules find, but nothing more about a key whose value was refused already."""
    for rule, key, message in _findings(chosen, found):
        if key not in refused:
            line, column = document.mark(key)
            yield Diagnostic(rule.code, rule.severity, message, line, column, key, remedy(rule.manual))


def _findings(chosen: Iterable[Rule], found: Job) -> Iterator[tuple[Rule, str | None, str]]:
    """(rule, key, message) of the rules that hold for the recipe's releases."""
    for rule in chosen:
        if not rule.since or release.reached(found.header, rule.since):
            for key, message in rule.check(found):
                yield rule, key, message


def remedy(manual: str) -> str | None:
    """The `Fix:` paragraph of a manual page, as one line."""
    _, found, rest = manual.partition("Fix:")
    return " ".join(rest.split("\n\n")[0].split()) if found else None


def _expand(path: str) -> list[str]:
    """The files a path stands for; what cannot be listed is left to the loader to explain."""
    try:
        inside = list(Path(path).iterdir()) if path != "-" and Path(path).is_dir() else None
    except OSError:
        inside = None
    if inside is None:
        return [path]
    return sorted(str(p) for p in inside if p.suffix in (*_SUFFIXES, ".json") and p.is_file())


def manual(code: str) -> tuple[Severity, str]:
    """Severity and manual page of a code. Raises RecipeError for an unknown one."""
    wanted = code.upper()
    pages = catalog.listing("manual")
    if wanted in pages:
        return Severity(pages[wanted]["severity"]), pages[wanted]["text"].strip()
    for rule in _RULES:
        if rule.code == wanted:
            return rule.severity, rule.manual
    raise RecipeError(f"no rule `{code}`{catalog.suggest(wanted, codes())}")


def codes() -> list[str]:
    """Every code there is, sorted."""
    return sorted([*catalog.listing("manual"), *(rule.code for rule in _RULES)])
