"""SCH001, SCH006 and SCH007: keys that LLaMA-Factory does not take, will not take, or does not read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validator.diagnostic import Place, Severity
from validator.rules.argument import Entry, entry
from validator.rules.rule import Violation
from validator.tables import data, releases
from validator.tables.suggestion import suggest

# keys of other commands that the parser of train judges all the same: TRA006 and TRA013
_JUDGED = ("infer_backend", "export_quantization_bit")


def unknown(strangers: list[str], pairs: list[releases.Pair]) -> Iterator[Violation]:
    """SCH001: keys that one of the releases does not take."""
    renamed: Mapping[str, Entry] = data.listing("renamed") if strangers else {}
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
            text += suggest(key, (name for name in data.table("arguments")["arguments"] if entry(name, pairs)))
        yield _violation("SCH001", Severity.ERROR, key, text)


def _lacking(key: str, pairs: list[releases.Pair]) -> releases.Pair:
    """The newest of the releases that does not have the key."""
    return next(pair for pair in pairs if entry(key, [pair]) is None)


def _came(key: str, lacking: releases.Pair) -> str:
    """The first newer pair that has the key, in words; empty where none has it."""
    newer = releases.known()[: releases.known().index(lacking)]
    first = next((pair for pair in reversed(newer) if entry(key, [pair]) is not None), None)
    if first is None:
        return ""
    return f"LLaMA-Factory {first[0]}" if first[0] != lacking[0] else f"transformers {first[1]}"


def _removed(change: Entry) -> str:
    return f" (gone since {change.get('removed', 'an earlier release')}); {_remedy(change)}"


def remarks(accepted: Mapping[str, Entry], pairs: list[releases.Pair]) -> Iterator[Violation]:
    """SCH006 and SCH007: keys that go or have gone in a later release, and keys that only another command reads."""
    for key, argument in accepted.items():
        text = _farewell(key, pairs)
        if text:
            yield _violation("SCH006", Severity.WARNING, key, text)
        elif argument.get("command") and key not in _JUDGED:
            text = f"`{key}` has no effect here: only the {argument['command']} command reads it"
            yield _violation("SCH007", Severity.NOTE, key, text)


def _farewell(key: str, pairs: list[releases.Pair]) -> str:
    """That a later release will not take the key, or already does not; empty where it stays, and where no release of
    the recipe's has come to what replaces it."""
    change = data.listing("renamed").get(key, {})
    if entry(key, [releases.newest()]) is None:
        remedy = f"; there {_remedy(change)}" if change else ""
        gone = change.get("removed", f"LLaMA-Factory {releases.newest()[0]}")
        return f"`{key}` is gone since {gone}, so the recipe ends with the older releases it names{remedy}"
    if "deprecated" not in change or not any(releases.reached(pair, change["deprecated"]) for pair in pairs):
        return ""
    return f"`{key}` will go ({change['deprecated']} warns about it); {_remedy(change)}"


def _remedy(change: Entry) -> str:
    return str(change.get("how") or f"write `{change['now']}`")


def _violation(code: str, severity: Severity, key: str, text: str) -> Violation:
    return Violation(code, severity, Place((key,), key=key, at_key=True), text)
