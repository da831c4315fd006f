"""From a path to its report: load the file, judge keys and values, resolve the run, apply the rules, add advice.

It also says why the memory of a run was not judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from validator import __version__
from validator.check import find_files
from validator.check.locate import Locations, report_without_quotes
from validator.check.suppression import without_suppressed
from validator.errors import RecipeError, os_reason
from validator.finding import Diagnostic, FileReport, NotJudged, Related, Report, Severity
from validator.recipe import known_folders, safe_read
from validator.recipe.known_folders import search_folders
from validator.recipe.omegaconf import WRITTEN_TWICE
from validator.recipe.recipe_file import RECIPE_SUFFIXES, Document, load_recipe
from validator.recipe.safe_read import read_text
from validator.rules import all_rules, recipe_schema
from validator.rules.problems import run_rules
from validator.rules.rule import Rule
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve, run_of_values
from validator.run.workspace import Workspace
from validator.wording import clip

_FILES_FOR_PROCESSES = 64  # files, for which several processes are quicker than one
_MAX_MESSAGE = 2_000  # characters of a message
# A run -> the same with simulations at hand
Simulate = Callable[[RunSettings], RunSettings]
# Keys and values that LLaMA-Factory does not take
_MISREAD_CODES = ("SCH001", "SCH002", "SCH004")


def check_files(
    subjects: Sequence[str | Document],
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Simulate | None = None,
) -> Report:
    """Return all findings of all files. Folders stand for the files in them, `-` is standard input, and a document has
    been read already. `trial` adds simulations to a run. Never raises."""

    def report(one: str | Document | FileReport) -> FileReport:
        if isinstance(one, FileReport):
            return one
        if isinstance(one, Document):
            return check_document(one, machine, host_ram_gib, trial)
        return check_file(one, machine, host_ram_gib, trial)

    asked = [one for each in subjects for one in ([each] if isinstance(each, Document) else expand_path(each))]
    if len(asked) < _FILES_FOR_PROCESSES or trial or "-" in subjects:
        return Report(__version__, [report(one) for one in asked])
    from . import worker_pool  # multiprocessing takes 17 ms to import

    return Report(__version__, worker_pool.map_in_processes(report, asked))


def check_file(
    path: str, machine: str | None = None, host_ram_gib: float | None = None, trial: Simulate | None = None
) -> FileReport:
    """Return all findings of one file: a recipe, or a DeepSpeed file if its name ends with .json. Never raises for bad
    input."""
    zero = path.endswith(".json")
    report = _check_deepspeed_file(path) if zero else check_document(load_recipe(path), machine, host_ram_gib, trial)
    if not report.diagnostics or path == "-" or known_folders.is_in_repository(path, path):
        return report
    return report_without_quotes(report)


def unreadable_report(path: str, why: str) -> FileReport:
    """Return the report of a file that cannot be read."""
    return FileReport(path, [Diagnostic("LOA001", Severity.ERROR, why)])


def check_document(
    document: Document,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Simulate | None = None,
    guarded: bool = True,
) -> FileReport:
    """Return all findings of a recipe that has been read. `guarded`: findings quote nothing of files outside of the
    recipe's repository, as whoever starts the check may not trust the recipe."""
    if document.judgeable and document.values:
        return check_recipe(document, machine, host_ram_gib, trial, guarded)[0]
    report = FileReport(
        document.path, list(map(_clip_message, document.problems)), sources={document.path: document.text}
    )
    if document.judgeable:
        report.diagnostics.append(Diagnostic("LOA006", Severity.ERROR, "holds no key; a recipe needs at least a model"))
    return report


def check_recipe(
    document: Document,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Simulate | None = None,
    guarded: bool = True,
) -> tuple[FileReport, RunSettings]:
    """Return all findings of a recipe that holds keys, and the run that they are about, without the values that were
    refused."""
    locations = Locations(document, guarded)
    report = FileReport(document.path, list(document.problems))
    if document.path != "-" and not document.path.endswith(RECIPE_SUFFIXES):
        text = "LLaMA-Factory reads a recipe only if its name ends with .yaml or .yml, in lower case; rename the file"
        report.diagnostics.append(Diagnostic("LOA007", Severity.ERROR, text))
    report.diagnostics += [
        locations.diagnostic(*each[:4], fix=each.fix) for each in recipe_schema.check_schema(document)
    ]
    wrong = (d for d in report.diagnostics if d.severity is Severity.ERROR and d.code != WRITTEN_TWICE)
    refused = frozenset(each.key for each in wrong if each.key)
    refused |= _intended_names(report.diagnostics)
    run = resolve(document, machine, host_ram_gib, refused, untrusted=guarded)
    run = trial(run) if trial else run
    findings = _apply_rules(all_rules.RULES, run, locations, refused)
    misread = any(each.code in _MISREAD_CODES for each in report.diagnostics)
    report.diagnostics += map(_without_safe_fix, findings) if misread else findings
    report.diagnostics = sorted(
        map(_clip_message, without_suppressed(document, report.diagnostics, run.is_unmodified)), key=_report_order
    )
    # Of many files without any finding no text is kept.
    found_in = {each.path or report.path for each in report.diagnostics} & locations.sources.keys()
    report.sources = {path: locations.sources[path] for path in found_in}
    report.verdict, report.unjudged = predict(run).verdict, tuple(reasons_not_judged(run, tried=trial is not None))
    return report, run


def _intended_names(diagnostics: Iterable[Diagnostic]) -> frozenset[str]:
    """Return the keys that are written under another name, so that the recipe seems to lack them."""
    fixes = [each.fix for each in diagnostics if each.fix and each.severity is Severity.ERROR]
    return frozenset(str(edit.to) for fix in fixes for edit in fix.edits if edit.do == "rename")


def _without_safe_fix(diagnostic: Diagnostic) -> Diagnostic:
    """Return the finding of a recipe that is misread. A setting that seems to have no effect may depend on a misspelt
    key, so removing it is not safe."""
    fix = diagnostic.fix
    if fix is None or all(edit.do != "remove" for edit in fix.edits):
        return diagnostic
    return diagnostic._replace(fix=fix._replace(safe=False))


def _clip_message(diagnostic: Diagnostic) -> Diagnostic:
    """Return the finding with a message of bounded length: a message may quote a file of any length."""
    long = len(diagnostic.message) > _MAX_MESSAGE
    return diagnostic._replace(message=clip(diagnostic.message, _MAX_MESSAGE)) if long else diagnostic


def _report_order(diagnostic: Diagnostic) -> tuple[int, int, str, int, int, str]:
    """Return the sort key of a finding: its place in the checked file. A finding in another file stands where that file
    is named."""
    line, column = diagnostic.line, diagnostic.column
    if diagnostic.path is None:
        return line, column, "", line, column, diagnostic.code
    named = diagnostic.related[0] if diagnostic.related else Related("", 1, 1, "")
    return named.line, named.column, diagnostic.path, line, column, diagnostic.code


def _check_deepspeed_file(path: str) -> FileReport:
    """Return the report of a DeepSpeed file by itself, without the recipe that uses it."""
    try:
        text = read_text(path)
    except RecipeError as err:
        return unreadable_report(path, str(err))
    locations = Locations(Document(path, text))
    workspace = Workspace(path, tuple(search_folders(path)))
    run = run_of_values({"deepspeed": str(Path(path).absolute())}, workspace=workspace)
    diagnostics = sorted(map(_clip_message, _apply_rules(all_rules.FILE_RULES, run, locations)), key=_report_order)
    return FileReport(path, diagnostics, sources=locations.sources)


def _apply_rules(
    rules: Iterable[Rule], run: RunSettings, locations: Locations, refused: frozenset[str] = frozenset()
) -> Iterator[Diagnostic]:
    """Yield the findings of the rules, without those about a key whose value was refused already."""
    for rule, place, message, fix in run_rules(rules, run):
        if place.key not in refused:
            advice = _advice_on_memory(run) if rule.appends_advice else ""
            remedy = all_rules.fix_paragraph(rule.manual)
            yield locations.diagnostic(rule.code, rule.severity, place, message + advice, remedy, fix)


def _advice_on_memory(run: RunSettings) -> str:
    from validator.advise import changes  # 14 ms to import, and only what does not fit asks for advice

    return f"; {changes.change_advice(run)}"


def expand_path(path: str) -> list[str | FileReport]:
    """Return the files that a path stands for, and a report for each folder in it that cannot be listed. The loader
    explains a path that cannot be looked at."""
    if path == "-" or safe_read.path_kind(path) != "folder":
        return [path]
    closed: list[str | FileReport] = []

    def report_closed(folder: str, err: OSError) -> None:
        closed.append(
            unreadable_report(
                folder, f"is a folder that cannot be listed: {os_reason(err)}; what is in it was not checked"
            )
        )

    return [*find_files.find_in_folder(path, report_closed), *closed] or [
        unreadable_report(path, "holds no recipe (.yaml) and no DeepSpeed file (.json)")
    ]


_MAX_MODEL_PROBLEM = 500  # characters, of which a name may be most
_NO_MACHINE = "no machine named: give --machine 8xa100-80g"


def reasons_not_judged(run: RunSettings, tried: bool = False) -> Iterator[NotJudged]:
    """Yield why memory was not judged. An unknown model is described in full only if no finding (FIT005) does so. After
    a simulation that failed, each file has a finding with the reason, so that files are not summed up."""
    engine = predict(run).judged_deepspeed
    if run.machine_problem:
        yield NotJudged("machine not known", "machine not known")
    elif not run.machine:
        yield NotJudged(_NO_MACHINE, _NO_MACHINE)
    if run.model_problem:
        code = "FIT005" if run.machine and not tried else ""
        yield NotJudged(
            "model not known", "model not known" if run.machine else clip(run.model_problem, _MAX_MODEL_PROBLEM), code
        )
    if run.task.is_inference_only:
        yield NotJudged("nothing is trained", "nothing is trained: the formulas are of training")
    if engine and engine.problem:
        yield NotJudged("DeepSpeed file not read", "DeepSpeed file not read")
    if run.accelerate and not run.accelerate.is_judged:
        yield NotJudged("accelerate file not understood", "accelerate file not understood")
