"""Keys, types and choices against LLaMA-Factory's own arguments, by the releases that the recipe is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from validator.diagnostic import Place, RecipeError, Severity
from validator.job.job import Job
from validator.read.recipe import Document
from validator.rules import ignored, keys, values
from validator.rules.argument import entry
from validator.rules.rule import Violation
from validator.tables import releases


def check(document: Document) -> list[Violation]:
    """Every key that LLaMA-Factory does not take, and every value of the wrong type or outside the choices."""
    remarks = list(_range_problem(document.header))
    unclear = any(each.severity is Severity.WARNING for each in remarks)
    pairs = [releases.newest()] if unclear else releases.pairs(document.header)
    admitted = releases.admitted(document.header)
    known = {str(key): entry(str(key), pairs) for key in document.values}
    accepted = {key: argument for key, argument in known.items() if argument is not None}
    strangers = [key for key in known if key not in accepted]
    return [
        *remarks,
        *keys.unknown(strangers, document.values, pairs, admitted),
        *values.wrong(document.values, accepted, partial(ignored.never_read, Job(document.values))),
        *keys.remarks(accepted, document.values, pairs, admitted),
    ]


def _range_problem(header: Mapping[str, Any]) -> Iterator[Violation]:
    try:
        releases.pairs(header)
        near = dict.fromkeys(version for _, version in releases.stand_ins(header))
        if near:
            said = f"transformers {header['transformers']} is not in the tables; judged as {' and '.join(near)}"
            yield Violation("SCH008", Severity.NOTE, Place(("transformers",), key="transformers"), said)
    except RecipeError as err:
        field = next(name for name in releases.FIELDS if header.get(name) is not None)
        yield Violation("SCH008", Severity.WARNING, Place((field,), key=field), f"{err}; judged by the newest")
