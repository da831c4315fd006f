"""docs/reference/json/: a JSON Schema for each answer of `--format json`, made from the dataclass that is printed, and
the overview of them in docs/reference/json.md."""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from validator.advise.explanation import Explanation
from validator.catalogue.bundled_recipes import CatalogueRow
from validator.catalogue.recipe_diff import Comparison
from validator.configuration import EffectiveSettings
from validator.dataset.data_report import DataReport
from validator.dataset.user_input import Registration
from validator.doctor.diagnosis import Diagnosis
from validator.finding import Assumption, Diagnostic, Verdict
from validator.physics import estimate, run_time
from validator.plan.plan_json import AnswerRows

Schema = dict[str, Any]
# Modules that answers import for their types alone.
_TYPES_ONLY = {"estimate": estimate, "run_time": run_time}
_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class Answer(NamedTuple):
    """A command as one types it, what its exit code 1 means, and the schema of its answer."""

    command: str
    about: str
    schema: Schema


def schema_of(kind: Any) -> Schema:
    """Return the schema of a value of this type, as `output/json_output.py` prints it."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind in (Any, object):
        return {}
    if origin in (Union, types.UnionType):
        return _schema_of_union([schema_of(each) for each in inner])
    if origin is Literal:
        return {"enum": list(inner)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if origin is tuple and inner[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [schema_of(each) for each in inner], "minItems": len(inner),
                "maxItems": len(inner)}  # fmt: skip
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(inner[0])}
    if issubclass(kind, Enum):
        members = [each.value for each in kind]
        return {"enum": members} if members else {"type": "string"}
    return _schema_of_fields(kind)


def _schema_of_union(several: Sequence[Schema]) -> Schema:
    """Return one list of types where each alternative is no more than a type."""
    if all(each.keys() == {"type"} for each in several):
        return {"type": [each["type"] for each in several]}
    return {"anyOf": list(several)}


def _schema_of_fields(kind: Any) -> Schema:
    """Return the schema of a dataclass or a named tuple: its fields are the keys, all of them always there."""
    hints = get_type_hints(kind, localns=_TYPES_ONLY)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    return _object({name.removesuffix("_"): schema_of(hints[name]) for name in names}, _description(kind))


def _object(properties: Schema, description: str) -> Schema:
    about = {"description": description} if description else {}
    return {"type": "object", **about, "properties": properties, "required": list(properties),
            "additionalProperties": False}  # fmt: skip


def _description(kind: type) -> str:
    """Return the docstring as one paragraph, in the words of JSON; empty for the one that Python writes itself."""
    text = " ".join((inspect.getdoc(kind) or "").split())
    return "" if text.startswith(f"{kind.__name__}(") else re.sub(r"\bNone\b", "null", text)


def _check_schema() -> Schema:
    """Return the schema of what `output/findings.py` puts together: findings with their paths, and what was fixed."""
    finding = schema_of(Diagnostic)
    properties = {**finding["properties"], "path": {"type": "string"}}
    finding = {**finding, "properties": properties}
    left = _object({**properties, "why": {"type": "string"}}, "A finding that `--fix` left, and why.")
    file = _object(
        {
            "path": {"type": "string"},
            "kind": {"type": "string"},
            "diagnostics": {"type": "array", "items": finding},
            "verdict": schema_of(Verdict),
            "unjudged": {"type": "array", "items": {"type": "string"}},
            "fixed": {"type": "array", "items": finding},
            "left": {"type": "array", "items": left},
            "enough_for_tokens": {"type": ["integer", "null"]},
            "assumes": {"type": "array", "items": schema_of(Assumption)},
        },
        "One file: what it is by what it holds (recipe, deepspeed, accelerate, registry, one of the kinds that are not "
        "judged, or unknown), its findings, the verdict on memory or why there is none, and what `--fix` did. "
        "`enough_for_tokens`: device memory is expected to suffice if no sample is longer, and it is not known whether "
        "one is. `assumes`: what the verdict takes for granted.",
    )
    return _object(
        {
            "version": {"type": "string"},
            "files": {"type": "array", "items": file},
            "errors": {"type": "integer"},
            "warnings": {"type": "integer"},
        },
        "All findings of all files; errors and warnings are counted.",
    )


ANSWERS = {
    "check": Answer("check PATH…", "1: a file has an error, which `strict` makes of warnings", _check_schema()),
    "config": Answer(
        "check --show-config [PATH]…", "2: a configuration file cannot be used", schema_of(Sequence[EffectiveSettings])
    ),
    "explain": Answer("explain RECIPE", "1: the recipe has an error", schema_of(Explanation)),
    "plan": Answer("plan --machine M", "1: nothing fits", schema_of(AnswerRows)),
    "list": Answer("list", "1: no recipe matches", schema_of(Sequence[CatalogueRow])),
    "data": Answer("data RECIPE", "1: the run would stop at its data", schema_of(DataReport)),
    "register": Answer("data FILE --register NAME", "1: the file cannot be registered", schema_of(Registration)),
    "diff": Answer("diff NAME FILE", "0 whether or not they differ", schema_of(Comparison)),
    "doctor": Answer("doctor [RECIPE]", "1: a run would fail on this machine", schema_of(Diagnosis)),
}


def schema_file(name: str) -> str:
    """Return the text of docs/reference/json/<name>.schema.json."""
    answer = ANSWERS[name]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"lmf-recipes {answer.command} --format json"}  # fmt: skip
    return json.dumps({**head, **answer.schema}, indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    """Return the table of answers, for docs/reference/json.md."""
    return "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    yield from ("| command | schema | keys at the top | exit code |", "| --- | --- | --- | --- |")
    for name, answer in ANSWERS.items():
        whole = answer.schema
        keys = ", ".join(f"`{key}`" for key in whole.get("properties") or whole["items"]["properties"])
        each = "" if "properties" in whole else "a list, each with "
        link = f"[{name}.schema.json](json/{name}.schema.json)"
        yield f"| `{answer.command}` | {link} | {each}{keys} | {answer.about} |"
