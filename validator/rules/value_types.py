"""SCH002 to SCH005: values of the wrong type or outside the choices. The only importer of cerberus.

LLaMA-Factory does not convert what YAML gives it, so a wrong type fails at parsing, at the first step or never.
What really happens was measured for each argument and kind of value (data/values.json) and decides the severity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from validator.finding import Place, Severity
from validator.knowledge import tables
from validator.knowledge.releases import ArgumentEntry
from validator.recipe.suggestions import suggest
from validator.rules import rule
from validator.rules.rule import FailsAt, Violation
from validator.wording import shown_value

_FAILURE_MOMENTS = dict(zip("pdmtsevh", FailsAt, strict=True))  # by the letter of an outcome in data/values.json
_JUDGED_BY_OTHER_RULES = ("quantization_method",)  # by TRA308 and TRA804, which know whether it is read
TYPE_WORDS = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list",
    "dict": "a mapping", "object": "nothing YAML can write",
}  # fmt: skip


def find_wrong_values(
    values: Mapping[str, Any], accepted: Mapping[str, ArgumentEntry], never_read: Callable[[str], bool]
) -> Iterator[Violation]:
    """Yield what is wrong with the values of accepted keys. A value that is not refused at parsing does no harm to a
    run that never reads its key."""
    judged = {key: values[key] for key in values if key in accepted and key not in _JUDGED_BY_OTHER_RULES}
    odd = {key: value for key, value in judged.items() if not _has_exact_type(value, accepted[key])}
    doubtful = {key: value for key, value in odd.items() if not _is_accepted_anyway(key, value)}
    for key, choice in _refused_by_cerberus(doubtful, accepted) if doubtful else ():
        if _measured_outcome(key, _value_kind(values[key], accepted[key])) == "p" or not never_read(key):
            yield _value_violation(key, values[key], choice, accepted[key])


def _has_exact_type(value: Any, entry: ArgumentEntry) -> bool:
    """Whether the value has exactly the type wanted. Only what is left needs cerberus, whose import alone costs as much
    as the rest of a check."""
    kinds = entry["type"].split("|")
    typed = type(value).__name__ in kinds or (type(value) is int and "float" in kinds)
    return typed and (not entry["choices"] or (isinstance(value, str) and value in entry["choices"]))


def _is_accepted_anyway(key: str, value: Any) -> bool:
    """Whether it is a list where LLaMA-Factory, which splits text at commas there, was seen to take lists too; or says
    whether to resume from the last checkpoint (transformers/trainer.py:Trainer.train)."""
    if not isinstance(value, list):
        return key == "resume_from_checkpoint" and isinstance(value, bool)
    return all(isinstance(word, str) for word in value) and _measured_outcome(key, "list") == "."


def _refused_by_cerberus(
    values: Mapping[str, Any], arguments: Mapping[str, ArgumentEntry]
) -> Iterator[tuple[str, bool]]:
    """(key, whether the choice and not the type is wrong) for each value that cerberus refuses."""
    import cerberus
    from cerberus import errors

    def plain(name: str, *types: type) -> cerberus.TypeDefinition:
        """A type that does not take true and false for numbers."""
        return cerberus.TypeDefinition(name, types, (bool,) if bool not in types else ())

    class Arguments(cerberus.Validator):  # type: ignore[misc]
        types_mapping: ClassVar = {
            **{each.__name__: plain(each.__name__, each) for each in (bool, int, str, list, dict)},
            **{"float": plain("float", int, float), "object": plain("object")},
        }

    judge = Arguments({key: _cerberus_rule(arguments[key]) for key in values})
    judge.validate(values, normalize=False)
    for error in judge._errors:
        yield error.document_path[0], error.code == errors.UNALLOWED_VALUE.code


def _cerberus_rule(entry: ArgumentEntry) -> dict[str, Any]:
    rule: dict[str, Any] = {"type": entry["type"].split("|"), "nullable": bool(entry["optional"])}
    if entry["choices"] and "list" not in rule["type"]:
        rule["allowed"] = [*entry["choices"], *([True, False] if "bool" in rule["type"] else [])]
    return rule


def _value_kind(value: Any, entry: ArgumentEntry) -> str:
    """The kind of value that data/values.json has an outcome for."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        return "whole" if value.is_integer() else "float"
    if isinstance(value, (int, list, dict)):
        return type(value).__name__
    return "text" if "str" in entry["type"].split("|") or _number(value) is None else "quoted"


def _measured_outcome(key: str, kind: str) -> str:
    """The letter of an outcome. Words in place of a number, where nobody has run them, fail as quoted numbers do."""
    table = tables.json_table("values")
    letters: str = table["outcomes"].get(key, "")
    letter = letters[table["kinds"].index(kind)] if letters else "r"
    return _measured_outcome(key, "quoted") if kind == "text" and letter in "r-" else letter


def _value_violation(key: str, value: Any, choice: bool, entry: ArgumentEntry) -> Violation:
    fails = _FAILURE_MOMENTS.get(_measured_outcome(key, _value_kind(value, entry)))
    as_meant = entry["type"] == "bool" and (value is None or value in (0, 1))  # 1 as true, 0 and null as false
    severity = Severity.ERROR if fails else Severity.NOTE if as_meant else Severity.WARNING
    if choice:
        code, text = "SCH004" if fails else "SCH005", _choice_message(key, value, entry)
    else:
        code, text = "SCH002" if fails else "SCH003", _type_message(key, value, entry)
    text += f"; LLaMA-Factory fails on it {fails}" if fails else "; LLaMA-Factory takes it as it is"
    to = _intended_choice(value, entry) if choice else _converted_value(value, entry)
    # What the run refuses cannot have been trained; true and false count as what was written for them.
    safe = bool(fails) or (isinstance(to, bool) and to is bool(value))
    fix = None if to is None else rule.set_value(key, to, safe)
    return Violation(code, severity, Place((key,), key=key), text, fix)


def _intended_choice(value: Any, entry: ArgumentEntry) -> str | None:
    """The choice that is meant where only its case is wrong, or YAML made false of `no`."""
    word = "no" if value is False else str(value).strip().lower()
    return next((str(each) for each in entry["choices"] if str(each).lower() == word), None)


def _converted_value(value: Any, entry: ArgumentEntry) -> bool | float | str | None:
    """The value in the type wanted, where it can stand for one only."""
    kinds = entry["type"].split("|")
    if value is False and "no" in (entry["choices"] or ()):
        return "no"
    if kinds == ["bool"]:
        return {"true": True, "false": False, "1": True, "0": False, "none": False}.get(str(value).strip().lower())
    number = _number(value) if isinstance(value, (str, float)) else None
    if number is None or not abs(number) < 1e18:
        return None
    if "int" in kinds and number.is_integer() and "e" not in str(value).lower():
        return int(number)
    return number if "float" in kinds else None


def _number(value: str | float) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _choice_message(key: str, value: Any, entry: ArgumentEntry) -> str:
    choices, word = [str(choice) for choice in entry["choices"]], str(value).lower()
    losses = tables.json_table("arguments")["arguments"]["pref_loss"]["choices"]
    loss = key == "stage" and word in losses
    hint = f"; write `stage: dpo` with `pref_loss: {word}`" if loss else suggest(word, choices)
    return f"`{key}` is {shown_value(value)}, not one of {', '.join(choices)}{hint}"


def _type_message(key: str, value: Any, entry: ArgumentEntry) -> str:
    wanted = " or ".join(TYPE_WORDS[name] for name in entry["type"].split("|"))
    if entry["type"] == "bool" and isinstance(value, str) and value:
        return f"`{key}` is the text {shown_value(value)}, which counts as true; write {wanted} without quotes"
    return f"`{key}` is {shown_value(value)}, not {wanted}"
