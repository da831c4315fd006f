"""Every rule in the order of its code, and what a choice of them finds in a run."""

# ruff: noqa: F401  The modules are imported for the rules that they declare.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain

from validator.finding import Fix, Place, Severity
from validator.rules import (
    adapters,
    data_processing,
    dataset_columns,
    dataset_files,
    dataset_size,
    deepspeed_and_recipe,
    deepspeed_file,
    deepspeed_schema,
    device_support,
    evaluating,
    file_paths,
    fsdp_and_accelerate,
    good_practice,
    header_block,
    launch_environment,
    loss_choice,
    memory_fit,
    model_support,
    multimodal_models,
    no_effect,
    number_formats,
    numeric_ranges,
    optimizer_choice,
    resume_rules,
    slow_settings,
    template_choice,
    training_arguments,
)
from validator.rules.rule import DECLARED, MAX_FINDINGS, Rule, as_place
from validator.run.settings import RunSettings

_MORE_FINDINGS = f"more than {MAX_FINDINGS} findings of this rule; the others are shown once these are mended"


RULES = tuple(sorted(DECLARED, key=lambda rule: rule.code))
# What a DeepSpeed file can be judged by without the recipe that uses it: whether it is one, and its contents.
FILE_RULES = tuple(rule for rule in RULES if rule.code.startswith("PAR1") or rule.code == "PTH003")


def run_rules(chosen: Iterable[Rule], run: RunSettings) -> Iterator[tuple[Rule, Place, str, Fix | None]]:
    """(rule, place, message, definite remedy) of the rules that hold for the recipe's releases; of each the first, and
    one more that says that there are others."""
    subjects = cache(lambda about: tuple(about(run)))
    for rule in chosen:
        if not (rule.since or rule.until) or run.releases.requires(rule.since, rule.until):
            found = chain.from_iterable(rule.check(run, *subject) for subject in subjects(rule.about))
            for number, finding in enumerate(found):
                if number == MAX_FINDINGS:
                    yield rule, as_place(finding[0]), _MORE_FINDINGS, None
                    break
                yield rule, as_place(finding[0]), finding[1], finding[2] if len(finding) == 3 else None


def find_errors(run: RunSettings) -> set[tuple[str, str | None]]:
    """Return (code, key) of every error, without memory findings and this repository's conventions."""
    return _codes_and_keys(run, Severity.ERROR)


def find_errors_and_warnings(run: RunSettings) -> set[tuple[str, str | None]]:
    """Return (code, key) of every error and warning, without memory findings and this repository's conventions."""
    return _codes_and_keys(run, Severity.ERROR, Severity.WARNING)


def _codes_and_keys(run: RunSettings, *severities: Severity) -> set[tuple[str, str | None]]:
    judged = (rule for rule in RULES if rule.severity in severities and rule.code[:3] not in ("FIT", "CUR"))
    return {(rule.code, where.key) for rule, where, *_ in run_rules(judged, run)}
