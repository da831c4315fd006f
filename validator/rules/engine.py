"""Every rule, and what the rules find in a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from validator.diagnostic import Fix, Place, Severity
from validator.job.job import Job
from validator.rules import (
    accelerate,
    amount,
    block,
    columns,
    continuing,
    course,
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
    kernels,
    methods,
    metrics,
    models,
    optimizers,
    parallel,
    paths,
    precision,
    preference,
    published,
    quantization,
    ranges,
    ray,
    registry,
    resuming,
    schedule,
    seeing,
    sharded,
    sources,
    targets,
    templates,
    thoughts,
    training,
    vision,
    waiting,
    waste,
    weights,
    zeroengine,
    zerofile,
    zerokeys,
    zerosteps,
)
from validator.rules.rule import MOST, Rule, place
from validator.tables import releases

# One module for each topic; the letters of a code name its family.
FAMILIES = (
    *(
        paths,
        weights,
        resuming,
        continuing,
        registry,
        sources,
        columns,
        entries,
        fit,
        device,
        kernels,
        parallel,
        sharded,
        zerokeys,
        zerofile,
        zeroengine,
        zerosteps,
        fsdp,
        accelerate,
    ),
    *(
        environment,
        ray,
        data,
        block,
        curated,
        training,
        amount,
        ranges,
        inputs,
        templates,
        thoughts,
        methods,
        targets,
        quantization,
        precision,
        optimizers,
        schedule,
        vision,
        waste,
        waiting,
        seeing,
    ),
    *(preference, published, course, evaluation, metrics, ignored, models),
)

_MORE = f"more than {MOST} findings of this rule; the others are shown once these are mended"


def rules() -> list[Rule]:
    """Every rule, in the order of its code."""
    declared = [value for family in FAMILIES for value in vars(family).values() if isinstance(value, Rule)]
    return sorted(declared, key=lambda rule: rule.code)


RULES = tuple(rules())
# What a DeepSpeed file can be judged by without the recipe that uses it: whether it is one, and its contents.
FILE_RULES = tuple(rule for rule in RULES if rule.code.startswith("PAR1") or rule.code == "PTH003")


def findings(chosen: Iterable[Rule], job: Job) -> Iterator[tuple[Rule, Place, str, Fix | None]]:
    """(rule, place, message, definite remedy) of the rules that hold for the recipe's releases; of each the first, and
    one more that says that there are others."""
    for rule in chosen:
        if not (rule.since or rule.until) or releases.holds(job.header, rule.since, rule.until):
            for number, finding in enumerate(rule.check(job)):
                if number == MOST:
                    yield rule, place(finding[0]), _MORE, None
                    break
                yield rule, place(finding[0]), finding[1], finding[2] if len(finding) == 3 else None


def errors(job: Job) -> set[tuple[str, str | None]]:
    """(code, key) of all that would stop the run, other than memory, which is the job's own verdict, and this
    repository's conventions."""
    return _found(job, Severity.ERROR)


def problems(job: Job) -> set[tuple[str, str | None]]:
    """The same of all that would stop the run or go otherwise than it is written."""
    return _found(job, Severity.ERROR, Severity.WARNING)


def _found(job: Job, *severities: Severity) -> set[tuple[str, str | None]]:
    judged = (rule for rule in RULES if rule.severity in severities and rule.code[:3] not in ("FIT", "CUR"))
    return {(rule.code, where.key) for rule, where, *_ in findings(judged, job)}
