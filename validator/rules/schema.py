"""Keys, types and choices against LLaMA-Factory's own arguments. The only importer of cerberus.

LLaMA-Factory does not convert what YAML gives it, so a wrong type fails at parsing, at the first step or never. What
really happens was measured for each argument and kind of value (data/values.json) and decides the severity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from validator.diagnostic import Diagnostic, RecipeError, Severity
from validator.read.recipe import Document
from validator.tables import data, releases
from validator.tables.suggestion import suggest

_FAILS = {
    "p": "at parsing",
    "d": "while the data set is read",
    "m": "while the model loads",
    "t": "when the trainer is built, after the model is loaded",
    "s": "at the first step",
    "e": "at the first evaluation",
    "v": "at the first save",
    "h": "by never ending",
}
# keys of other commands that the parser of train judges all the same: TRA006 and TRA013
_JUDGED = ("infer_backend", "export_quantization_bit")
_SPOKEN = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list",
           "dict": "a mapping", "object": "nothing YAML can write"}  # fmt: skip


def check(document: Document) -> list[Diagnostic]:
    """Every key that LLaMA-Factory does not take, and every value of the wrong type or outside the choices, by the
    releases that the recipe is for."""
    found = [*_range_problem(document)]
    pairs = [releases.newest()] if found else releases.pairs(document.header)
    known = {str(key): _entry(str(key), pairs) for key in document.values}
    found += _unknown(document, known, pairs)
    accepted = {key: entry for key, entry in known.items() if entry is not None}
    doubtful = {
        key: value
        for key, value in document.values.items()
        if key in accepted and not _plainly_right(value, accepted[key]) and not _splits(key, value)
    }
    if doubtful:
        found += [_wrong(document, key, choice, accepted[key]) for key, choice in _judge(doubtful, accepted)]
    return [*found, *_remarks(document, accepted)]


def _range_problem(document: Document) -> Iterator[Diagnostic]:
    try:
        releases.pairs(document.header)
    except RecipeError as err:
        field = next(name for name in releases.FIELDS if document.header.get(name) is not None)
        place = document.position((field,))
        yield Diagnostic("SCH008", Severity.WARNING, f"{err}; judged by the newest", *place, key=field)


def _entry(key: str, pairs: list[releases.Pair]) -> Mapping[str, Any] | None:
    """What the table says of a key for these releases: of several, the oldest, as what newer ones add does not help
    there. None where one of them does not have it."""
    entry = data.table("arguments")["arguments"].get(key)
    if entry is None or not all(releases.name(pair) in entry.get("in", [releases.name(pair)]) for pair in pairs):
        return None
    change = data.table("arguments")["changes"].get(releases.name(pairs[-1]), {}).get(key)
    return {**entry, **change} if change else entry


def _plainly_right(value: Any, entry: Mapping[str, Any]) -> bool:
    """Whether the value has exactly the type wanted. Only what is left needs cerberus, whose import alone costs as much
    as the rest of a check."""
    kinds = entry["type"].split("|")
    typed = type(value).__name__ in kinds or (type(value) is int and "float" in kinds)
    return typed and (not entry["choices"] or (isinstance(value, str) and value in entry["choices"]))


def _splits(key: str, value: Any) -> bool:
    """Whether it is a list where LLaMA-Factory, which splits text at commas there, was seen to take lists too."""
    return isinstance(value, list) and all(isinstance(word, str) for word in value) and _outcome(key, "list") == "."


def _judge(values: Mapping[str, Any], arguments: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
    """(key, whether the choice and not the type is wrong) for each value that cerberus refuses."""
    import cerberus
    from cerberus import errors

    def plain(name: str, *types: type) -> cerberus.TypeDefinition:
        """A type that does not take true and false for numbers."""
        return cerberus.TypeDefinition(name, types, (bool,) if bool not in types else ())

    class Arguments(cerberus.Validator):  # type: ignore[misc]
        types_mapping: ClassVar = {
            "bool": plain("bool", bool),
            "int": plain("int", int),
            "float": plain("float", int, float),
            "str": plain("str", str),
            "list": plain("list", list),
            "dict": plain("dict", dict),
            "object": plain("object"),
        }

    judge = Arguments({key: _rule(arguments[key]) for key in values})
    judge.validate(values, normalize=False)
    for error in judge._errors:
        yield error.document_path[0], error.code == errors.UNALLOWED_VALUE.code


def _rule(entry: Mapping[str, Any]) -> dict[str, Any]:
    rule: dict[str, Any] = {"type": entry["type"].split("|"), "nullable": bool(entry["optional"])}
    if entry["choices"] and "list" not in rule["type"]:
        rule["allowed"] = [*entry["choices"], *([True, False] if "bool" in rule["type"] else [])]
    return rule


def _unknown(
    document: Document, known: Mapping[str, Mapping[str, Any] | None], pairs: list[releases.Pair]
) -> Iterator[Diagnostic]:
    strangers = [key for key, entry in known.items() if entry is None]
    renamed: Mapping[str, Mapping[str, Any]] = data.listing("renamed") if strangers else {}
    for key in strangers:
        lacking = _lacking(key, pairs)
        text = f"`{key}` is not a key of LLaMA-Factory {lacking[0]}"
        if _came(key, lacking):
            text += f", which the recipe's range holds; it came with {_came(key, lacking)}"
        elif key in renamed:
            text += f" with its transformers{_removed(renamed[key])}"
        elif key in data.table("arguments")["elsewhere"]:
            text += f"'s train command; it belongs to `{data.table('arguments')['elsewhere'][key]}`"
        else:
            text += suggest(key, (name for name in data.table("arguments")["arguments"] if _entry(name, pairs)))
        yield Diagnostic("SCH001", Severity.ERROR, text, *document.position((key,), at_key=True), key=key)


def _lacking(key: str, pairs: list[releases.Pair]) -> releases.Pair:
    """The newest of the releases that does not have the key."""
    return next(pair for pair in pairs if _entry(key, [pair]) is None)


def _came(key: str, lacking: releases.Pair) -> str:
    """The first newer pair that has the key, in words; empty where none has it."""
    newer = releases.known()[: releases.known().index(lacking)]
    first = next((pair for pair in reversed(newer) if _entry(key, [pair]) is not None), None)
    if first is None:
        return ""
    return f"LLaMA-Factory {first[0]}" if first[0] != lacking[0] else f"transformers {first[1]}"


def _removed(entry: Mapping[str, Any]) -> str:
    remedy = entry.get("how") or f"write `{entry['now']}`"
    return f" (gone since {entry.get('removed', 'an earlier release')}); {remedy}"


def _kind(value: Any, entry: Mapping[str, Any]) -> str:
    """The kind of value that data/values.json has an outcome for."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return "int"
        case float():
            return "whole" if value.is_integer() else "float"
        case list():
            return "list"
        case dict():
            return "dict"
    return "text" if "str" in entry["type"].split("|") or not _is_number(value) else "quoted"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _outcome(key: str, kind: str) -> str:
    """The letter of an outcome. Words in place of a number, where nobody has run them, fail as quoted numbers do."""
    table = data.table("values")
    letters: str = table["outcomes"].get(key, "")
    found = letters[table["kinds"].index(kind)] if letters else "r"
    return _outcome(key, "quoted") if kind == "text" and found in "r-" else found


def _wrong(document: Document, key: str, choice: bool, entry: Mapping[str, Any]) -> Diagnostic:
    value = document.values[key]
    outcome = _outcome(key, _kind(value, entry))
    fails = _FAILS.get(outcome)
    severity = Severity.ERROR if fails else Severity.WARNING
    if choice:
        code, text = "SCH004" if fails else "SCH005", _not_allowed(key, value, entry)
    else:
        code, text = "SCH002" if fails else "SCH003", _not_typed(key, value, entry)
    text += f"; LLaMA-Factory fails on it {fails}" if fails else "; LLaMA-Factory takes it as it is"
    return Diagnostic(code, severity, text, *document.position((key,)), key=key)


def _not_allowed(key: str, value: Any, entry: Mapping[str, Any]) -> str:
    choices = [str(choice) for choice in entry["choices"]]
    hint = suggest(str(value).lower(), choices)
    return f"`{key}` is {_show(value)}, not one of {', '.join(choices)}" + hint


def _not_typed(key: str, value: Any, entry: Mapping[str, Any]) -> str:
    wanted = " or ".join(_SPOKEN[name] for name in entry["type"].split("|"))
    if entry["type"] == "bool" and isinstance(value, str) and value:
        return f"`{key}` is the text {_show(value)}, which counts as true; write {wanted} without quotes"
    return f"`{key}` is {_show(value)}, not {wanted}"


def _show(value: Any) -> str:
    if value is None:
        return "null"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _remarks(document: Document, accepted: Mapping[str, Mapping[str, Any]]) -> Iterator[Diagnostic]:
    """Keys that are accepted but go or have gone in a later release, and keys that only another command reads."""
    for key, entry in accepted.items():
        text = _farewell(key)
        if text:
            yield Diagnostic("SCH006", Severity.WARNING, text, *document.position((key,), at_key=True), key=key)
        elif entry.get("command") and key not in _JUDGED:
            text = f"`{key}` has no effect here: only the {entry['command']} command reads it"
            yield Diagnostic("SCH007", Severity.NOTE, text, *document.position((key,), at_key=True), key=key)


def _farewell(key: str) -> str:
    """That a later release will not take the key, or already does not; empty where it stays."""
    entry = data.listing("renamed").get(key, {})
    if _entry(key, [releases.newest()]) is None:
        remedy = f"; there {_remedy(entry)}" if entry else ""
        gone = entry.get("removed", f"LLaMA-Factory {releases.newest()[0]}")
        return f"`{key}` is gone since {gone}, so the recipe ends with the older releases it names{remedy}"
    if "deprecated" not in entry:
        return ""
    return f"`{key}` will go ({entry['deprecated']} warns about it); {_remedy(entry)}"


def _remedy(entry: Mapping[str, Any]) -> str:
    return str(entry.get("how") or f"write `{entry['now']}`")
