"""One finding for each wrong value of a recipe.

A value that LLaMA-Factory refuses, or reads otherwise than it is meant, leaves open what the rest of the recipe amounts
to. So the rules judge the run with the value that is plainly meant, or without the key if no value is. What they find
is kept only if it holds for whatever value the user will write instead. What would be an error with the value that is
meant is left out if LLaMA-Factory goes on with the value as it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from validator.finding import Severity
from validator.recipe.recipe_file import Document
from validator.rules import all_rules
from validator.rules.problems import RuleFinding, run_rules
from validator.rules.rule import Violation
from validator.run.recipe_arguments import intended_value, possible_values
from validator.run.settings import RunSettings

# Rules that refuse the value of one key by itself.
_VALUE_CODES = ("TRA012", "TRA016", "TRA018", "TRA022", "TRA304", "TRA312")
_VALUE_RULES = tuple(rule for rule in all_rules.RULES if rule.code in _VALUE_CODES)
_OTHER_RULES = tuple(rule for rule in all_rules.RULES if rule.code not in _VALUE_CODES)
# Wrong types, and values outside of the choices, that LLaMA-Factory goes on with
_GOES_ON_CODES = ("SCH003", "SCH005")

# Reads a document as a run, in which the given keys count as refused.
ReadRun = Callable[[Document, frozenset[str]], RunSettings]


class JudgedValues(NamedTuple):
    """A run as LLaMA-Factory reads it, with what is wrong in it. `violations`: wrong keys and values by themselves.
    `findings`: what rules find."""

    run: RunSettings
    violations: list[Violation]
    findings: list[RuleFinding]


def judge_values(
    document: Document, violations: list[Violation], refused: frozenset[str], read: ReadRun
) -> JudgedValues:
    """Return the violations and the findings of all rules for a recipe, one for each wrong value. `violations`: what is
    wrong with keys and values by themselves. `refused`: keys whose value LLaMA-Factory refuses."""
    run = read(document, refused)
    misread = frozenset(str(each.place.key) for each in violations if _is_misread(each)) - refused
    about_values = [each for each in run_rules(_VALUE_RULES, run) if each.place.key not in refused]
    wrong = frozenset(str(each.place.key) for each in about_values)
    doubtful, meant = refused | misread | wrong, run
    if misread or wrong:
        kept = {key: value for key, value in document.values.items() if key not in wrong}
        meant = read(replace(document, values=kept), doubtful)
    findings = [each for each in run_rules(_OTHER_RULES, meant) if each.place.key not in doubtful]
    if meant.refused_keys:
        findings = _findings_for_any_value(findings, meant)
    fatal: list[RuleFinding] = []
    if misread - wrong:
        errors = [each for each in run_rules(_OTHER_RULES, run) if each.rule.severity is Severity.ERROR]
        known, fails = ({_identity(each) for each in some} for some in (findings, errors))
        fatal = [each for each in errors if each.place.key not in refused | wrong and _identity(each) not in known]
        findings = [each for each in findings if each.rule.severity is not Severity.ERROR or _identity(each) in fails]
    told = {each.place.key for each in findings}
    final = list[Violation]()
    for violation in violations:
        key = str(violation.place.key)
        own = next((each for each in fatal if each.place.key == key), None)
        if key in wrong or (_is_as_meant(violation) and key in told):
            continue
        if key not in misread or not fatal:
            final.append(violation)
        elif own and intended_value(key, document.values[key]) is None:
            about_values.append(own)
        else:
            final.append(_as_error(violation, own or fatal[0]))
    return JudgedValues(run, final, [*about_values, *findings])


def _is_misread(violation: Violation) -> bool:
    """True for a value that LLaMA-Factory does not refuse, and reads otherwise than it is meant, as far as known."""
    return violation.code in _GOES_ON_CODES and violation.severity is Severity.WARNING


def _is_as_meant(violation: Violation) -> bool:
    """True for a value of the wrong type that LLaMA-Factory reads as it is meant, such as 1 for true."""
    return violation.code in _GOES_ON_CODES and violation.severity is Severity.NOTE


def _as_error(violation: Violation, because: RuleFinding) -> Violation:
    """Return the violation as an error that also says why the run fails with the written value."""
    text = f"{violation.message}; as it is, the run fails: {because.message}"
    return violation._replace(severity=Severity.ERROR, message=text)


def _findings_for_any_value(findings: list[RuleFinding], run: RunSettings) -> list[RuleFinding]:
    """Return those findings of a run that hold whatever values its refused keys will have: they are found again for
    each of some possible values, of all keys at once."""
    values = {key: possible_values(key) for key in run.refused_keys}
    for turn in range(max(map(len, values.values()))):
        variant = run.updated({key: each[turn % len(each)] for key, each in values.items()})
        rules = {each.rule.code: each.rule for each in findings}
        found = {_identity(each) for each in run_rules(rules.values(), variant)}
        findings = [each for each in findings if _identity(each) in found]
    return findings


def _identity(finding: RuleFinding) -> tuple[str, str | None]:
    return finding.rule.code, finding.place.key
