"""From a path to its report: load the file, check keys and values, resolve the run, apply the rules, and append advice
on memory. Also the reasons why the memory of a run was not judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from validator import __version__
from validator.check import find_files, wrong_values
from validator.check.locate import Locations, report_without_quotes
from validator.check.other_files import check_other_file, sort_findings, unreadable_report, unrecognised_report
from validator.check.shared_outputs import output_place, report_shared_outputs
from validator.check.suppression import is_selected, without_suppressed
from validator.configuration import CommandLine, configured, find_configuration
from validator.errors import os_reason
from validator.finding import USUAL_FINDINGS, Diagnostic, FileReport, NotJudged, Report, Severity
from validator.knowledge import file_kinds, releases
from validator.recipe import known_folders, safe_read
from validator.recipe.omegaconf import WRITTEN_TWICE
from validator.recipe.recipe_file import (
    RECIPE_SUFFIXES,
    Document,
    explain_header_block,
    load_recipe,
    with_missing_header_fields,
)
from validator.rules import all_rules, recipe_schema
from validator.rules.problems import RuleFinding
from validator.rules.rule import Violation
from validator.run.assumptions import verdict_assumptions
from validator.run.checkout import find_checkout
from validator.run.prediction import predict
from validator.run.recipe_arguments import is_unusable_number
from validator.run.settings import RunSettings, resolve
from validator.wording import clip

_FILES_FOR_PROCESSES = 64  # files, for which several processes are quicker than one
# A run -> the same with simulations at hand
Simulate = Callable[[RunSettings], RunSettings]
Installed = Mapping[str, str]
_NOTHING_INSTALLED: Installed = {}
# Keys and values that LLaMA-Factory does not take
_MISREAD_CODES = ("SCH001", "SCH002", "SCH004")


def check_files(
    subjects: Sequence[str | Document],
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Simulate | None = None,
    installed: Installed = _NOTHING_INSTALLED,
    asked: CommandLine | None = None,
) -> Report:
    """Return all findings of all subjects. A subject is a file, a folder (for the files in it that are judged), `-` for
    standard input, or a document that has been read already. `machine`, `host_ram_gib`: judge for this machine
    and main memory instead of the recipe's. `trial`: a function that adds simulations to a run; None for no simulation.
    `installed`: fields for the header block of recipes that lack them: releases of packages that the run will find, and
    `base`, the model that unknown models come from. `asked`: what the command line says about findings; None to read no
    configuration file either. Raises ConfigurationError for a configuration file that cannot be used, and nothing
    else."""

    def report(one: str | Document | FileReport) -> FileReport:
        if isinstance(one, FileReport):
            return one
        if isinstance(one, Document):
            return check_document(one, machine, host_ram_gib, trial, installed, asked=asked)
        return check_file(one, machine, host_ram_gib, trial, installed, asked)

    report_of_all = Report(__version__, list(_reports_of(subjects, report, bool(trial))))
    report_shared_outputs(report_of_all.files)
    return report_of_all


def _reports_of(
    subjects: Sequence[str | Document], report: Callable[[str | Document | FileReport], FileReport], simulates: bool
) -> Iterable[FileReport]:
    """Return the report of each file of the subjects, from several processes if there are many files."""
    items = [one for each in subjects for one in ([each] if isinstance(each, Document) else expand_path(each))]
    if len(items) < _FILES_FOR_PROCESSES or simulates or "-" in subjects:
        return map(report, items)
    from . import worker_pool  # multiprocessing takes 17 ms to import

    return worker_pool.map_in_processes(report, items)


def check_file(
    path: str,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Simulate | None = None,
    installed: Installed = _NOTHING_INSTALLED,
    asked: CommandLine | None = None,
) -> FileReport:
    """Return all findings of one file, which is judged as what it holds: a recipe, a DeepSpeed file, an Accelerate
    file or a data set registry. Of any other kind a note says what the file is. A file of no kind that is known is
    judged as the recipe that the user takes it for. `asked` is that of `check_files`. Never raises for bad input. A
    file outside of the repository is reported without quoting its contents."""
    document = load_recipe(path) if path == "-" else None
    kind = file_kinds.kind_of_text(document.text) if document else file_kinds.kind_of_file(path)
    if kind.may_be_recipe:
        report = check_document(document or load_recipe(path), machine, host_ram_gib, trial, installed, asked=asked)
    else:
        report = check_other_kind(path, kind, asked)
    if not report.diagnostics or path == "-" or known_folders.is_in_repository(path, path):
        return report
    return report_without_quotes(report)


def check_other_kind(path: str, kind: file_kinds.FileKind, asked: CommandLine | None) -> FileReport:
    """Return the findings of a file that is no recipe, as the settings for the file select them. `asked` is that of
    `check_files`."""
    options = find_configuration(path, asked).finding_options(asked) if asked else USUAL_FINDINGS
    report = check_other_file(path, kind, options)
    report.diagnostics = [each for each in report.diagnostics if is_selected(options, each)]
    report.strict = options.strict
    return report


def check_document(
    document: Document,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Simulate | None = None,
    installed: Installed = _NOTHING_INSTALLED,
    guarded: bool = True,
    asked: CommandLine | None = None,
) -> FileReport:
    """Return all findings of a recipe that has been read. `machine`, `host_ram_gib`, `trial`, `installed`, `asked`: as
    in `check_files`; without `asked` the document's own options count.
    `guarded`: quote nothing from files outside of the recipe's repository; False only if the person who runs the check
    trusts the recipe."""
    may_be_json = document.judgeable or document.path.endswith(".json")
    if may_be_json and not document.header and file_kinds.is_strange(document.text):
        return unrecognised_report(document.path)
    document = configured(document, asked)
    if document.judgeable and document.values:
        document = _with_fields_it_lacks(document, installed)
        return check_recipe(document, machine, host_ram_gib, trial, guarded)[0]
    problems = [each for each in document.problems if is_selected(document.options, each)]
    report = FileReport(document.path, sort_findings(problems), sources={document.path: document.text})
    report.kind = file_kinds.RECIPE if document.text.strip() else file_kinds.UNKNOWN
    if document.judgeable:
        report.diagnostics.append(Diagnostic("LOA006", Severity.ERROR, "holds no key; a recipe needs at least a model"))
    return report


def _with_fields_it_lacks(document: Document, fields: Mapping[str, str]) -> Document:
    """Return a copy of the recipe whose header block gets each of `fields` that it lacks: `base` only if its model is
    not known otherwise. It also gets the releases of the checkout of LLaMA-Factory that it lies in."""
    others = {name: value for name, value in fields.items() if name != "base"}
    source = find_checkout(document.path)
    document = with_missing_header_fields(document, {**(source.header_fields() if source else {}), **others})
    if "base" in fields and resolve(document).model_problem:
        return with_missing_header_fields(document, {"base": fields["base"]})
    return document


def check_recipe(
    document: Document,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    trial: Simulate | None = None,
    guarded: bool = True,
) -> tuple[FileReport, RunSettings]:
    """Return all findings of a recipe that has keys, and the run that was judged. In this run, values that
    LLaMA-Factory refuses are replaced by the intended value or left out. `trial`, `guarded` and the other parameters
    are those of `check_document`."""
    locations = Locations(document, guarded)
    report = FileReport(
        document.path, list(document.problems), overrides=document.overrides, strict=document.options.strict
    )
    violations = recipe_schema.check_schema(document)
    refused = _refused_keys(document, violations)

    def read(one: Document, keys: frozenset[str]) -> RunSettings:
        run = resolve(one, machine, host_ram_gib, keys, untrusted=guarded)
        return trial(run) if trial else run

    judged = wrong_values.judge_values(document, violations, refused, read)
    run = judged.run
    report.diagnostics += [locations.diagnostic(*each[:4], fix=each.fix) for each in judged.violations]
    findings = _located(judged.findings, run, locations)
    misread = any(each.code in _MISREAD_CODES for each in violations)
    report.diagnostics += map(_without_safe_fix, findings) if misread else findings
    report.diagnostics += _name_problems(run)
    shown = without_suppressed(document, report.diagnostics, run)
    selected = sort_findings(each for each in shown if is_selected(document.options, each))
    report.diagnostics = explain_header_block(selected, document.text)
    # Of many files without any finding no text is kept.
    found_in = {each.path or report.path for each in report.diagnostics} & locations.sources.keys()
    report.sources = {path: locations.sources[path] for path in found_in}
    report.output = output_place(run, locations, document.options)
    report.verdict, report.unjudged = predict(run).verdict, tuple(reasons_not_judged(run, tried=trial is not None))
    report.enough_for_tokens, report.assumes = predict(run).fitting_length, verdict_assumptions(run)
    return report, run


def _name_problems(run: RunSettings) -> Iterator[Diagnostic]:
    """Yield LOA007 if LLaMA-Factory does not read a recipe of this name."""
    path = run.workspace.recipe
    if path == "-" or path.endswith(RECIPE_SUFFIXES):
        return
    text = "LLaMA-Factory reads a recipe only if its name ends with .yaml or .yml, in lower case; rename the file"
    if path.endswith(".json"):
        if not run.releases.requires(since="llamafactory 0.9.5"):  # whose read_args gives json.load a path
            return
        release = releases.newest_pair()[0]
        found = f"LLaMA-Factory {release} stops at a recipe in JSON: 'PosixPath' object has no attribute 'read'"
        text = f"{found}; JSON is YAML, so rename the file to `{Path(path).with_suffix('.yaml').name}`"
    yield Diagnostic("LOA007", Severity.ERROR, text)


def _refused_keys(document: Document, violations: Iterable[Violation]) -> frozenset[str]:
    """Return the keys whose value LLaMA-Factory refuses or which is no number to reckon with, and the keys that the
    recipe means but writes under another name, as the fixes of its findings show. Rules must not report these keys as
    missing."""
    errors = [each for each in violations if each.severity is Severity.ERROR]
    names = (str(edit.to) for each in errors if each.fix for edit in each.fix.edits if edit.do == "rename")
    unread = (each.key for each in document.problems if each.severity is Severity.ERROR and each.code != WRITTEN_TWICE)
    unusable = (each.place.key for each in violations if is_unusable_number(document.values.get(str(each.place.key))))
    return frozenset(filter(None, (*unread, *(each.place.key for each in errors), *names, *unusable)))


def _without_safe_fix(diagnostic: Diagnostic) -> Diagnostic:
    """Return a finding of a recipe that has keys or values which LLaMA-Factory refuses. A fix that removes a key is
    marked as unsafe, because whether the key has an effect depends on what the user meant by the refused ones."""
    fix = diagnostic.fix
    if fix is None or all(edit.do != "remove" for edit in fix.edits):
        return diagnostic
    return diagnostic._replace(fix=fix._replace(safe=False))


def _located(findings: Iterable[RuleFinding], run: RunSettings, locations: Locations) -> Iterator[Diagnostic]:
    """Yield the findings of rules, each with its file, line and column."""
    for rule, place, message, fix in findings:
        advice = _advice_on_memory(run) if rule.appends_advice else ""
        remedy = all_rules.fix_paragraph(rule.manual)
        yield locations.diagnostic(rule.code, rule.severity, place, message + advice, remedy, fix)


def _advice_on_memory(run: RunSettings) -> str:
    from validator.advise import changes  # 14 ms to import, and only what does not fit asks for advice

    return f"; {changes.change_advice(run)}"


def expand_path(path: str) -> list[str | FileReport]:
    """Return the files in a folder that are judged, and a report for each of its subfolders that cannot be
    listed. If there are none of these, return one report that says so. A path that is not a folder is returned
    unchanged, even if nothing exists there."""
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
        unreadable_report(
            path,
            "holds no recipe, no DeepSpeed or Accelerate file and no data set registry; "
            "`lmf-recipes data` looks at a folder of data",
        )
    ]


_MAX_MODEL_PROBLEM = 500  # characters, of which a name may be most
_NO_MACHINE = "no machine named: give --machine 8xa100-80g"


def reasons_not_judged(run: RunSettings, tried: bool = False) -> Iterator[NotJudged]:
    """Yield the reasons why the memory of a run was not judged. `tried`: True if the run was to be simulated. For an
    unknown model, the reason is short if the finding FIT005 explains it. In a report on many files, one line may stand
    for all FIT005 findings, unless a simulation was tried: then each file has its own reason."""
    engine = predict(run).judged_deepspeed
    if run.machine_problem:
        yield NotJudged("machine not known", "machine not known")
    elif not run.machine:
        yield NotJudged(_NO_MACHINE, _NO_MACHINE)
    if run.model_problem:
        code = "FIT005" if run.machine and not tried else ""
        reason = "model not known" if run.machine else clip(run.model_problem, _MAX_MODEL_PROBLEM)
        yield NotJudged("model not known, --base NAME names it", reason, code)
    if run.task.is_inference_only:
        yield NotJudged("nothing is trained", "nothing is trained: the formulas are of training")
    elif run.other_engine:
        yield NotJudged(run.other_engine, run.other_engine)
    if engine and engine.problem:
        yield NotJudged("DeepSpeed file not read", "DeepSpeed file not read")
    if run.accelerate and not run.accelerate.is_judged:
        yield NotJudged("accelerate file not understood", "accelerate file not understood")
