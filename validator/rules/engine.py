"""Every rule, and what the rules find in a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
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
from validator.tables import releases

# One module for each topic; the letters of a code name its family.
FAMILIES = (
    *(paths, registry, entries, fit, device, parallel, zerofile, fsdp, environment, data, curated),
    *(training, ranges, inputs, methods, quantization, precision, optimizers, preference, evaluation, ignored, models),
)


def rules() -> list[Rule]:
    """Every rule, in the order of its code."""
    found = [value for family in FAMILIES for value in vars(family).values() if isinstance(value, Rule)]
    return sorted(found, key=lambda rule: rule.code)


RULES = tuple(rules())
# What a DeepSpeed file can be judged by without the recipe that uses it: whether it is one, and its contents.
FILE_RULES = tuple(rule for rule in RULES if rule.code in {*parallel.FILE_RULES, "PTH003"})


def findings(chosen: Iterable[Rule], found: Job) -> Iterator[tuple[Rule, str | None, str]]:
    """(rule, key, message) of the rules that hold for the recipe's releases."""
    for rule in chosen:
        if not (rule.since or rule.until) or releases.holds(found.header, rule.since, rule.until):
            for key, message in rule.check(found):
                yield rule, key, message


def errors(found: Job) -> set[tuple[str, str | None]]:
    """(code, key) of all that would stop the run, other than memory, which is the job's own verdict, and this
    repository's conventions."""
    judged = (rule for rule in RULES if rule.severity is Severity.ERROR and rule.code[:3] not in ("FIT", "CUR"))
    return {(rule.code, key) for rule, key, _ in findings(judged, found)}
